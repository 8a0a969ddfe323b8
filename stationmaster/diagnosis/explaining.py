"""From all that was seen of a job to its root cause and what followed from it.

Sources are read whole: the logs of all pods, events, node conditions. Findings are ordered by the
rank of their rules, then by time; the same rule is listed once, with its first line and a count.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from stationmaster.diagnosis.going_on import going_on, pod_of, started, without_pod
from stationmaster.diagnosis.matching import Match, evidence_of, matches
from stationmaster.diagnosis.rules import TEXT_LINE, Rank, Rule, Severity, Where
from stationmaster.domain.frozen import Frozen
from stationmaster.domain.run.failure_lines import FailureLines

UNEXPLAINED: Final = "unexplained"
"""In place of a rule's id: for a line that names a failure that no rule explains."""

# "2026-11-20T18:00:00.123456789Z " is what `kubectl logs --timestamps` puts there.
_STAMP: Final = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?Z ")
_TIME: Final = re.compile(
    r"^(?:\[pod/\S{1,320}\] ?)?\[?(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?"
    r"(Z|[+-]\d\d:\d\d)?"
)
_LATEST: Final = datetime.max.replace(tzinfo=UTC)
_MAX_UNKNOWN: Final = 5  # warnings without a rule that are listed
# What keeps a pod from starting; one that has started has overcome it.
_BEFORE_START: Final = frozenset({Rank.VOLUME, Rank.PLACEMENT})


class Role(StrEnum):
    """The role of a finding among the others."""

    CAUSE = "cause"
    ALSO = "also"
    """A failure of its own."""
    CONSEQUENCE = "consequence"
    NOTE = "note"


class Finding(Frozen):
    """What one rule says, with the first line for which it holds; `line` counts from 1."""

    rule: str
    severity: Severity
    role: Role
    source: str
    line: int | None
    evidence: str
    diagnosis: str
    remedy: str
    fix: str = ""
    """Keys of a start that carry the remedy out, where it has such."""
    subject: str = ""
    """The pod, node or object that it is about; empty where the source does not say."""
    count: int = 1
    """The number of lines for which it holds."""
    at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Something with a place in a source: an event, a container's end, a node's condition."""

    text: str
    where: frozenset[Where]
    line: int | None = None
    subject: str = ""
    at: datetime | None = None
    is_warning: bool = False
    """Whether it is an event that Kubernetes calls a Warning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One file, or what is known of one pod: plain lines, and what has a place of its own."""

    name: str
    lines: Sequence[str] = ()
    seen: Sequence[Seen] = ()
    where: frozenset[Where] = TEXT_LINE
    """What the plain lines may be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What is known of the run; the rest stays a word to fill in."""

    run: str = "RUN"
    recipe: str = "RECIPE"
    cluster: str = "NAME"
    instance: str = "TYPE"
    num_efa: int | None = None
    """The EFA adapters of a node; None where the instance type is not known."""


UNKNOWN: Final = Context()


@dataclass(slots=True)
class _Hit:
    rule: Rule
    source: str
    seen: Seen
    fields: Mapping[str, str]
    start: int
    order: int
    count: int = 1


@dataclass(slots=True)
class _Hits:
    by_key: dict[tuple[str, ...], _Hit] = field(default_factory=dict)
    taken_back: set[tuple[str, ...]] = field(default_factory=set)
    unknown: dict[str, Finding] = field(default_factory=dict)
    """Warnings of Kubernetes that no rule explains, by their text."""


def explain(sources: Sequence[Source], context: Context = UNKNOWN) -> list[Finding]:
    """List every finding, the root cause first; empty where nothing says that something failed.

    The first is a consequence where the cause is not in these sources.
    """
    hits = _Hits()
    passed = {id(source): going_on(source.lines) for source in sources}
    for source in sources:
        _collect_lines(hits, source, passed[id(source)], context)
        _collect_seen(hits, source, context)
    found = _standing(hits)
    errors = [hit for hit in found if hit.rule.severity is Severity.ERROR]
    is_explained = any(_explains(hit.rule) for hit in errors)
    # What is tried again by itself is no cause beside what failed.
    retried = [hit for hit in found if is_explained and _is_retried(hit.rule)]
    found = [*(hit for hit in found if hit not in retried), *retried]
    # Who was killed or told to stop from outside has not said anything of it in its last line.
    is_from_outside = any(hit.rule.rank is Rank.UNKNOWN_SIGNAL for hit in errors)
    is_failed = bool(errors) and not is_explained and not is_from_outside
    rest = _unexplained(sources, passed, context, is_failed=is_failed)
    unknown = list(hits.unknown.values())[:_MAX_UNKNOWN]
    if rest is None and not is_explained and unknown:
        rest, *unknown = unknown
    cause = min((hit.rule.rank for hit in found), default=Rank.NOTE)
    if rest is not None and not is_explained:
        cause = Rank.PROGRAM
    has_failed = bool(errors or rest)
    findings: list[Finding] = []
    for hit in found:
        if rest is not None and hit.rule.rank > (
            Rank.UNEXPLAINED if is_explained else Rank.PROGRAM
        ):
            findings.append(_quoted(rest, is_explained=is_explained))
            rest = None
        role = _role(hit.rule, cause, is_first=not findings, has_failed=has_failed)
        role = Role.NOTE if hit in retried else role
        findings.append(_finding(hit, role, context))
    if rest is not None:
        findings.append(_quoted(rest, is_explained=is_explained))
    return [*findings, *(each.model_copy(update={"role": Role.NOTE}) for each in unknown)]


def _explains(rule: Rule) -> bool:
    """Say whether it says why a process ended; that it was killed, nothing says by whom, does not
    where another process says what it failed of.
    """
    return rule.rank < Rank.UNEXPLAINED and rule.rank is not Rank.UNKNOWN_SIGNAL


def _is_retried(rule: Rule) -> bool:
    return rule.severity is Severity.WARNING and rule.rank < Rank.PROGRAM


def _collect_lines(
    hits: _Hits, source: Source, passed: Mapping[str, int], context: Context
) -> None:
    for number, text in enumerate(source.lines, start=1):
        for match in matches(text, source.where):
            pod, rule = pod_of(text), match.rule
            has_passed = number < passed.get(pod, 0) and Rank.HARDWARE < rule.rank < Rank.SLOW
            if has_passed and rule.is_shown:
                continue
            seen = Seen(text=text, where=source.where, line=number, subject=pod, at=time_of(text))
            _add(hits, source, seen, match, context)


def _collect_seen(hits: _Hits, source: Source, context: Context) -> None:
    running = started((seen.text, seen.subject) for seen in source.seen)
    for seen in source.seen:
        found = matches(seen.text, seen.where)
        for match in found:
            if seen.subject in running and match.rule.rank in _BEFORE_START:
                continue
            _add(hits, source, seen, match, context)
        if seen.is_warning and not found and seen.subject not in running:
            hits.unknown.setdefault(seen.text, _unknown(source.name, seen))


def _unknown(source: str, seen: Seen) -> Finding:
    return Finding(
        rule=UNEXPLAINED,
        severity=Severity.ERROR,
        role=Role.CAUSE,
        source=source,
        line=seen.line,
        evidence=evidence_of(seen.text, 0),
        diagnosis="Kubernetes warns of this, and no rule explains it",
        remedy=f"`kubectl describe` of {seen.subject or 'its object'} shows what came before it",
        subject=seen.subject,
        at=seen.at,
    )


def _add(hits: _Hits, source: Source, seen: Seen, match: Match, context: Context) -> None:
    rule, fields = match.rule, match.fields
    if context.num_efa is not None and context.num_efa < rule.least_efa:
        return
    process = fields.get("pid") or fields.get("by") or ""
    if not rule.is_shown:
        hits.taken_back.add((rule.id, source.name, seen.subject, process))
        return
    # Which GPU and which node matters; which of many ranks complained does not.
    own = (source.name, seen.subject, *fields.values())
    key = (rule.id, *(own if rule.rank is Rank.HARDWARE else ()))
    if rule.unless:
        key = (rule.id, source.name, seen.subject, process)
    known = hits.by_key.get(key)
    hit = _Hit(rule, source.name, seen, fields, match.start, len(hits.by_key))
    hits.by_key[key] = hit if known is None else _joined(known, hit)


def _joined(known: _Hit, other: _Hit) -> _Hit:
    """Count them as one, with the line of the first by time."""
    is_later = (other.seen.at or _LATEST) >= (known.seen.at or _LATEST)
    first = known if is_later else other
    return replace(first, order=known.order, count=known.count + other.count)


def _standing(hits: _Hits) -> list[_Hit]:
    standing: dict[tuple[str, ...], _Hit] = {}
    for key, hit in hits.by_key.items():
        if (hit.rule.unless, *key[1:]) in hits.taken_back:
            continue
        same = key if not hit.rule.unless else (hit.rule.id,)
        standing[same] = _joined(standing[same], hit) if same in standing else hit
    return sorted(
        standing.values(), key=lambda hit: (hit.rule.rank, hit.seen.at or _LATEST, hit.order)
    )


def _role(rule: Rule, cause: Rank, *, is_first: bool, has_failed: bool) -> Role:
    if not has_failed or rule.rank >= Rank.SLOW:
        return Role.NOTE
    if is_first and rule.rank < Rank.UNEXPLAINED:
        return Role.CAUSE
    follows = rule.rank >= Rank.UNKNOWN_SIGNAL and (rule.rank > cause or rule.rank > Rank.STUCK)
    return Role.CONSEQUENCE if follows else Role.ALSO


def _finding(hit: _Hit, role: Role, context: Context) -> Finding:
    rule, seen = hit.rule, hit.seen
    values = asdict(context) | dict(hit.fields)
    return Finding(
        rule=rule.id,
        severity=rule.severity,
        role=role,
        source=hit.source,
        line=seen.line,
        evidence=evidence_of(seen.text, hit.start),
        diagnosis=rule.diagnosis.format_map(values),
        remedy=rule.remedy.format_map(values),
        fix=rule.fix,
        subject=seen.subject,
        count=hit.count,
        at=seen.at,
    )


def _quoted(finding: Finding, *, is_explained: bool) -> Finding:
    if not is_explained:
        return finding
    said = "no rule explains this line, with which a process ended"
    return finding.model_copy(update={"role": Role.CONSEQUENCE, "diagnosis": said})


_Passed = Mapping[int, Mapping[str, int]]


def _unexplained(
    sources: Sequence[Source], passed: _Passed, context: Context, *, is_failed: bool
) -> Finding | None:
    """Choose the line that names a failure best, where no rule explains one."""
    named = _named(sources, passed, is_failed=is_failed)
    best = min(named, key=lambda each: each[0], default=None)
    if best is None:
        return None
    _, source, number, text = best
    return Finding(
        rule=UNEXPLAINED,
        severity=Severity.ERROR,
        role=Role.CAUSE,
        source=source,
        line=number,
        evidence=text,
        diagnosis="no rule explains this line; it is the first that says why a process ended",
        remedy=f"`/train logs {context.run}` shows what was printed before it",
    )


_Named = tuple[tuple[bool, datetime, int], str, int, str]


def _named(sources: Sequence[Source], passed: _Passed, *, is_failed: bool) -> Iterator[_Named]:
    for order, source in enumerate(sources):
        if Where.LOG not in source.where or not source.lines:
            continue
        lines, place, cause = FailureLines(), 0, ""
        ended = passed[id(source)]
        for number, text in enumerate(source.lines, start=1):
            if ended and number < ended.get(pod_of(text), 0):
                continue
            lines.take(_bare(text))
            if lines.cause != cause:
                place, cause = number, lines.cause
        said = cause or (lines.last if is_failed and not lines.peer else "")
        if not said or matches(said, source.where):
            continue
        at = time_of(source.lines[place - 1]) if cause else None
        number = place if cause else len(source.lines)
        yield (not cause, at or _LATEST, order), source.name, number, said


def _bare(text: str) -> str:
    """Return the line as the container printed it."""
    if text[:1] not in "[0123456789":
        return text
    return _STAMP.sub("", without_pod(text), count=1)


def time_of(text: str) -> datetime | None:
    """Read the time at the beginning of a line, in UTC where it names no zone; None without one."""
    match = _TIME.match(text)
    if match is None:
        return None
    seconds, fraction, zone = match.groups()
    stamp = f"{seconds}.{(fraction or '0')[:6].ljust(6, '0')}{zone or '+00:00'}"
    try:
        return datetime.fromisoformat(stamp)
    except ValueError:
        return None

"""From all that was seen of a job to its root cause and what followed from it.

Sources are read whole: the logs of all pods, events, node conditions. Findings are ordered by the
rank of their rules, then by time; the same rule is listed once, with its first line and a count.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from pydantic import BaseModel, ConfigDict

from stationmaster.diagnosis.matching import Match, evidence_of, matches
from stationmaster.diagnosis.rules import TEXT_LINE, Rank, Rule, Severity, Where
from stationmaster.domain.run.failure_lines import FailureLines

UNEXPLAINED: Final = "unexplained"
"""In place of a rule's id: for a line that names a failure that no rule explains."""

# "[pod/NAME/CONTAINER] " is what `kubectl logs --prefix` puts before a line.
_POD: Final = re.compile(r"^\[pod/([\w.-]{1,253})/[\w.-]{1,63}\] ?")
# "2026-11-20T18:00:00.123456789Z " is what `kubectl logs --timestamps` puts there.
_STAMP: Final = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?Z ")
_TIME: Final = re.compile(
    r"^(?:\[pod/\S{1,320}\] ?)?\[?(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?"
    r"(Z|[+-]\d\d:\d\d)?"
)
_LATEST: Final = datetime.max.replace(tzinfo=UTC)


class Role(StrEnum):
    """The role of a finding among the others."""

    CAUSE = "cause"
    ALSO = "also"
    """A failure of its own."""
    CONSEQUENCE = "consequence"
    NOTE = "note"


class Finding(BaseModel):
    """What one rule says, with the first line for which it holds; `line` counts from 1."""

    model_config = ConfigDict(frozen=True)

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
    taken_back: set[tuple[str, str, str]] = field(default_factory=set)


def explain(sources: Sequence[Source], context: Context = UNKNOWN) -> list[Finding]:
    """List every finding, the root cause first; empty where nothing says that something failed.

    The first is a consequence where the cause is not in these sources.
    """
    hits = _Hits()
    for source in sources:
        _collect(hits, source, context)
    found = _standing(hits)
    errors = [hit for hit in found if hit.rule.severity is Severity.ERROR]
    is_explained = any(hit.rule.rank < Rank.UNEXPLAINED for hit in errors)
    rest = _unexplained(sources, context, is_failed=bool(errors) and not is_explained)
    cause = min((hit.rule.rank for hit in found), default=Rank.NOTE)
    has_failed = bool(errors or rest)
    findings: list[Finding] = []
    for hit in found:
        if rest is not None and hit.rule.rank > Rank.UNEXPLAINED:
            findings.append(_quoted(rest, is_explained=is_explained))
            rest = None
        role = _role(hit.rule, cause, is_first=not findings, has_failed=has_failed)
        findings.append(_finding(hit, role, context))
    return findings if rest is None else [*findings, _quoted(rest, is_explained=is_explained)]


def _collect(hits: _Hits, source: Source, context: Context) -> None:
    for number, text in enumerate(source.lines, start=1):
        for match in matches(text, source.where):
            pod = _POD.match(text)
            seen = Seen(
                text=text,
                where=source.where,
                line=number,
                subject=pod[1] if pod else "",
                at=time_of(text),
            )
            _add(hits, source, seen, match, context)
    for seen in source.seen:
        for match in matches(seen.text, seen.where):
            _add(hits, source, seen, match, context)


def _add(hits: _Hits, source: Source, seen: Seen, match: Match, context: Context) -> None:
    rule = match.rule
    if context.num_efa is not None and context.num_efa < rule.least_efa:
        return
    if not rule.is_shown:
        hits.taken_back.add((rule.id, source.name, seen.subject))
        return
    # Which GPU and which node matters; which of many ranks complained does not.
    own = (source.name, seen.subject, *match.fields.values())
    key = (rule.id, *(own if rule.rank is Rank.HARDWARE else ()))
    if rule.unless:
        key = (rule.id, source.name, seen.subject)
    known = hits.by_key.get(key)
    if known is None:
        order = len(hits.by_key)
        hits.by_key[key] = _Hit(rule, source.name, seen, match.fields, match.start, order)
        return
    known.count += 1
    if (seen.at or _LATEST) < (known.seen.at or _LATEST):
        known.source, known.seen = source.name, seen
        known.fields, known.start = match.fields, match.start


def _standing(hits: _Hits) -> list[_Hit]:
    standing = [
        hit
        for hit in hits.by_key.values()
        if (hit.rule.unless, hit.source, hit.seen.subject) not in hits.taken_back
    ]
    return sorted(standing, key=lambda hit: (hit.rule.rank, hit.seen.at or _LATEST, hit.order))


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


def _unexplained(sources: Sequence[Source], context: Context, *, is_failed: bool) -> Finding | None:
    """Choose the line that names a failure best, where no rule explains one."""
    best = min(_named(sources, is_failed=is_failed), key=lambda each: each[0], default=None)
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


def _named(sources: Sequence[Source], *, is_failed: bool) -> Iterator[_Named]:
    for order, source in enumerate(sources):
        if Where.LOG not in source.where or not source.lines:
            continue
        lines, place, cause = FailureLines(), 0, ""
        for number, text in enumerate(source.lines, start=1):
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
    return _STAMP.sub("", _POD.sub("", text), count=1)


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

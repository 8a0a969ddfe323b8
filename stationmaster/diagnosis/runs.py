"""The root cause of a run's failure, from what the run remembers of it.

The card asks when it is drawn, so a run that failed long ago is explained by today's rules. The run
remembers facts: how containers and processes ended, and the lines of their logs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from stationmaster.diagnosis.evidence import is_of_a_library
from stationmaster.diagnosis.explaining import (
    UNEXPLAINED,
    Context,
    Finding,
    Role,
    Seen,
    Source,
    explain,
)
from stationmaster.diagnosis.matching import RULE, matches
from stationmaster.diagnosis.rules import LOG, POD, TEXT_LINE, Rank, Severity, Where
from stationmaster.domain.catalogue.instances import CATALOGUE
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import RunPhase
from stationmaster.domain.run.failures import Failure, first_cause
from stationmaster.domain.run.view import RunView

_ANYWHERE = TEXT_LINE | frozenset({Where.POD, Where.NODE})
# What remedies are made of.
_RESUME: Final = "/train resume"
_AGAIN: Final = "type its command again"
_CLAUSES: Final = re.compile(r"; |, or |, then ")


def explain_run(run: Run, context: Context) -> Finding | None:
    """Explain why a run failed or was set back, and what to type next; None without a reason.

    Where no rule explains it, `rule` is UNEXPLAINED and `evidence` the run's own sentence.
    """
    if not run.reason:
        return None
    failures = _failures(run)
    findings = [
        finding
        for finding in explain([*_of_pods(failures), _of_run(run)], context)
        if finding.role is not Role.NOTE
    ]
    if not findings or _is_worse_than_quoted(findings[0], failures, run.trainer_failure):
        return _quoted(run, context)
    return _with_possible_remedy(findings[0], run)


def context_of(view: RunView) -> Context:
    """Return what is known of a run, and of its cluster, for its explanation."""
    run = view.run
    instance = CATALOGUE.get(run.placement.instance_type)
    kept = view.cluster is not None and view.cluster.is_kept
    return Context(
        run=run.run_id,
        recipe=run.request.recipe,
        cluster=view.cluster.label if view.cluster is not None and kept else "NAME",
        instance=run.placement.instance_type,
        num_efa=instance.num_efa if instance is not None else None,
    )


def explain_setback(reason: str, context: Context) -> Finding | None:
    """Explain a sentence that says what set a run back; None where no rule does."""
    seen = [Seen(text=reason, where=_ANYWHERE)] if reason else []
    found = explain([Source(name=context.run, seen=seen)], context)
    return next((each for each in found if each.role is Role.CAUSE), None)


def _failures(run: Run) -> list[Failure]:
    """List failures before training was given up, where the run's reason is one of them."""
    if not any(failure.sentence in run.reason for failure in run.failures):
        return []
    until = run.entered(RunPhase.SAVING) or run.ended_at
    return [each for each in run.failures if until is None or each.at <= until]


def _of_pods(failures: list[Failure]) -> Iterator[Source]:
    for failure in failures:
        code = f"exit code {failure.exit_code}" if failure.exit_code else ""
        status = " ".join(part for part in (failure.reason, code, failure.message) if part)
        said = [(status, POD), (failure.process, LOG), (failure.line, LOG), (failure.evidence, LOG)]
        seen = [
            Seen(text=text, where=where, subject=failure.pod, at=failure.at)
            for text, where in said
            if text
        ]
        yield Source(name=failure.pod, seen=seen)


def _of_run(run: Run) -> Source:
    texts = dict.fromkeys(text for text in (run.reason, run.trainer_failure) if text)
    return Source(name=run.run_id, seen=[Seen(text=text, where=_ANYWHERE) for text in texts])


def _is_worse_than_quoted(finding: Finding, failures: list[Failure], trainer_said: str) -> bool:
    """Say whether the trainer's own sentence, or a line that no rule knows, says more."""
    if RULE[finding.rule].rank < Rank.UNKNOWN_SIGNAL:
        return False
    if trainer_said and not is_of_a_library(trainer_said):
        return True
    cause = first_cause(failures)
    if cause is None or cause.follows or not cause.line or is_of_a_library(cause.line):
        return False
    return not matches(cause.line, LOG)


def can_resume(run: Run) -> bool:
    """Say whether it has saved something with which `/train resume` continues it."""
    if run.request.program:
        return run.results is not None and run.results.has_output
    step = (
        run.last_checkpoint_step if run.last_checkpoint_step is not None else run.resumed_from_step
    )
    is_saved = run.results is not None or run.backups.newest is not None
    return step is not None and is_saved and run.request.uses_own_trainer


def _with_possible_remedy(finding: Finding, run: Run) -> Finding:
    """Remove the advice to resume a run that has saved no checkpoint."""
    if can_resume(run) or _RESUME not in finding.remedy:
        return finding
    others = [part for part in _CLAUSES.split(finding.remedy) if _RESUME not in part]
    if not any(_AGAIN in part for part in others):
        others.append(f"{_AGAIN}: it has saved no checkpoint to resume from")
    return finding.model_copy(update={"remedy": "; ".join(others)})


def _quoted(run: Run, context: Context) -> Finding:
    looks = f"`/train logs {context.run}` shows what its pods printed"
    again = f"`/train preflight {context.recipe}` checks the account, then type its command again"
    return Finding(
        rule=UNEXPLAINED,
        severity=Severity.ERROR,
        role=Role.CAUSE,
        source=run.run_id,
        line=None,
        evidence=run.reason,
        diagnosis="no rule explains this failure",
        remedy=looks if run.pods else again,
    )

"""Why a run that cannot take a step is given up. Pure.

A pod that does not run is judged, and a recovery that does not end. Pods that all run and take no
step are the trainer's to judge (training/watchdog.py): a time limit between two steps would also
end runs that compile or save for minutes, and containers that report no steps at all.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import RunPhase

# The first step after a restart loads a checkpoint and may compile: that many usual ones.
_STEPS_TO_RESUME: Final = 20


def why_stalled(run: Run, now: datetime, *, restart_limit: timedelta) -> str | None:
    """Say why the run is not worth waiting for any longer; None while it is.

    `restart_limit` is what a job may need from a loss to its next step.
    """
    if run.phase not in (RunPhase.RUNNING, RunPhase.RECOVERING):
        return None
    causes = _what_is_down(run)
    if causes:
        since = min(moment for moment, _ in causes)
        limit, why = restart_limit, "; ".join(sentence for _, sentence in causes[:2])
        others = len(causes) - 2
        why += f"; {others} more like it" if others > 0 else ""
    elif run.phase is RunPhase.RECOVERING and run.progress is not None:
        since = max(run.entered(RunPhase.RECOVERING) or now, run.set_back_at or run.requested_at)
        limit = restart_limit + _STEPS_TO_RESUME * timedelta(
            seconds=run.progress.step_time_s or 0.0
        )
        why = f"training did not recover ({run.reason}) although all pods run"
    else:
        return None
    waited = now - _waits_since(run, since)
    if waited <= limit:
        return None
    return f"{why}; no step in {waited.total_seconds() / 60:.0f} minutes"


def waits_until(run: Run, *, restart_limit: timedelta) -> datetime | None:
    """Return until when the run waits for another node in place of lost ones; None where not."""
    causes = _what_is_down(run) if run.phase is RunPhase.RECOVERING and run.lost_nodes else []
    if not causes:
        return None
    return _waits_since(run, min(moment for moment, _ in causes)) + restart_limit


def _waits_since(run: Run, since: datetime) -> datetime:
    """Time in a queue does not count, whatever was down before it."""
    return max(since, run.trainer_seen_at or since, run.admitted_at or since)


def _what_is_down(run: Run) -> list[tuple[datetime, str]]:
    """List since when and why; lost nodes come before the pods that they took with them."""
    if any(pod.is_finished for pod in run.pods.values()):
        return []  # the job is about to end
    pods = [
        (pod.down_since, pod.standing) for pod in run.pods.values() if pod.down_since is not None
    ]
    stranded = any(pod.node in run.lost_nodes for pod in run.pods.values())
    if not pods and not stranded:
        return []
    nodes = [
        (
            lost.at,
            f"spot node {lost.node} was taken back by AWS and no other came"
            if lost.node in run.taken_back
            else f"node {lost.node} is lost: {lost.reason}",
        )
        for lost in run.lost_nodes.values()
    ]
    return nodes + pods

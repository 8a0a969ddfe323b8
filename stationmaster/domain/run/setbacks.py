"""What sets a run back, and what shows that it has recovered. Pure."""

from __future__ import annotations

from typing import assert_never

from stationmaster.domain.run import events as ev
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.changes import REPORTED_LATE
from stationmaster.domain.run.failures import first_cause
from stationmaster.domain.sizes import counted

Setback = (
    ev.JobConditionChanged | ev.NodeLost | ev.PodChanged | ev.ProcessFailed | ev.WorkersRestarting
)


def why_set_back(run: Run, event: Setback) -> str | None:
    """Say why training cannot continue as it was; None where the event does not say so."""
    match event:
        case ev.WorkersRestarting():
            return event.reason
        case ev.JobConditionChanged():
            if event.condition != "Restarting":
                return None
            nodes = [pod.node for pod in run.pods.values() if pod.node in run.taken_back]
            return _taken_back(run, nodes[0]) if nodes else event.message
        case ev.NodeLost():
            return _taken_back(run, event.node) or event.sentence
        case ev.ProcessFailed():
            if event.lost_peer:
                return None
            node = run.pods[event.pod].node if event.pod in run.pods else ""
            return _taken_back(run, node) or _cause(run)
        case ev.PodChanged(exit_code=int(code)) if code != 0:
            return _taken_back(run, event.node) or _cause(run)
        case ev.PodChanged():
            # Once a pod has done its work the others may go.
            finished = any(pod.is_finished for pod in run.pods.values())
            pod = run.pods.get(event.pod)
            if pod is None or not pod.is_lost or finished:
                return None
            if run.request.min_nodes is not None and pod.node in run.left_nodes:
                return None  # it trains on without that node, whose pods are evicted minutes later
            return _taken_back(run, pod.node) or pod.standing
        case _:
            assert_never(event)


def has_recovered(run: Run, event: ev.ProgressReported | ev.TrainingResumed) -> bool:
    """Say whether a step proves that training continues; it may have been taken before the loss."""
    lost = any(pod.is_lost or pod.node in run.lost_nodes for pod in run.pods.values())
    if not lost or run.set_back_at is None:
        return True
    return event.at > run.set_back_at + REPORTED_LATE


def how_recovered(run: Run, event: ev.ProgressReported | ev.TrainingResumed) -> str:
    """Say where a run that was set back continues, and what had set it back."""
    after = f" after {run.reason}" if run.reason else ""
    match event:
        case ev.ProgressReported():
            return f"it goes on with step {event.step:,}{after}"
        case ev.TrainingResumed():
            reached = run.progress.step if run.progress is not None else 0
            again = counted(reached - event.step, "step") if reached > event.step else ""
            lost = f", {again} again," if again else ""
            return f"resumed from step {event.step:,}{lost}{after}"
        case _:
            assert_never(event)


def _taken_back(run: Run, node: str) -> str | None:
    return f"spot node {node} is taken back by AWS" if node in run.taken_back else None


def _cause(run: Run) -> str | None:
    cause = first_cause(run.failures)
    return None if cause is None else cause.sentence

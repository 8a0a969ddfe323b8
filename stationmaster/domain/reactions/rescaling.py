"""When a run on a range of nodes gets another number of them: a part of `reactions/run.py`. Pure.

Its job is ended, which lets the trainer save a checkpoint; the next attempt continues from that.
"""

from __future__ import annotations

from dataclasses import dataclass

from stationmaster.domain.reactions.leasing import ShareNodes
from stationmaster.domain.reactions.restarts import NextAttempt
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import RunPhase


@dataclass(frozen=True, slots=True)
class Rescale:
    """End the run's job, and make it anew on `nodes` nodes."""

    nodes: int
    why: str


def share_seen(run: Run, seen: ShareNodes) -> tuple[Rescale, ...]:
    """Change the run's number of nodes once it has saved a checkpoint in its newest attempt.

    So each attempt brings it further, however often others come and go.
    """
    is_same = seen.nodes == run.placement.nodes
    if is_same or why_fixed(run) or run.is_ending or run.phase is not RunPhase.RUNNING:
        return ()
    before = run.request.resume_from.step if run.request.resume_from is not None else 0
    if len(run.attempts) > 1:
        before = run.attempts[-2].reached
    has_saved = run.last_checkpoint_step is not None and run.last_checkpoint_step > before
    return (Rescale(seen.nodes, seen.why),) if has_saved else ()


def rescaling(run: Run) -> tuple[NextAttempt, ...]:
    """Return the attempt with another number of nodes, while that is to begin."""
    change = run.rescale
    if change is None:
        return ()
    return (NextAttempt(run.attempt_number + 1, change.sentence, nodes=change.nodes),)


def why_fixed(run: Run) -> str:
    """Say why a run keeps its number of nodes whoever asks, as the end of a sentence; "" if not."""
    if run.request.min_nodes is None:
        return f"it was started with nodes={run.request.nodes}, not with a range of nodes"
    if not run.request.uses_own_trainer:
        return "it runs a command, of which nobody knows whether it saves before its job ends"
    return ""

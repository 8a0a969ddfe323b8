"""Which phase of a run may follow which."""

from __future__ import annotations

from typing import Final

from stationmaster.domain.run.events import RunPhase

# Before training: phases that are not needed are skipped.
_IN_ORDER: Final = tuple(RunPhase)[: tuple(RunPhase).index(RunPhase.RUNNING)]
_TRAINED: Final = (RunPhase.SAVING, RunPhase.SUCCEEDED)
_MORE: Final[dict[RunPhase, tuple[RunPhase, ...]]] = {
    RunPhase.QUEUED: (RunPhase.RUNNING, *_TRAINED),  # only where Kueue held its job
    RunPhase.SUBMITTING: (RunPhase.QUEUED, RunPhase.RUNNING, RunPhase.SAVING),
    RunPhase.RUNNING: (RunPhase.QUEUED, RunPhase.RECOVERING, *_TRAINED),
    RunPhase.RECOVERING: (RunPhase.QUEUED, RunPhase.RUNNING, *_TRAINED),
    RunPhase.SAVING: (RunPhase.SUCCEEDED,),
}


def may_follow(phase: RunPhase, following: RunPhase) -> bool:
    """Say whether a run in `phase` may enter `following` next."""
    if phase.is_terminal:
        return False
    if following in (RunPhase.FAILED, RunPhase.STOPPED) or following in _MORE.get(phase, ()):
        return True
    if phase not in _IN_ORDER or following not in _IN_ORDER:
        return False
    return _IN_ORDER.index(phase) < _IN_ORDER.index(following)

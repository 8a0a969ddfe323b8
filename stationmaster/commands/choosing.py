"""Which runs a person may want to stop, where none is named."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from stationmaster.domain.errors import RunNotFound
from stationmaster.domain.run.aggregate import Run
from stationmaster.services import Services

# How far back a run is looked for that has not ended.
_MOST_SEARCHED: Final = 50


@dataclass(frozen=True)
class StopChoice:
    """The runs of a channel that may be meant, the newest first."""

    runs: tuple[Run, ...]
    are_own: bool
    """Whether they are the person's; otherwise they are everybody's, and none is the person's."""

    @property
    def only(self) -> Run | None:
        """The run that is meant beyond doubt."""
        return self.runs[0] if self.are_own and len(self.runs) == 1 else None

    @property
    def why(self) -> str:
        """Say why it is not clear which one is meant."""
        if self.are_own:
            return f"you have {len(self.runs)} active run{'s' if len(self.runs) > 1 else ''}"
        return "no active run of this channel is yours"


def stop_choice(services: Services, *, channel_id: str, user_id: str) -> StopChoice:
    """Return the person's own active runs, or everybody's where they have none.

    Raises:
        RunNotFound: no run is active.
    """
    newest = services.runs.list_recent(limit=_MOST_SEARCHED, channel_id=channel_id)
    active = tuple(run for run in newest if not run.phase.is_terminal)
    if not active:
        raise RunNotFound("no run is active in this channel; start one with /train RECIPE")
    own = tuple(run for run in active if run.request.user_id == user_id)
    return StopChoice(own or active, are_own=bool(own))

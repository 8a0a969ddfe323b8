"""A run's results in its state: saved, not saved so far, lost or given up. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import assert_never

from pydantic import BaseModel, ConfigDict

from stationmaster.domain.run import events as ev


class Results(BaseModel):
    """What a run has left in the artifacts bucket, verified from outside."""

    model_config = ConfigDict(frozen=True)

    uri: str
    num_files: int
    num_bytes: int
    manifest_sha256: str
    saved_at: datetime


ResultsEvent = (
    ev.ResultsSaved | ev.ResultsUnsaved | ev.SavingRequested | ev.ResultsLost | ev.ResultsGivenUp
)


def results_after(event: ResultsEvent, *, passes: int) -> dict[str, object]:
    """Return what an event changes in a run whose workflow had `passes` executions."""
    another = {"unsaved_reason": "", "passes": passes + 1}
    match event:
        case ev.ResultsSaved():
            results = Results(
                uri=event.uri,
                num_files=event.num_files,
                num_bytes=event.num_bytes,
                manifest_sha256=event.manifest_sha256,
                saved_at=event.at,
            )
            return {"results": results, "unsaved_reason": ""}
        case ev.ResultsUnsaved():
            return {"unsaved_reason": event.reason, "unsaved_at": event.at}
        case ev.SavingRequested():
            return another | {"saving_since": event.at}
        case ev.ResultsLost():
            return {"results_lost": event.reason, "unsaved_reason": ""}
        case ev.ResultsGivenUp():
            return another | {"results_given_up_by": event.user_id}
        case _:
            assert_never(event)

"""The outcome of pushing a run's model to the Hugging Face hub, in its state. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import assert_never

from pydantic import BaseModel, ConfigDict

from stationmaster.domain.run import events as ev


class Pushed(BaseModel):
    """A model on the hub, verified by what the hub says of its files."""

    model_config = ConfigDict(frozen=True)

    repository: str
    revision: str
    pushed_at: datetime


PushEvent = ev.ResultsPushed | ev.ResultsNotPushed


def push_after(event: PushEvent) -> dict[str, object]:
    """Return what an event changes in the state of a run."""
    match event:
        case ev.ResultsPushed():
            pushed = Pushed(
                repository=event.repository, revision=event.revision, pushed_at=event.at
            )
            return {"pushed": pushed, "not_pushed": ""}
        case ev.ResultsNotPushed():
            return {"not_pushed": event.reason}
        case _:
            assert_never(event)

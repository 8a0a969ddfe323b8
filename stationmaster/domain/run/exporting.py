"""The outcome of making a model of another framework's checkpoint, in the state of a run. Pure."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, ConfigDict


class Export(BaseModel):
    """The ended export; the result is saved in any case."""

    model_config = ConfigDict(frozen=True)

    ended_at: datetime
    reason: str = ""
    """Why the result has no model; "" where it has one."""

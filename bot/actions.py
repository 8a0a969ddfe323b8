"""The buttons' ids and values: what `bot.blocks` writes into them and the listeners read back."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from stationmaster.domain.ids import ClusterId, RunId

# A button's value takes 2,000 characters, of which JSON may double some.
MOST_TYPED: Final = 900


class ActionId(StrEnum):
    """Every interactive element of the app."""

    STOP_RUN = "stop_run"
    SHOW_LOGS = "show_logs"
    SAVE_AGAIN = "save_again"
    GIVE_UP_RESULTS = "give_up_results"
    LINK_RESULTS = "link_results"
    EXTEND_CLUSTER = "extend_cluster"
    DELETE_CLUSTER = "delete_cluster"
    APPROVE_RUN = "approve_run"
    REJECT_RUN = "reject_run"
    TYPE_COMMAND = "type_command"
    PLAN_COMMAND = "plan_command"
    RESUME_COMMAND = "resume_command"


class RunButton(BaseModel):
    """The value of a run's button; it comes back from Slack and is checked like any input."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run_id: RunId = Field(min_length=1, max_length=100)


class ClusterButton(BaseModel):
    """The value of a kept cluster's button; checked like that of a run's."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cluster_id: ClusterId = Field(min_length=1, max_length=100)


class CommandButton(BaseModel):
    """The value of a button that types a command; it is read and checked as one that was typed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    text: str = Field(min_length=1, max_length=MOST_TYPED)
    """What follows /train."""

"""The buttons' ids and values: what `bot.blocks` writes into them and the listeners read back."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final, TypeVar

from pydantic import Field, ValidationError

from stationmaster.commands import Actor
from stationmaster.domain.errors import BadCommand
from stationmaster.domain.frozen import Frozen
from stationmaster.domain.ids import ClusterId, RunId
from stationmaster.domain.teams import IN_TEAM
from stationmaster.log_keys import learn

# A button's value takes 2,000 characters, of which JSON may double some.
MOST_TYPED: Final = 900
# The notes of a form take 3,000.
MOST_FILLED: Final = 1_200


class ActionId(StrEnum):
    """Every interactive element of the app."""

    STOP_RUN = "stop_run"
    SHOW_LOGS = "show_logs"
    SAVE_AGAIN = "save_again"
    GIVE_UP_RESULTS = "give_up_results"
    LINK_RESULTS = "link_results"
    REPORT_RUN = "report_run"
    EXTEND_CLUSTER = "extend_cluster"
    DELETE_CLUSTER = "delete_cluster"
    APPROVE = "approve"
    REJECT = "reject"
    TYPE_COMMAND = "type_command"
    PLAN_COMMAND = "plan_command"
    RESUME_COMMAND = "resume_command"
    OPEN_FORM = "open_form"
    EDIT_RUN = "edit_run"
    EDIT_COMMAND = "edit_command"
    SHOW_STATUS = "show_status"
    SET_NOTICES = "set_notices"
    SET_BUDGET = "set_budget"


OPENS_FORM: Final = (ActionId.OPEN_FORM, ActionId.EDIT_RUN, ActionId.EDIT_COMMAND)
IN_HOME: Final = (ActionId.SET_NOTICES, ActionId.SET_BUDGET)
BUDGET_OF: Final = "budget:"
"""Begins the name of the block that chooses the budget of a channel; the channel's id follows."""
FORM: Final = "start_form"
"""The form of a start, among the forms of the app."""
FORM_FIELD: Final = "form_field"
"""Each of its fields; the field's name is that of its block."""


class FormNotes(Frozen, extra="forbid"):
    """What a form carries for the app, which comes back with it and is checked like any input."""

    channel: str = Field(default="", pattern=rf"^({IN_TEAM}[CDG][A-Z0-9]{{2,30}})?$")
    """Where the run is to be followed; "" where a field of the form says it."""
    words: str = Field(default="", max_length=MOST_FILLED)
    """What the form was opened with, as after /train."""
    shown: str = Field(default="", max_length=32)
    """What the plan that is shown would buy, as its fingerprint; "" where none is shown."""


class RunButton(Frozen, extra="forbid"):
    """The value of a run's button; it comes back from Slack and is checked like any input."""

    run_id: RunId = Field(min_length=1, max_length=100)


class ClusterButton(Frozen, extra="forbid"):
    """The value of a kept cluster's button; checked like that of a run's."""

    cluster_id: ClusterId = Field(min_length=1, max_length=100)


class DecisionButton(Frozen, extra="forbid"):
    """The value of Approve and Reject: of a run or a kept cluster, and of what is shown of it."""

    about: str = Field(min_length=1, max_length=100)
    shown: str = Field(max_length=32)
    """What would be bought, as its fingerprint."""


class CommandButton(Frozen, extra="forbid"):
    """The value of a button that types a command; it is read and checked as one that was typed."""

    text: str = Field(min_length=1, max_length=MOST_TYPED)
    """What follows /train."""


ButtonT = TypeVar("ButtonT", RunButton, ClusterButton, DecisionButton, CommandButton)


def actor_of(body: dict[str, Any], *, channel_id: str, via: str, words: str) -> Actor:
    """Return who has pressed a button, or sent a form."""
    user = body["user"]
    return Actor(
        user_id=str(user["id"]),
        channel_id=channel_id,
        team_id=str((body.get("team") or {}).get("id", "")),
        home_team_id=str(user["team_id"]),
        user_name=str(user["name"]),
        via=via,
        words=words,
    )


def run_of(action: dict[str, Any]) -> RunId:
    run_id = read_button(RunButton, action, instead="/train stop or /train logs").run_id
    learn(run_id=run_id)
    return run_id


def cluster_of(action: dict[str, Any]) -> ClusterId:
    cluster_id = read_button(ClusterButton, action, instead="/train cluster list").cluster_id
    learn(cluster_id=cluster_id)
    return cluster_id


def decision_of(action: dict[str, Any]) -> DecisionButton:
    return read_button(DecisionButton, action, instead="that of the newest card")


def read_button(kind: type[ButtonT], action: dict[str, Any], *, instead: str) -> ButtonT:
    try:
        return kind.model_validate_json(str(action.get("value")))
    except ValidationError as exc:
        raise BadCommand(
            f"this button is of an older version and cannot be read; use {instead}"
        ) from exc

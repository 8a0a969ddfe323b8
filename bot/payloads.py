"""The fields of a verified request: a typed command, a click, a form, a message.

Read once, by `lambda_handler` and `socket_mode`. Bolt and the listeners see only fields that are
declared here, so a request of another shape cannot surprise them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal
from urllib.parse import parse_qsl

from pydantic import Field, TypeAdapter

from stationmaster.domain.frozen import LATE, Frozen

Json = dict[str, Any]
Text = Annotated[str, Field(min_length=1)]
MOST_FIELDS: Final = 100
"""Blocks of a form: what Slack takes."""


class SlashCommand(Frozen):
    """`/train` as it was typed; the text is empty where nothing follows the command."""

    command: Text
    text: str = ""
    team_id: Text
    channel_id: Text
    user_id: Text
    user_name: str = ""
    trigger_id: Text
    response_url: str | None = None
    enterprise_id: str | None = None
    is_enterprise_install: bool = False


class Named(Frozen):
    """A team, a channel or a user."""

    id: Text
    name: str = ""


class Option(Frozen):
    """A choice of a list."""

    value: str = Field(max_length=150)


class Person(Named):
    """Who has pressed or sent something; in a shared channel, maybe of another organization."""

    team_id: str = ""


class Action(Frozen):
    """The element that was pressed."""

    type: str
    action_id: Text
    block_id: Text
    value: str | None = None
    selected_option: Option | None = None


class Pressed(Frozen):
    """Where and by whom something was pressed or sent."""

    team: Named | None = None
    enterprise: Named | None = None
    is_enterprise_install: bool | None = None
    user: Person


class Click(Pressed):
    """A press of a button in a message."""

    type: Literal["block_actions"]
    channel: Named
    actions: list[Action] = Field(min_length=1)
    trigger_id: str | None = None
    response_url: str | None = None


class Installation(Frozen):
    """The installation of the app that an event is for."""

    team_id: str | None = None
    enterprise_id: str | None = None
    is_enterprise_install: bool | None = None
    user_id: Text
    """The app's own user."""


class Message(Frozen):
    """A message that mentions the app, or one in a conversation with it; of bots and edits too."""

    type: Literal["app_mention", "message"]
    channel: Text
    ts: Text
    thread_ts: str | None = None
    user: str = ""
    user_team: str = ""
    text: str = ""
    subtype: str | None = None
    bot_id: str | None = None


class HomeOpened(Frozen):
    """Somebody looks at the app's Home, or at their messages with it."""

    type: Literal["app_home_opened"]
    user: Text
    tab: Literal["home", "messages"]


class Removed(Frozen):
    """A team has removed the app, or has revoked its tokens."""

    type: Literal["app_uninstalled", "tokens_revoked"]
    tokens: dict[str, list[str]] = Field(default_factory=dict)


class Event(Frozen):
    """The delivery of an event; a later delivery of the same has the same `event_id`."""

    type: Literal["event_callback"]
    team_id: Text
    event_id: Text = Field(max_length=100)
    event: Message | HomeOpened | Removed = Field(discriminator="type")
    authorizations: list[Installation] = Field(default_factory=list)
    enterprise_id: str | None = None
    is_enterprise_install: bool | None = None


class AddressCheck(Frozen):
    """Slack's check of the address for events; it expects the challenge back."""

    type: Literal["url_verification"]
    challenge: Text


class Filled(Frozen):
    """What stands in a field of a form; None for nothing."""

    value: str | None = Field(default=None, max_length=3_000)
    selected_option: Option | None = None
    selected_conversation: str | None = Field(default=None, max_length=50)


class State(Frozen):
    """The fields of a form, by block and element."""

    values: dict[str, dict[str, Filled]] = Field(default_factory=dict, max_length=MOST_FIELDS)


class Form(Frozen):
    """A form as somebody has it before them, with what the app has written into it for itself."""

    type: Literal["modal"]
    id: Text
    hash: Text
    callback_id: Text
    private_metadata: str = Field(default="", max_length=3_000)
    state: State = State()


class HomeView(Frozen):
    """Somebody's Home, in which a button was pressed."""

    type: Literal["home"]


class ViewClick(Pressed):
    """A press of a button, or a change that the app is told of, in a form or in Home."""

    type: Literal["block_actions"]
    actions: list[Action] = Field(min_length=1)
    view: Form | HomeView = Field(discriminator="type")
    trigger_id: str | None = None


class FormSent(Pressed):
    """A form that was sent."""

    type: Literal["view_submission"]
    view: Form


class CertificateCheck(Frozen):
    """Slack's check of the TLS certificate of a command's address; it expects a 200."""

    ssl_check: Literal["1"]


_EVENTS: Final[TypeAdapter[Event | AddressCheck]] = TypeAdapter(Event | AddressCheck, config=LATE)
Interaction = Click | ViewClick | FormSent
_INTERACTION: Final[TypeAdapter[Interaction]] = TypeAdapter(Interaction, config=LATE)
# What each kind of envelope of Socket Mode holds.
_ENVELOPES: Final[Mapping[str, TypeAdapter[Any]]] = {
    "slash_commands": TypeAdapter(SlashCommand),
    "interactive": _INTERACTION,
    "events_api": _EVENTS,
}


def read_body(body: bytes) -> Json | None:
    """Read the declared fields of a body, JSON or a form, or None when it is none of the above."""
    try:
        # UnicodeDecodeError and pydantic's ValidationError are ValueErrors too.
        if body.startswith(b"{"):  # a form begins with the name of a field
            return _EVENTS.validate_json(body).model_dump()
        form = dict(
            parse_qsl(
                body.decode(),
                keep_blank_values=True,
                strict_parsing=True,
                errors="strict",
            )
        )
        return _read(form).model_dump()
    except ValueError:
        return None


def read_envelope(kind: str, payload: Json) -> Json | None:
    """Read the declared fields of what came over Socket Mode; None when it is none of the above."""
    try:
        fields: Json = _ENVELOPES[kind].validate_python(payload).model_dump()
    except (KeyError, ValueError):
        return None
    return fields


def _read(form: dict[str, str]) -> SlashCommand | Interaction | CertificateCheck:
    if "payload" in form:
        return _INTERACTION.validate_json(form["payload"])
    if "ssl_check" in form:
        return CertificateCheck.model_validate(form)
    return SlashCommand.model_validate(form)

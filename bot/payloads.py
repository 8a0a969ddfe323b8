"""The fields of a verified request: what Slack sends for a typed command and for a click.

Read once, by `lambda_handler`. Bolt and the listeners see only fields that are declared here, so a
request of another shape cannot surprise them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal
from urllib.parse import parse_qsl

from pydantic import BaseModel, Field

Text = Annotated[str, Field(min_length=1)]


class SlashCommand(BaseModel):
    """`/train` as it was typed; the text is empty where nothing follows the command."""

    command: Text
    text: str = ""
    team_id: Text
    channel_id: Text
    user_id: Text
    user_name: str = ""
    trigger_id: Text
    response_url: str | None = None


class Named(BaseModel):
    """A team, a channel or a user."""

    id: Text
    name: str = ""


class Action(BaseModel):
    """The element that was pressed."""

    type: str
    action_id: Text
    block_id: Text
    value: str | None = None


class Click(BaseModel):
    """A press of a button in a message."""

    type: Literal["block_actions"]
    team: Named | None = None
    channel: Named
    user: Named
    actions: list[Action] = Field(min_length=1)
    trigger_id: str | None = None
    response_url: str | None = None


class CertificateCheck(BaseModel):
    """Slack's check of the TLS certificate of a command's address; it expects a 200."""

    ssl_check: Literal["1"]


def read_body(body: bytes) -> dict[str, Any] | None:
    """Read the declared fields of a form-encoded body, or None when it is none of the above."""
    try:
        # UnicodeDecodeError and pydantic's ValidationError are ValueErrors too.
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


def _read(form: dict[str, str]) -> SlashCommand | Click | CertificateCheck:
    if "payload" in form:
        return Click.model_validate_json(form["payload"])
    if "ssl_check" in form:
        return CertificateCheck.model_validate(form)
    return SlashCommand.model_validate(form)

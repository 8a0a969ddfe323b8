"""What a person does, delivered to the app as Slack delivers it: commands, clicks, messages.

Source of field names and shapes:
https://docs.slack.dev/interactivity/implementing-slash-commands and
https://docs.slack.dev/reference/interaction-payloads; of messages
https://docs.slack.dev/reference/events/app_mention
"""

from __future__ import annotations

import html
import re
import secrets
import time

from stationmaster.local.slack.methods import parse_ack, show_answer
from stationmaster.local.slack.records import (
    APP_ID,
    BOT_USER_ID,
    OPERATOR_ID,
    TEAM_DOMAIN,
    TEAM_ID,
    TRAINING_CHANNEL_ID,
    CommandResult,
    DeliveryResult,
    Json,
    Message,
    SlackRefusal,
)
from stationmaster.local.slack.tickets import ResponseTarget
from stationmaster.local.slack.view_interactions import (
    VERIFICATION_TOKEN,
    ViewInteractions,
    chosen_in,
    elements_of,
)
from stationmaster.local.slack.workspace import Workspace

# Slack's own commands that decide whether the app may post.
_CHANNEL_COMMANDS = ("/invite", "/remove", "/archive")


class Interactions(ViewInteractions):
    """Turns what people do into signed deliveries, and the answers into what they see."""

    def type_command(
        self,
        text: str,
        *,
        user: str = OPERATOR_ID,
        channel: str = TRAINING_CHANNEL_ID,
        thread_ts: str | None = None,
        deliveries: int = 1,
    ) -> CommandResult:
        """Send a slash command to the app and show what comes back to the person who typed it.

        `deliveries` > 1 sends the same command again with retry headers, as after a lost answer.
        """
        name, _, arguments = text.strip().partition(" ")
        if thread_ts is not None:
            return self._explain(
                "not_supported_in_thread",
                f"{name} is not supported in threads. Sorry!",
                channel=channel,
                user=user,
                thread_ts=thread_ts,
            )
        if self._endpoint.workspace.find_channel(channel).is_archived:
            return self._explain(
                "is_archived", "This channel has been archived.", channel=channel, user=user
            )
        if name in _CHANNEL_COMMANDS:
            answer = _act_on_channel(self._endpoint.workspace, name, arguments, channel=channel)
            return self._explain(None, answer, channel=channel, user=user)
        if name not in [known.command for known in self._endpoint.app.commands]:
            return self._explain(
                "unknown_command",
                f"{name} is not a valid command. In Slack, all messages that start with the "
                f'"/" character are interpreted as commands.',
                channel=channel,
                user=user,
            )
        fields = self._command_fields(name, arguments.strip(), user=user, channel=channel)
        results = tuple(self._deliver("slash_commands", fields, deliveries))
        return self._show_command_answer(name, results, user=user, channel=channel)

    def _command_fields(self, name: str, arguments: str, *, user: str, channel: str) -> Json:
        described = self._endpoint.workspace.find_channel(channel)
        person = self._endpoint.workspace.users[user]
        return {
            "token": VERIFICATION_TOKEN,
            "team_id": TEAM_ID,
            "team_domain": TEAM_DOMAIN,
            "channel_id": described.id,
            "channel_name": described.name,
            "user_id": user,
            "user_name": person.name,
            "command": name,
            "text": arguments,
            "api_app_id": APP_ID,
            "is_enterprise_install": "false",
            "response_url": self._response_url(ResponseTarget(described.id, user)),
            "trigger_id": self._endpoint.triggers.issue(user),
        }

    def _show_command_answer(
        self, name: str, results: tuple[DeliveryResult, ...], *, user: str, channel: str
    ) -> CommandResult:
        first = results[0]
        error = first.error
        if error is None:
            if not first.body.strip():
                return CommandResult(None, "", [], None, results)
            answer = parse_ack(first.body)
            try:
                target = ResponseTarget(channel, user)
                shown = show_answer(self._endpoint, answer, target, method="command_response")
            except SlackRefusal as refusal:
                error = refusal.error
            else:
                return CommandResult(None, shown.text, shown.blocks, shown.ts, results)
        return self._explain(
            error,
            f'{name} failed with the error "{error}"',
            channel=channel,
            user=user,
            deliveries=results,
        )

    def _explain(
        self,
        error: str | None,
        text: str,
        *,
        channel: str,
        user: str,
        thread_ts: str | None = None,
        deliveries: tuple[DeliveryResult, ...] = (),
    ) -> CommandResult:
        target = ResponseTarget(channel, user, thread_ts)
        shown = show_answer(self._endpoint, {"text": text}, target, method="command_response")
        return CommandResult(error, text, [], shown.ts, deliveries)

    def click(
        self,
        *,
        message_ts: str,
        channel: str,
        action_id: str,
        value: str | None = None,
        user: str = OPERATOR_ID,
    ) -> DeliveryResult:
        """Click a button or choose an option, confirm dialogs being answered with yes.

        Raises:
            SlackRefusal: `message_not_found`, `action_not_found`, `option_not_found`.
        """
        message = self._endpoint.workspace.get(channel, message_ts)
        block_id, element = _find_element(message, action_id)
        action = {
            "action_id": action_id,
            "block_id": block_id,
            "type": element["type"],
            "action_ts": self._endpoint.workspace.next_ts(),
            **chosen_in(element, value),
        }
        payload = self._action_payload(message, action, user=user)
        return self._interact(payload)

    def say(
        self,
        text: str,
        *,
        user: str = OPERATOR_ID,
        channel: str = TRAINING_CHANNEL_ID,
        thread_ts: str | None = None,
        deliveries: int = 1,
    ) -> tuple[Message, list[DeliveryResult]]:
        """Write a message; one that mentions the app, or is for it alone, is delivered as well.

        `deliveries` > 1 delivers the same event again.
        """
        workspace = self._endpoint.workspace
        place = workspace.find_channel(channel, user=user)
        mention = f"<@{BOT_USER_ID}>"
        handle = re.compile(rf"@{re.escape(workspace.users[BOT_USER_ID].name)}\b", re.IGNORECASE)
        written = handle.sub(mention, html.escape(text, quote=False))
        message = Message(
            ts=workspace.next_ts(),
            channel=place.id,
            user=user,
            text=written,
            thread_ts=thread_ts,
        )
        workspace.post(message)
        if BOT_USER_ID not in place.members or not (place.with_user or mention in written):
            return message, []
        event = message.to_json() | {"channel": place.id, "event_ts": message.ts}
        event["user_team"] = workspace.users[user].team_id
        kind = {"type": "app_mention"}
        if place.with_user:
            kind = {"type": "message", "channel_type": "im"}
        payload = _event_payload(event | kind)
        return message, self._deliver("events_api", payload, deliveries)

    def open_home(self, user: str) -> DeliveryResult:
        """Tell the app that somebody looks at its Home."""
        event = {
            "type": "app_home_opened",
            "user": user,
            "channel": self._endpoint.workspace.find_channel(user).id,
            "tab": "home",
            "event_ts": self._endpoint.workspace.next_ts(),
        }
        (result,) = self._deliver("events_api", _event_payload(event), 1)
        return result

    def _action_payload(self, message: Message, action: Json, *, user: str) -> Json:
        described = self._endpoint.workspace.find_channel(message.channel)
        # A message that others reply to carries its own timestamp as its thread's.
        thread_ts = None if message.thread_ts == message.ts else message.thread_ts
        target = ResponseTarget(message.channel, user, thread_ts)
        container: Json = {
            "type": "message",
            "message_ts": message.ts,
            "channel_id": message.channel,
            "is_ephemeral": message.ephemeral_to is not None,
        }
        if message.thread_ts is not None:
            container["thread_ts"] = message.thread_ts
        payload = self._payload("block_actions", user) | {
            "container": container,
            "trigger_id": self._endpoint.triggers.issue(user),
            "channel": {"id": described.id, "name": described.name},
            "state": {"values": {}},
            "response_url": self._response_url(target),
            "actions": [action],
        }
        if message.ephemeral_to is None:
            # Slack leaves the message out for ephemeral ones.
            payload["message"] = message.to_json()
        return payload

    def _deliver(self, kind: str, payload: Json, times: int) -> list[DeliveryResult]:
        """Deliver the same several times, as after a lost answer."""
        return [self._app.send(kind, payload, retry_num=number) for number in range(times)]

    def _response_url(self, target: ResponseTarget) -> str:
        hook_id = self._endpoint.response_urls.issue(target)
        return f"{self._endpoint.base_url()}/hooks/response/{hook_id}"


def _event_payload(event: Json) -> Json:
    return {
        "token": VERIFICATION_TOKEN,
        "team_id": TEAM_ID,
        "api_app_id": APP_ID,
        "event": event,
        "type": "event_callback",
        "event_id": f"Ev{secrets.token_hex(5).upper()}",
        "event_time": int(time.time()),
        "is_ext_shared_channel": False,
        "authorizations": [
            {
                "enterprise_id": None,
                "team_id": TEAM_ID,
                "user_id": BOT_USER_ID,
                "is_bot": True,
                "is_enterprise_install": False,
            }
        ],
    }


def _act_on_channel(workspace: Workspace, command: str, arguments: str, *, channel: str) -> str:
    """Carry out one of `_CHANNEL_COMMANDS`; return what the person reads."""
    if command == "/archive":
        return f"#{workspace.archive(channel).name} is archived: nobody can post in it any more."
    reference = arguments.strip()
    name = reference.removeprefix("@").lower()
    user = next((user for user in workspace.users.values() if user.name == name), None)
    if user is None:
        return (
            f'{command}: nobody is called "{reference[:60]}"; name a member, as in @stationmaster'
        )
    is_invited = command == "/invite"
    place = workspace.set_member(channel, user.id, is_member=is_invited).name
    return f"@{user.name} is {f'in #{place} now' if is_invited else f'not in #{place} any more'}."


def _find_element(message: Message, action_id: str) -> tuple[str, Json]:
    for block in message.blocks:
        for element in elements_of(block):
            if element.get("action_id") == action_id:
                return str(block["block_id"]), element
    raise SlackRefusal("action_not_found")

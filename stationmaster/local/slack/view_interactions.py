"""What a person does in a form or in the app's Home, delivered to the app as Slack delivers it.

Source of field names and shapes: https://docs.slack.dev/reference/interaction-payloads and
https://docs.slack.dev/reference/events/app_home_opened
"""

from __future__ import annotations

from collections.abc import Iterator

from stationmaster.local.slack.app_requests import AppRequests
from stationmaster.local.slack.endpoint import Endpoint
from stationmaster.local.slack.methods import parse_ack, show_view
from stationmaster.local.slack.records import (
    APP_ID,
    TEAM_DOMAIN,
    TEAM_ID,
    DeliveryResult,
    Json,
    SlackRefusal,
)
from stationmaster.local.slack.views import checked_view
from stationmaster.local.slack.workspace import Change

# Slack still sends the token that signatures replaced; no app may rely on it.
VERIFICATION_TOKEN = "local-verification-token"
_TEAM = {"id": TEAM_ID, "domain": TEAM_DOMAIN}


class ViewInteractions:
    """Turns what people do in views into deliveries, and the answers into what they see."""

    def __init__(self, *, endpoint: Endpoint, app: AppRequests) -> None:
        self._endpoint = endpoint
        self._app = app

    def act_in_view(
        self, view_id: str, *, block_id: str, action_id: str, values: Json, user: str
    ) -> DeliveryResult:
        """Press a button, or change a field whose block asks for that; "" is the person's Home.

        Raises:
            SlackRefusal: `not_found`, `action_not_found`.
        """
        opened = self._endpoint.views.get(view_id or user)
        elements = [
            element
            for block in opened.view["blocks"]
            if block["block_id"] == block_id
            if block["type"] != "input" or block.get("dispatch_action")
            for element in elements_of(block)
        ]
        element = next((each for each in elements if each.get("action_id") == action_id), None)
        if element is None:
            raise SlackRefusal("action_not_found")
        entered = values.get(block_id, {}).get(action_id) or chosen_in(element, None)
        action = {"action_id": action_id, "block_id": block_id, "type": element["type"]}
        payload = self._payload("block_actions", user) | {
            "container": {"type": "view", "view_id": opened.id},
            "trigger_id": self._endpoint.triggers.issue(user),
            "view": {**opened.to_json(), "state": {"values": values}},
            "actions": [action | entered | {"action_ts": self._endpoint.workspace.next_ts()}],
        }
        return self._interact(payload)

    def submit_view(self, view_id: str, *, values: Json, user: str) -> Json:
        """Submit a modal; return what the page must do: `{error}`, `{errors}` or `{}`."""
        described = self._endpoint.views.get(view_id).to_json()
        payload = {
            **self._payload("view_submission", user),
            "trigger_id": self._endpoint.triggers.issue(user),
            "view": {**described, "state": {"values": values}},
            "response_urls": [],
        }
        result = self._interact(payload)
        if result.error is not None:
            return {"error": result.error}
        answer = parse_ack(result.body) if result.body.strip() else {}
        match answer.get("response_action"):
            case "errors":
                return {"errors": answer.get("errors") or {}}
            case "update":
                try:
                    view = checked_view(answer.get("view"))
                except SlackRefusal as refusal:
                    return {"error": refusal.error}
                show_view(self._endpoint, self._endpoint.views.replace(view_id, view))
                return {}
        self.close_view(view_id)
        return {}

    def close_view(self, view_id: str) -> None:
        """Close a modal; the app asks for no notice of it."""
        opened = self._endpoint.views.take_down(view_id)
        self._endpoint.workspace.announce(
            Change("view_closed", {"id": view_id}, audience=opened.user)
        )

    def _payload(self, kind: str, user: str) -> Json:
        member = self._endpoint.workspace.users[user]
        name = member.name
        return {
            "type": kind,
            "team": _TEAM,
            "user": {"id": user, "username": name, "name": name, "team_id": member.team_id},
            "api_app_id": APP_ID,
            "token": VERIFICATION_TOKEN,
            "enterprise": None,
            "is_enterprise_install": False,
        }

    def _interact(self, payload: Json) -> DeliveryResult:
        return self._app.send("interactive", payload)


def elements_of(block: Json) -> Iterator[Json]:
    if block.get("type") == "actions":
        yield from block["elements"]
    for key in ("accessory", "element"):
        if isinstance(block.get(key), dict):
            yield block[key]


def chosen_in(element: Json, value: str | None) -> Json:
    match element["type"]:
        case "button":
            chosen: Json = {"text": element["text"]}
            sent = value if value is not None else element.get("value")
            if sent is not None:
                chosen["value"] = sent
            if "style" in element:
                chosen["style"] = element["style"]
            return chosen
        case _:
            for option in element["options"]:
                if option["value"] == value:
                    return {"selected_option": option}
            raise SlackRefusal("option_not_found")

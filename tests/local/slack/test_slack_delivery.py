"""What people do reaches the app as Slack delivers it: a real Bolt app is at the other end."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs

import httpx
import pytest
from slack_fixtures import (
    ANSWER_WITHIN_S,
    APP_TOKEN,
    BOT_TOKEN,
    HERE,
    Clock,
    actions,
    button,
    http_app,
    local_slack,
    page_cookies,
    page_socket,
    plain,
    refused,
    say,
    web_client,
    workspace_with_app,
)
from slack_sdk.webhook import WebhookClient
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from stationmaster.local.slack.limits import ACK_S
from stationmaster.local.slack.records import BOT_USER_ID, GENERAL_CHANNEL_ID, OPERATOR_ID
from stationmaster.local.slack.server import LocalSlack
from tests.support.patience import PATIENCE_S

STOP = button("stop", "Stop", value="run-1", style="danger")
BUTTON = actions(STOP)


@contextmanager
def workspace_answering(handle: Any, **overrides: Any) -> Iterator[LocalSlack]:
    """A local workspace that delivers to a plain HTTP handler."""
    with http_app(handle) as url, local_slack(delivery_url=url, **overrides) as slack:
        yield slack


class Recorder:
    """An app that records what it is sent and acknowledges it."""

    def __init__(self, *, status: int = 200, body: str = "") -> None:
        self.requests: list[tuple[dict[str, str], str]] = []
        self.status = status
        self.body = body

    def __call__(self, headers: dict[str, str], body: str) -> tuple[int, dict[str, str], str]:
        self.requests.append(({name.lower(): value for name, value in headers.items()}, body))
        return self.status, {}, self.body

    @property
    def forms(self) -> list[dict[str, str]]:
        return [
            {name: values[0] for name, values in parse_qs(body, keep_blank_values=True).items()}
            for _, body in self.requests
        ]


def test_command_form_has_every_field_that_slack_sends() -> None:
    recorder = Recorder()
    with workspace_answering(recorder) as slack:
        slack.type_command("/train tiny-llama")

        [form] = recorder.forms
        names = "token team_id team_domain channel_id channel_name user_id user_name command text"
        more = "api_app_id is_enterprise_install response_url trigger_id"
        assert set(form) == {*names.split(), *more.split()}
        assert (form["command"], form["text"]) == ("/train", "tiny-llama")
        assert form["response_url"].startswith(f"{slack.url}/hooks/response/")


def test_command_delivered_twice_is_the_same_command_with_retry_headers() -> None:
    recorder = Recorder()
    with workspace_answering(recorder) as slack:
        result = slack.type_command("/train tiny-llama", deliveries=2)

    (first, first_body), (second, second_body) = recorder.requests
    assert first_body == second_body
    assert "x-slack-retry-num" not in first
    assert second["x-slack-retry-num"] == "1"
    assert second["x-slack-retry-reason"] == "http_timeout"
    assert len(result.deliveries) == 2


def test_message_that_mentions_the_app_or_is_for_it_alone_is_delivered_as_an_event() -> None:
    recorder = Recorder()
    with workspace_answering(recorder) as slack:
        ts = say(slack)
        slack.say("no command")
        slack.say("@stationmaster stop a<b", thread_ts=ts, deliveries=2)
        slack.say("status", channel=f"D{OPERATOR_ID[1:]}")
        slack.say("@stationmaster stop", channel=GENERAL_CHANNEL_ID)  # the app is not there

        (headers, body), (retry, _), (_, direct) = recorder.requests
        assert headers["content-type"] == "application/json"
        assert retry["x-slack-retry-num"] == "1"
        event = json.loads(body)["event"]
        assert (event["type"], event["thread_ts"]) == ("app_mention", ts)
        assert event["text"] == f"<@{BOT_USER_ID}> stop a&lt;b"
        assert json.loads(direct)["event"]["channel_type"] == "im"


def test_socket_mode_takes_the_apps_token_and_a_ticket_that_is_good_once() -> None:
    with local_slack() as slack:
        opened = web_client(slack, token=APP_TOKEN).apps_connections_open(app_token=APP_TOKEN)
        call = web_client(slack).apps_connections_open
        assert refused(call, app_token=BOT_TOKEN) == "not_allowed_token_type"
        assert refused(web_client(slack, token=APP_TOKEN).auth_test) == "not_allowed_token_type"

        with connect(opened["url"]) as socket:
            assert json.loads(socket.recv())["type"] == "hello"
        with pytest.raises(InvalidStatus, match="403"), connect(opened["url"]):
            pass


def test_command_not_acknowledged_in_3_s_says_operation_timeout() -> None:
    released = threading.Event()

    def handle(headers: dict[str, str], body: str) -> tuple[int, dict[str, str], str]:
        released.wait(PATIENCE_S)
        return 200, {}, "too late"

    with workspace_answering(handle, answer_within_s=ACK_S) as slack:
        started = time.monotonic()
        result = slack.type_command("/train tiny-llama")
        waited_s = time.monotonic() - started
        released.set()

        assert result.error == "operation_timeout"
        assert waited_s > 2.9
        assert [message.text for message in slack.ephemerals()] == [
            '/train failed with the error "operation_timeout"'
        ]


def test_command_answer_with_invalid_blocks_is_not_shown() -> None:
    answer = json.dumps({"text": "x", "blocks": [{"type": "section"}]})
    with workspace_answering(Recorder(body=answer)) as slack:
        result = slack.type_command("/train help")

        assert result.error == "invalid_blocks"
        assert slack.ephemerals()[0].text == '/train failed with the error "invalid_blocks"'


@pytest.mark.parametrize(
    ("typed", "error"),
    [("/train stop", "not_supported_in_thread"), ("/deploy now", "unknown_command")],
)
def test_command_that_slack_itself_refuses_is_not_delivered(typed: str, error: str) -> None:
    recorder = Recorder()
    with workspace_answering(recorder) as slack:
        parent = say(slack)

        result = slack.type_command(typed, thread_ts=parent if "thread" in error else None)

        assert (result.error, recorder.requests) == (error, [])


def response_url_of(slack: LocalSlack, recorder: Recorder) -> str:
    """Return the response URL of a click on a posted message."""
    ts = say(slack, blocks=[BUTTON])
    slack.click(message_ts=ts, channel=HERE, action_id="stop")
    return str(json.loads(recorder.forms[-1]["payload"])["response_url"])


def test_response_url_is_good_for_five_uses() -> None:
    recorder = Recorder()
    with workspace_answering(recorder) as slack:
        hook = WebhookClient(response_url_of(slack, recorder))

        answers = [hook.send(text=str(number)) for number in range(6)]

        assert [answer.status_code for answer in answers] == [200] * 5 + [404]
        assert answers[-1].body == "used_url"
        assert len(slack.ephemerals()) == 5


def test_response_url_expires_after_30_minutes() -> None:
    recorder = Recorder()
    clock = Clock(time.time())
    with workspace_answering(recorder, clock=clock) as slack:
        hook = WebhookClient(response_url_of(slack, recorder))
        clock.now += 30 * 60 - 1
        in_time = hook.send(text="a")
        clock.now += 2

        late = hook.send(text="b")

        assert (in_time.status_code, late.status_code, late.body) == (200, 404, "expired_url")
        assert [each.text for each in slack.ephemerals()] == ["a"]


MODAL = {
    "type": "modal",
    "callback_id": "launch",
    "title": plain("Launch"),
    "submit": plain("Start"),
    "blocks": [
        {
            "type": "input",
            "block_id": "nodes",
            "label": plain("Nodes"),
            "element": {"type": "plain_text_input", "action_id": "count"},
        }
    ],
}


def test_trigger_opens_one_view_within_3_s() -> None:
    recorder = Recorder()
    clock = Clock(time.time())
    with workspace_answering(recorder, clock=clock) as slack:
        client = web_client(slack)
        slack.type_command("/train form")
        slack.type_command("/train form")
        first, second = (form["trigger_id"] for form in recorder.forms)
        clock.now += ANSWER_WITHIN_S - 0.1
        opened = client.views_open(trigger_id=first, view=MODAL)
        clock.now += 0.2

        errors = [
            refused(client.views_open, trigger_id=trigger, view=MODAL)
            for trigger in (first, second, "1.2")
        ]

        assert opened["view"]["callback_id"] == "launch"
        assert errors == ["trigger_exchanged", "expired_trigger_id", "invalid_trigger_id"]


def test_view_submission_shows_errors_then_closes() -> None:
    with workspace_with_app() as (slack, app):
        submitted: list[str] = []

        @app.command("/train")
        def train(ack: Any, client: Any, body: dict[str, Any]) -> None:
            client.views_open(trigger_id=body["trigger_id"], view=MODAL)
            ack()

        @app.view("launch")
        def launch(ack: Any, view: dict[str, Any]) -> None:
            value = view["state"]["values"]["nodes"]["count"]["value"]
            submitted.append(value)
            if value == "2":
                ack()
            else:
                ack(response_action="errors", errors={"nodes": "expected a number"})

        opened: list[str] = []

        def submit(value: str) -> dict[str, Any]:
            field = {"count": {"type": "plain_text_input", "value": value}}
            fields = {"user": OPERATOR_ID, "view_id": opened[0], "values": {"nodes": field}}
            address = f"{slack.url}/local/submit"
            return dict(httpx.post(address, json=fields, cookies=page_cookies(slack)).json())

        slack.type_command("/train form")
        with page_socket(slack) as page:
            snapshot = json.loads(page.recv(timeout=PATIENCE_S))["payload"]
        opened += [view["id"] for view in snapshot["views"]]
        refused, accepted, again = submit("two"), submit("2"), submit("2")

        assert refused == {"ok": True, "errors": {"nodes": "expected a number"}}
        assert accepted == {"ok": True}
        assert again == {"ok": False, "error": "not_found"}
        assert submitted == ["two", "2"]

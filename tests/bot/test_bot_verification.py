"""Requests that Slack did not sign get 401, malformed ones 400; neither is answered or acted on."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from urllib.parse import quote, urlencode

import pytest
from bot_world import CHANNEL, SIGNING_SECRET, TEAM, USER, signature, started_workflows
from hypothesis import assume, given
from hypothesis import strategies as st
from slack_bolt import BoltRequest

from bot.lambda_handler import handler
from bot.payloads import read_body
from bot.verification import verified_body

NOW = datetime(2026, 1, 2, 9, 0, tzinfo=UTC)
STAMP = str(int(NOW.timestamp()))

STAMP_HEADER, SIGNATURE_HEADER = "x-slack-request-timestamp", "x-slack-signature"
TIMESTAMPS = (
    *("abc", "nan", "inf", "", "9" * 400, "-1767344400", "+1767344400", "1767344400.0", "\0"),
    *("1_767_344_400", " 1767344400 ", "1767344400\n", "1767344400,1767344400"),
    "\u0661\u0667\u0666\u0667\u0663\u0664\u0664\u0664\u0660\u0660",
)
ZEROS = "0" * 64
SIGNATURES = (
    *("", "v0=00", f"v0=0{ZEROS}", f"v0={ZEROS}", f"v1={ZEROS}", f"v0={ZEROS},v0={ZEROS}"),
    *("v0=" + "\u00e9" * 64, "v0=\ud800"),
)


def click(url: str) -> dict:
    """A click that would be answered at `url` if anybody believed it."""
    return {
        "type": "block_actions",
        "team": {"id": TEAM},
        "enterprise": None,
        "user": {"id": USER},
        "channel": {"id": CHANNEL},
        "response_url": url,
        "actions": [
            {"type": "button", "action_id": "stop_run", "block_id": "b", "value": '{"run_id": "x"}'}
        ],
    }


def click_body(url: str) -> bytes:
    return urlencode({"payload": json.dumps(click(url))}).encode()


def verify(event):
    return verified_body(event, signing_secret=SIGNING_SECRET, now=NOW)


def signed_event(body: bytes, *, timestamp: str = STAMP, secret: str = SIGNING_SECRET) -> dict:
    return {
        "headers": {
            "X-Slack-Request-Timestamp": timestamp,
            "X-Slack-Signature": signature(secret, timestamp, body),
        },
        "body": base64.b64encode(body).decode(),
        "isBase64Encoded": True,
    }


# -- what anybody can send, through the shipped handler -------------------------------------------


@pytest.fixture
def refused(person, slack, services, settings):
    """Deliver an event that must be refused with 401, and look at everything it could have done."""

    def deliver(change):
        event = person.event(click_body(f"{slack.url}/response/stolen"))
        change(event)
        answer = handler(event, None)
        assert (answer["statusCode"], answer["body"]) == (401, "not signed by Slack")
        assert (slack.responses, slack.calls, slack.visits) == ([], [], [])
        assert (services.runs.list_recent(), started_workflows(settings)) == ([], [])

    return deliver


def test_click_that_is_not_signed_is_refused_and_answered_nowhere(refused):
    for timestamp in TIMESTAMPS:
        refused(lambda event, t=timestamp: event["headers"].update({STAMP_HEADER: t}))
    for value in SIGNATURES:
        refused(lambda event, v=value: event["headers"].update({SIGNATURE_HEADER: v}))
    for name in (STAMP_HEADER, SIGNATURE_HEADER):
        refused(lambda event, n=name: event["headers"].pop(n))
        refused(lambda event, n=name: event["headers"].update({n: [event["headers"][n]]}))
        refused(lambda event, n=name: event["headers"].update({n.upper(): event["headers"][n]}))
    refused(lambda event: event.update(headers=None))
    refused(lambda event: event.pop("headers"))


# -- what Slack signed and makes no sense ---------------------------------------------------------

MALFORMED = [
    b"",
    b"\xff\xfe",
    b"command=%2Ftrain",
    b"command=%2Ftrain&text=%FF&team_id=T&channel_id=C&user_id=U&trigger_id=t",
    b'{"type": "event_callback"}',
    b"payload=null",
    b"payload=%7B%7D",
    b"payload=%7B%22type%22%3A%22block_actions%22%7D",
    b"payload=%7B%22type%22%3A%22view_submission%22%7D",
    b"payload=" + b"[" * 100_000,
    b"payload=" + b"9" * 5_000,
    *(
        urlencode({"payload": json.dumps(click("") | change)}).encode()
        for change in (
            *({"team": 5}, {"user": None}, {"channel": "C1"}, {"channel": {}}, {"actions": []}),
            *(
                {"actions": "press"},
                {"actions": [{"action_id": 1}]},
                {"response_url": ["https://"]},
            ),
        )
    ),
]


def test_signed_and_malformed_body_is_400_and_answered_nowhere(person, slack):
    statuses = [handler(person.event(body), None)["statusCode"] for body in MALFORMED]

    assert statuses == [400] * len(MALFORMED)
    assert (slack.responses, slack.calls) == ([], [])


def test_command_with_the_word_payload_is_a_command(person):
    answer = person.type("payload payload=null")

    assert answer["statusCode"] == 200
    assert "payload" in answer["answer"]["text"]


def test_certificate_check_is_acknowledged(person):
    answer = handler(person.event(b"ssl_check=1&token=t"), None)

    assert (answer["statusCode"], answer["body"]) == (200, "")


# -- properties of the verifier -------------------------------------------------------------------

anything = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=80)
    | st.sampled_from([*TIMESTAMPS, *SIGNATURES, STAMP])
    | st.lists(st.text(max_size=5), max_size=2)
)
names = st.sampled_from(
    [STAMP_HEADER, STAMP_HEADER.upper(), SIGNATURE_HEADER, SIGNATURE_HEADER.title(), "host"]
)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "headers": st.dictionaries(names | st.text(max_size=9), anything, max_size=6)
            | anything,
            "body": anything,
            "isBase64Encoded": anything,
        },
    )
)
def test_verifier_refuses_whatever_is_not_signed(event):
    assert verify(event) is None


@given(st.binary(max_size=200), st.text(st.characters(codec="utf-8"), max_size=200))
def test_verifier_gives_back_exactly_the_signed_bytes(body, text):
    plain = signed_event(text.encode()) | {"body": text, "isBase64Encoded": False}

    assert verify(signed_event(body)) == body
    assert verify(plain) == text.encode()


@given(st.binary(max_size=100), st.binary(max_size=100), st.integers(-300, 300))
def test_verifier_refuses_another_body_timestamp_or_secret(body, other, shift):
    assume(body != other and shift != 0)
    event = signed_event(body)
    headers = event["headers"]
    shifted = str(int(STAMP) + shift)

    assert verify(event | {"body": base64.b64encode(other).decode()}) is None
    assert verify(event | {"body": event["body"] + "!"}) is None
    assert verify(event | {"headers": headers | {"X-Slack-Request-Timestamp": shifted}}) is None
    assert verify(signed_event(body, secret=SIGNING_SECRET + "x")) is None


@pytest.mark.parametrize(
    ("age_s", "good"), [(0, True), (300, True), (-300, True), (301, False), (-301, False)]
)
def test_verifier_takes_five_minutes_in_both_directions(age_s, good):
    event = signed_event(b"a=1", timestamp=str(int(STAMP) - age_s))

    assert (verify(event) is not None) is good


field_names = st.sampled_from(
    [
        *("type", "team", "user", "channel", "actions", "id", "response_url", "response_urls"),
        *("view", "event", "authorizations", "enterprise", "message", "action_id", "block_id"),
    ]
)
json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(field_names, inner, max_size=4),
    max_leaves=12,
)


@given(
    st.binary(max_size=60) | json_values.map(lambda v: b"payload=" + quote(json.dumps(v)).encode())
)
def test_reading_a_body_never_raises(body):
    fields = read_body(body)

    assert fields is None or BoltRequest(body=fields, mode="socket_mode").body == fields


@given(st.dictionaries(field_names, json_values, max_size=5))
def test_click_with_any_other_fields_is_read_by_bolt(more):
    payload = more | click("https://hooks.slack.com/actions/1")

    fields = read_body(urlencode({"payload": json.dumps(payload)}).encode())

    assert fields is not None
    assert BoltRequest(body=fields, mode="socket_mode").context.user_id == USER

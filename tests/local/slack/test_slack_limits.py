"""Slack's limits: what the local workspace refuses, and that an independent library agrees."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import slackblocks
from slack_fixtures import Clock, local_slack, web_client
from slack_sdk.errors import SlackApiError

from stationmaster.local.slack import TRAINING_CHANNEL_ID, LocalSlack, SlackRefusal, limits
from stationmaster.local.slack.blocks import check_blocks
from stationmaster.local.slack.views import checked_view

Json = dict[str, Any]


@pytest.fixture(scope="module")
def slack() -> Iterator[LocalSlack]:
    with local_slack() as workspace:
        yield workspace


def plain(text: str) -> Json:
    return {"type": "plain_text", "text": text}


def mrkdwn(text: str) -> Json:
    return {"type": "mrkdwn", "text": text}


def section(text: str) -> Json:
    return {"type": "section", "text": mrkdwn(text)}


def button(number: int = 0, **fields: Any) -> Json:
    return {"type": "button", "action_id": f"a{number}", "text": plain("Go"), **fields}


def actions(*elements: Json) -> Json:
    return {"type": "actions", "elements": list(elements)}


def confirm(**fields: Any) -> Json:
    return {"title": plain("Sure?"), "text": mrkdwn("Really"), **fields}


def of_button(place: str = "", **fields: Any) -> tuple[list[Json], str]:
    return [actions(button(**fields))], f"/elements/0/{place}"


Build = Callable[[int], tuple[list[Json], str]]
# At the limit a list of blocks passes, one above it is refused, with a finding that points at the
# place in the first block; an independent library has the same limit where it has one.
AT_LIMIT: dict[str, tuple[Build, limits.Limit, Callable[[int], Any] | None]] = {
    "block_id": (
        lambda n: ([{"type": "divider", "block_id": "x" * n}], "/block_id"),
        limits.BLOCK_ID,
        lambda n: slackblocks.DividerBlock(block_id="x" * n),
    ),
    "section": (
        lambda n: ([section("x" * n)], "/text/text"),
        limits.SECTION_TEXT,
        lambda n: slackblocks.SectionBlock("x" * n),
    ),
    "fields": (
        lambda n: ([{"type": "section", "fields": [mrkdwn("x")] * n}], "/fields"),
        limits.SECTION_FIELDS,
        lambda n: slackblocks.SectionBlock(fields=["x"] * n),
    ),
    "field": (
        lambda n: ([{"type": "section", "fields": [mrkdwn("x" * n)]}], "/fields/0/text"),
        limits.SECTION_FIELD_TEXT,
        lambda n: slackblocks.SectionBlock(fields=["x" * n]),
    ),
    "header": (
        lambda n: ([{"type": "header", "text": plain("x" * n)}], "/text/text"),
        limits.HEADER_TEXT,
        lambda n: slackblocks.HeaderBlock("x" * n),
    ),
    "context": (
        lambda n: ([{"type": "context", "elements": [mrkdwn("x")] * n}], "/elements"),
        limits.CONTEXT_ELEMENTS,
        lambda n: slackblocks.ContextBlock([slackblocks.Text("x") for _ in range(n)]),
    ),
    "actions": (
        lambda n: ([actions(*map(button, range(n)))], "/elements"),
        limits.ACTIONS_ELEMENTS,
        lambda n: slackblocks.ActionsBlock(
            [slackblocks.Button("Go", action_id=f"a{number}") for number in range(n)]
        ),
    ),
    "button text": (
        lambda n: of_button("text/text", text=plain("x" * n)),
        limits.BUTTON_TEXT,
        lambda n: slackblocks.Button("x" * n, action_id="a"),
    ),
    "button value": (
        lambda n: of_button("value", value="x" * n),
        limits.BUTTON_VALUE,
        lambda n: slackblocks.Button("Go", action_id="a", value="x" * n),
    ),
    "action_id": (
        lambda n: of_button("action_id", action_id="x" * n),
        limits.ACTION_ID,
        lambda n: slackblocks.Button("Go", action_id="x" * n),
    ),
    "image alt_text": (
        lambda n: (
            [{"type": "image", "image_url": "http://x/y", "alt_text": "x" * n}],
            "/alt_text",
        ),
        limits.IMAGE_ALT_TEXT,
        lambda n: slackblocks.ImageBlock(image_url="http://x/y.png", alt_text="x" * n),
    ),
    "confirm title": (
        lambda n: of_button("confirm/title/text", confirm=confirm(title=plain("x" * n))),
        limits.CONFIRM_TITLE,
        None,
    ),
    "confirm text": (
        lambda n: of_button("confirm/text/text", confirm=confirm(text=mrkdwn("x" * n))),
        limits.CONFIRM_TEXT,
        None,
    ),
    "confirm button": (
        lambda n: of_button("confirm/confirm/text", confirm=confirm(confirm=plain("x" * n))),
        limits.CONFIRM_BUTTON,
        None,
    ),
}


@pytest.mark.parametrize("name", AT_LIMIT)
def test_block_one_above_the_limit_is_refused(name: str) -> None:
    build, limit, other = AT_LIMIT[name]
    assert check_blocks(build(limit.maximum)[0]) == []
    blocks, place = build(limit.maximum + 1)

    [finding] = check_blocks(blocks)

    assert finding.endswith(f"[json-pointer:/blocks/0{place}]")
    if other is not None:
        other(limit.maximum)
        with pytest.raises(slackblocks.InvalidUsageError):
            other(limit.maximum + 1)


def test_more_blocks_than_a_message_may_have_are_refused() -> None:
    most = [{"type": "divider"}] * limits.BLOCKS_PER_MESSAGE.maximum

    assert check_blocks(most) == []
    assert check_blocks([*most, {"type": "divider"}])[0].endswith("[json-pointer:/blocks]")


@pytest.mark.parametrize(
    ("blocks", "finding"),
    [
        ([{"type": "chart"}], "unsupported type: chart [json-pointer:/blocks/0/type]"),
        (
            [{"type": "alert", "text": mrkdwn("x")}],
            "unsupported type: alert [json-pointer:/blocks/0/type]",
        ),
        ([section("")], "must be more than 0 characters [json-pointer:/blocks/0/text/text]"),
        (
            [{"type": "section"}],
            "missing required field: text or fields [json-pointer:/blocks/0]",
        ),
        (
            [{"type": "header", "text": mrkdwn("x")}],
            "unsupported type: mrkdwn; expected plain_text [json-pointer:/blocks/0/text/type]",
        ),
        (
            [actions(button(1), button(1))],
            "action_id already in use in this block: a1 "
            "[json-pointer:/blocks/0/elements/1/action_id]",
        ),
        (
            [{"type": "divider", "block_id": "b"}, {"type": "divider", "block_id": "b"}],
            "block_id already in use: b [json-pointer:/blocks/1/block_id]",
        ),
        (
            [{"type": "image", "image_url": "http://x/y.png"}],
            "missing required field: alt_text [json-pointer:/blocks/0]",
        ),
        (
            [{"type": "divider", "colour": "red"}],
            "invalid additional property: colour [json-pointer:/blocks/0]",
        ),
        (
            [actions(button(style="warning"))],
            "must be a valid enum value: warning; expected primary or danger "
            "[json-pointer:/blocks/0/elements/0/style]",
        ),
        ([actions()], "no fewer than 1 items allowed [json-pointer:/blocks/0/elements]"),
        (["text"], "must be an object [json-pointer:/blocks/0]"),
    ],
)
def test_blocks_malformed_are_refused_with_what_is_wrong(blocks: list[Any], finding: str) -> None:
    assert check_blocks(blocks) == [finding]


def test_post_invalid_blocks_carries_slacks_error_messages(slack: LocalSlack) -> None:
    with pytest.raises(SlackApiError) as refused:
        web_client(slack).chat_postMessage(
            channel=TRAINING_CHANNEL_ID, text="x", blocks=[section("")]
        )

    answer = refused.value.response
    assert answer["error"] == "invalid_blocks"
    assert answer["response_metadata"]["messages"] == [
        "[ERROR] must be more than 0 characters [json-pointer:/blocks/0/text/text]"
    ]


def test_post_blocks_too_long_in_total_are_refused(slack: LocalSlack) -> None:
    blocks = [section("x" * 2700) for _ in range(5)]

    with pytest.raises(SlackApiError) as refused:
        web_client(slack).chat_postMessage(channel=TRAINING_CHANNEL_ID, text="x", blocks=blocks)

    assert refused.value.response["error"] == "msg_blocks_too_long"


@pytest.mark.parametrize(
    "view",
    [
        {"type": "home", "title": plain("x"), "blocks": []},
        {"type": "modal", "title": plain("x" * 25), "blocks": []},
        {"type": "modal", "title": plain("x"), "blocks": [], "private_metadata": "x" * 3001},
        {"type": "modal", "title": plain("x"), "blocks": [{"type": "divider"}] * 101},
        {
            "type": "modal",
            "title": plain("x"),
            "blocks": [
                {"type": "input", "label": plain("x"), "element": {"type": "plain_text_input"}}
            ],
        },
    ],
    ids=["not a modal", "title", "private_metadata", "blocks", "input without submit"],
)
def test_view_beyond_the_limits_is_refused(view: Json) -> None:
    with pytest.raises(SlackRefusal, match="invalid_arguments"):
        checked_view(view)


@pytest.fixture
def clock() -> Clock:
    return Clock(1_700_000_000.0)


@pytest.fixture
def limited(clock: Clock) -> Iterator[LocalSlack]:
    with local_slack(enforce_rate_limits=True, clock=clock) as workspace:
        yield workspace


def test_post_message_burst_is_allowed_then_one_a_second(limited: LocalSlack, clock: Clock) -> None:
    client = web_client(limited)
    for _ in range(limits.POST_MESSAGE_BURST.maximum):
        client.chat_postMessage(channel=TRAINING_CHANNEL_ID, text="x")

    with pytest.raises(SlackApiError) as refused:
        client.chat_postMessage(channel=TRAINING_CHANNEL_ID, text="x")

    assert refused.value.response.status_code == 429
    assert refused.value.response["error"] == "ratelimited"
    assert refused.value.response.headers["Retry-After"] == "1"
    clock.now += 1
    client.chat_postMessage(channel=TRAINING_CHANNEL_ID, text="x")
    assert len(limited.messages()) == limits.POST_MESSAGE_BURST.maximum + 1


def test_chat_update_is_limited_to_fifty_in_any_minute(limited: LocalSlack, clock: Clock) -> None:
    client = web_client(limited)
    ts = client.chat_postMessage(channel=TRAINING_CHANNEL_ID, text="x")["ts"]
    for number in range(50):
        client.chat_update(channel=TRAINING_CHANNEL_ID, ts=ts, text=str(number))
    clock.now += 20

    with pytest.raises(SlackApiError) as refused:
        client.chat_update(channel=TRAINING_CHANNEL_ID, ts=ts, text="one too many")

    assert refused.value.response.headers["Retry-After"] == "40"
    assert limited.messages()[0].text == "49"
    clock.now += 40
    client.chat_update(channel=TRAINING_CHANNEL_ID, ts=ts, text="later")
    assert limited.messages()[0].text == "later"

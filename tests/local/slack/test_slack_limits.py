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


def of_button(**fields: Any) -> list[Json]:
    return [actions(button(**fields))]


def of_section(**fields: Any) -> list[Json]:
    return [{"type": "section", **fields}]


def image(alt_text: str) -> Json:
    return {"type": "image", "image_url": "http://x/y", "alt_text": alt_text}


# At the limit a list of blocks passes, one above it is refused, with a finding that points at the
# place in the first block; an independent library has the same limit where it has one.
AT_LIMIT: list[tuple[int, Callable[[int], list[Any]], str, Callable[[int], Any] | None]] = [
    (
        255,
        lambda n: [{"type": "divider", "block_id": "x" * n}],
        "/block_id",
        lambda n: slackblocks.DividerBlock(block_id="x" * n),
    ),
    (
        3000,
        lambda n: [section("x" * n)],
        "/text/text",
        lambda n: slackblocks.SectionBlock("x" * n),
    ),
    (
        10,
        lambda n: of_section(fields=[mrkdwn("x")] * n),
        "/fields",
        lambda n: slackblocks.SectionBlock(fields=["x"] * n),
    ),
    (
        2000,
        lambda n: of_section(fields=[mrkdwn("x" * n)]),
        "/fields/0/text",
        lambda n: slackblocks.SectionBlock(fields=["x" * n]),
    ),
    (
        150,
        lambda n: [{"type": "header", "text": plain("x" * n)}],
        "/text/text",
        lambda n: slackblocks.HeaderBlock("x" * n),
    ),
    (
        10,
        lambda n: [{"type": "context", "elements": [mrkdwn("x")] * n}],
        "/elements",
        lambda n: slackblocks.ContextBlock([slackblocks.Text("x") for _ in range(n)]),
    ),
    (
        25,
        lambda n: [actions(*map(button, range(n)))],
        "/elements",
        lambda n: slackblocks.ActionsBlock(
            [slackblocks.Button("Go", action_id=f"a{number}") for number in range(n)]
        ),
    ),
    (
        75,
        lambda n: of_button(text=plain("x" * n)),
        "/elements/0/text/text",
        lambda n: slackblocks.Button("x" * n, action_id="a"),
    ),
    (
        2000,
        lambda n: of_button(value="x" * n),
        "/elements/0/value",
        lambda n: slackblocks.Button("Go", action_id="a", value="x" * n),
    ),
    (
        255,
        lambda n: of_button(action_id="x" * n),
        "/elements/0/action_id",
        lambda n: slackblocks.Button("Go", action_id="x" * n),
    ),
    (
        2000,
        lambda n: [image("x" * n)],
        "/alt_text",
        lambda n: slackblocks.ImageBlock(image_url="http://x/y.png", alt_text="x" * n),
    ),
    (
        100,
        lambda n: of_button(confirm=confirm(title=plain("x" * n))),
        "/elements/0/confirm/title/text",
        None,
    ),
    (
        300,
        lambda n: of_button(confirm=confirm(text=mrkdwn("x" * n))),
        "/elements/0/confirm/text/text",
        None,
    ),
    (
        30,
        lambda n: of_button(confirm=confirm(confirm=plain("x" * n))),
        "/elements/0/confirm/confirm/text",
        None,
    ),
]


@pytest.mark.parametrize(("most", "build", "place", "other"), AT_LIMIT)
def test_block_one_above_the_limit_is_refused(
    most: int, build: Any, place: str, other: Any
) -> None:
    assert check_blocks(build(most)) == []

    [finding] = check_blocks(build(most + 1))

    assert finding.endswith(f"[json-pointer:/blocks/0{place}]")
    if other is not None:
        other(most)
        with pytest.raises(slackblocks.InvalidUsageError):
            other(most + 1)


def test_more_blocks_than_a_message_may_have_are_refused() -> None:
    most = [{"type": "divider"}] * 50

    assert check_blocks(most) == []
    assert check_blocks([*most, {"type": "divider"}])[0].endswith("[json-pointer:/blocks]")


@pytest.mark.parametrize(
    ("blocks", "finding"),
    [
        ([{"type": "chart"}], "unsupported type: chart [json-pointer:/blocks/0/type]"),
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
    for _ in range(limits.POST_MESSAGE_BURST):
        client.chat_postMessage(channel=TRAINING_CHANNEL_ID, text="x")

    with pytest.raises(SlackApiError) as refused:
        client.chat_postMessage(channel=TRAINING_CHANNEL_ID, text="x")

    assert refused.value.response.status_code == 429
    assert refused.value.response["error"] == "ratelimited"
    assert refused.value.response.headers["Retry-After"] == "1"
    clock.now += 1
    client.chat_postMessage(channel=TRAINING_CHANNEL_ID, text="x")
    assert len(limited.messages()) == limits.POST_MESSAGE_BURST + 1


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

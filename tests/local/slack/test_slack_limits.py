"""Slack's limits: what the local workspace refuses, and that an independent library agrees."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import slackblocks
from slack_fixtures import (
    HERE,
    Clock,
    Json,
    actions,
    button,
    local_slack,
    mrkdwn,
    plain,
    refused,
    say,
    section,
    web_client,
)
from slack_sdk.errors import SlackApiError

from stationmaster.local.slack.blocks import check_blocks
from stationmaster.local.slack.records import SlackRefusal
from stationmaster.local.slack.server import LocalSlack
from stationmaster.local.slack.views import checked_view
from tests.support.slack_models import NO_MODEL, refused_by_models


def confirm(**fields: Any) -> Json:
    words = {"title": plain("Sure?"), "confirm": plain("Yes"), "deny": plain("No")}
    return {**words, "text": mrkdwn("Really"), **fields}


def of_button(**fields: Any) -> list[Json]:
    return [actions(button(fields.pop("action_id", "a"), **fields))]


def fields(count: int, text: str = "x") -> list[Json]:
    return [{"type": "section", "fields": [mrkdwn(text)] * count}]


def chart(points: int = 2, *, series: int = 1, title: str = "t", name: str = "") -> list[Json]:
    labels = [str(number) for number in range(points)]
    data = [{"label": label, "value": 1.5} for label in labels]
    drawn = [{"name": name or f"s{number}", "data": data} for number in range(series)]
    made = {"type": "line", "series": drawn, "axis_config": {"categories": labels}}
    return [{"type": "data_visualization", "title": title, "chart": made}]


def header(text: str) -> list[Json]:
    return [{"type": "header", "text": plain(text)}]


Build = Callable[[int], list[Json]]
# A list of blocks at the limit, and whether an independent library has that limit as well.
AT_LIMIT: list[tuple[int, Build, bool]] = [
    (255, lambda n: [{"type": "divider", "block_id": "x" * n}], True),
    (3000, lambda n: [section("x" * n)], True),
    (10, fields, True),
    (2000, lambda n: fields(1, "x" * n), True),
    (150, lambda n: header("x" * n), True),
    (10, lambda n: [{"type": "context", "elements": [mrkdwn("x")] * n}], True),
    (25, lambda n: [actions(*(button(f"a{number}") for number in range(n)))], True),
    (75, lambda n: [actions(button("a", "x" * n))], True),
    (2000, lambda n: of_button(value="x" * n), True),
    (255, lambda n: of_button(action_id="x" * n), True),
    (100, lambda n: of_button(confirm=confirm(title=plain("x" * n))), True),
    (300, lambda n: of_button(confirm=confirm(text=mrkdwn("x" * n))), True),
    (30, lambda n: of_button(confirm=confirm(confirm=plain("x" * n))), True),
    (50, lambda n: [{"type": "divider"}] * n, False),
    (50, lambda n: chart(title="x" * n), True),
    (12, lambda n: chart(series=n), True),
    (20, lambda n: chart(name="x" * n), True),
    (2, lambda n: chart() * n, False),
    (1, lambda n: rows(1) * n, False),
    (100, lambda n: rows(count=n), True),
    (20, lambda n: rows(1, columns=n), True),
]


def rows(count: int, columns: int = 1) -> list[dict[str, Any]]:
    return [{"type": "table", "rows": [[{"type": "raw_text", "text": "x"}] * columns] * count}]


def test_kinds_that_an_independent_library_has_no_model_of_are_named() -> None:
    assert [name for name in NO_MODEL.values() if hasattr(slackblocks, name)] == []


def test_chart_has_twenty_points_a_series_and_one_for_each_category() -> None:
    assert check_blocks(chart(20)) == []
    assert (refused_by_models(chart(20)), len(refused_by_models(chart(21)))) == ([], 1)
    assert [found.split(" [")[0] for found in check_blocks(chart(21))] == [
        "no more than 20 items allowed",
        "no more than 20 items allowed",
    ]
    lacking, twice, nan = chart(2), chart(2), chart(2)
    lacking[0]["chart"]["series"][0]["data"].pop()
    twice[0]["chart"]["axis_config"]["categories"] = ["0", "0"]
    nan[0]["chart"]["series"][0]["data"][0]["value"] = float("nan")
    assert "one point for each category" in check_blocks(lacking)[0]
    assert "categories must be unique" in check_blocks(twice)[0]
    assert "must be a number" in check_blocks(nan)[0]


@pytest.mark.parametrize(("most", "build", "is_theirs"), AT_LIMIT)
def test_block_one_above_the_limit_is_refused(most: int, build: Build, is_theirs: bool) -> None:
    assert check_blocks(build(most)) + refused_by_models(build(most)) == []
    assert len(check_blocks(build(most + 1))) == 1
    assert len(refused_by_models(build(most + 1))) == is_theirs


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
            [actions(button("a1"), button("a1"))],
            "action_id already in use in this block: a1 "
            "[json-pointer:/blocks/0/elements/1/action_id]",
        ),
        (
            [{"type": "divider", "block_id": "b"}, {"type": "divider", "block_id": "b"}],
            "block_id already in use: b [json-pointer:/blocks/1/block_id]",
        ),
        (
            [{"type": "divider", "colour": "red"}],
            "invalid additional property: colour [json-pointer:/blocks/0]",
        ),
        (
            [actions(button("a", style="warning"))],
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
    with pytest.raises(SlackApiError) as caught:
        say(slack, blocks=[section("")])

    answer = caught.value.response
    assert answer["error"] == "invalid_blocks"
    assert answer["response_metadata"]["messages"] == [
        "[ERROR] must be more than 0 characters [json-pointer:/blocks/0/text/text]"
    ]


def test_post_blocks_too_long_in_total_are_refused(slack: LocalSlack) -> None:
    blocks = [section("x" * 2700) for _ in range(5)]

    assert refused(say, slack, blocks=blocks) == "msg_blocks_too_long"


INPUT = {"type": "input", "label": plain("x"), "element": {"type": "plain_text_input"}}
MODAL = {"type": "modal", "title": plain("x"), "blocks": []}


@pytest.mark.parametrize(
    "change",
    [
        {"type": "workflow_step"},
        {"title": plain("x" * 25)},
        {"private_metadata": "x" * 3001},
        {"blocks": [{"type": "divider"}] * 101},
        {"blocks": [INPUT]},  # and nothing to submit it with
    ],
)
def test_view_beyond_the_limits_is_refused(change: Json) -> None:
    checked_view({**MODAL})

    with pytest.raises(SlackRefusal, match="invalid_arguments"):
        checked_view(MODAL | change)


@pytest.fixture
def clock() -> Clock:
    return Clock(1_700_000_000.0)


@pytest.fixture
def limited(clock: Clock) -> Iterator[LocalSlack]:
    with local_slack(enforce_rate_limits=True, clock=clock) as workspace:
        yield workspace


def test_post_message_burst_is_allowed_then_one_a_second(limited: LocalSlack, clock: Clock) -> None:
    for _ in range(10):
        say(limited, "x")

    with pytest.raises(SlackApiError) as caught:
        say(limited, "x")

    assert caught.value.response.status_code == 429
    assert caught.value.response["error"] == "ratelimited"
    assert caught.value.response.headers["Retry-After"] == "1"
    clock.now += 1
    say(limited, "x")
    assert len(limited.messages()) == 11


def test_chat_update_is_limited_to_fifty_in_any_minute(limited: LocalSlack, clock: Clock) -> None:
    client = web_client(limited)
    ts = say(limited, "x")
    for number in range(50):
        client.chat_update(channel=HERE, ts=ts, text=str(number))
    clock.now += 20

    with pytest.raises(SlackApiError) as caught:
        client.chat_update(channel=HERE, ts=ts, text="one too many")

    assert caught.value.response.headers["Retry-After"] == "40"
    assert limited.messages()[0].text == "49"
    clock.now += 40
    client.chat_update(channel=HERE, ts=ts, text="later")
    assert limited.messages()[0].text == "later"


def test_closed_workspace_takes_no_call_until_its_time_is_over(
    limited: LocalSlack, clock: Clock
) -> None:
    limited.close_for(20)

    with pytest.raises(SlackApiError) as caught:
        say(limited, "x")

    assert caught.value.response.headers["Retry-After"] == "20"
    clock.now += 20
    say(limited, "x")

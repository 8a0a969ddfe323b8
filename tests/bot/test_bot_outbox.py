"""What the outbox makes of Slack's bad answers: worth another try, or refused for good."""

import pytest
from bot_world import BOT_TOKEN, Clock
from recording_slack import RecordingSlack, Refusal
from slack_sdk import WebClient

from bot.blocks.elements import Block, Content, Native, section, table
from bot.blocks.progress import loss_chart
from bot.native_blocks import REFUSED_FOR_S, NativeBlocks
from bot.outbox import Mark, Outbox
from stationmaster.domain.errors import PermanentError, TransientError

PICTURE = {
    "filename": "curve.png",
    "title": "Loss",
    "comment": "the curve",
    "channel": "C1",
    "thread_ts": "1.0",
}


@pytest.fixture
def outbox(slack: RecordingSlack, clock: Clock) -> Outbox:
    return Outbox(
        WebClient(token=BOT_TOKEN, base_url=slack.api_url),
        reload_token=lambda team: BOT_TOKEN,
        sleep=clock.sleep,
        native=NativeBlocks(lambda: clock.now().timestamp()),
    )


def post(outbox: Outbox, *blocks: Block) -> str:
    content = Content(text="a line", blocks=[*blocks])
    return outbox.post(content, channel="C1", mark=Mark(about="r-1", keys=["line"]))


@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_server_error_is_worth_another_try_whatever_its_code_says(outbox, slack, status):
    slack.refuse("chat.postMessage", Refusal(status=status, error="a_code_of_no_table"))

    with pytest.raises(TransientError, match="posting a message: Slack answers a_code_of_no_table"):
        post(outbox)

    assert post(outbox)
    assert len(slack.of("chat.postMessage")) == 1


@pytest.mark.parametrize("status", [200, 400, 403, 499])
def test_code_of_no_table_below_500_is_refused_for_good(outbox, slack, status):
    slack.refuse("chat.postMessage", Refusal(status=status, error="a_code_of_no_table"))

    with pytest.raises(PermanentError):
        post(outbox)


@pytest.mark.parametrize(
    ("status", "error"),
    [(500, TransientError), (503, TransientError), (429, TransientError), (403, PermanentError)],
)
def test_bad_answer_of_the_uploads_own_address_is_distinguished_too(outbox, slack, status, error):
    slack.refuse("upload", Refusal(status=status))

    with pytest.raises(error, match=f"uploading {PICTURE['filename']}"):
        outbox.upload(b"png", **PICTURE)

    outbox.upload(b"png", **PICTURE)
    assert slack.uploads == [b"png"]


TASK = {"type": "task_card", "task_id": "a", "title": "nodes", "status": "complete"}
PLAN = Native({"type": "plan", "title": "Phases", "tasks": [TASK]}, plain=section("in text"))
TABLE = table([["Node"], ["ip-1"]])
MESSAGE = [section("a"), PLAN, TABLE, *loss_chart([(1, 2.0), (2, 1.0)])]


@pytest.mark.parametrize(
    ("lacks", "shown"),
    [
        (set(), ["section", "plan", "table", "data_visualization"]),
        ({"plan"}, ["section", "section", "table", "data_visualization"]),
        ({"plan", "table", "data_visualization"}, ["section"] * 4),
    ],
)
def test_blocks_that_a_workspace_lacks_are_text_and_tried_once_a_day(
    outbox, slack, clock, lacks, shown
):
    slack.lacks = lacks
    for _ in range(3):
        post(outbox, *MESSAGE)

    kinds = [[each["type"] for each in call.blocks] for call in slack.of("chat.postMessage")]
    assert kinds == [shown] * 3
    assert len(slack.attempts) == 3 + len(lacks)

    clock.advance(REFUSED_FOR_S + 1)
    slack.lacks = set()
    post(outbox, *MESSAGE)

    assert slack.of("chat.postMessage")[-1].blocks == MESSAGE


def test_refusal_that_names_no_block_leaves_out_all_native_ones(outbox, slack):
    slack.refuse("chat.postMessage", Refusal(error="invalid_blocks"))

    post(outbox, PLAN)

    assert slack.of("chat.postMessage")[0].blocks == [PLAN.plain]

"""The notifier on the table's real stream records, against a Slack that records and refuses."""

from __future__ import annotations

import pytest
from bot_world import CHANNEL, USER, Killed, Story, new_notifier
from recording_slack import Refusal

from bot.stream import StreamBatch, read_batch
from stationmaster.commands import Actor, set_notices
from stationmaster.domain.cluster import events as cl
from stationmaster.domain.errors import TransientError
from stationmaster.domain.resources import ResourceKind
from stationmaster.domain.run import events as ev
from stationmaster.domain.run.events import RunPhase

RATE_LIMITED = {"status": 429, "error": "ratelimited"}


def end(story: Story, phase: ev.RunPhase = ev.RunPhase.SUCCEEDED) -> None:
    story.phases(phase)
    story.tear_down()
    story.happen(cl.TeardownCompleted, cost_usd=0.42)


def test_card_is_edited_and_never_posted_again(tells, story, slack, clock):
    story.begin()
    tells()
    for step in (10, 20, 30):
        if step == 10:
            story.reach_running()
        story.progress(step)
        clock.advance(10)
        tells()

    cards = [call for call in slack.of("chat.postMessage") if "thread_ts" not in call.arguments]
    assert len(cards) == 1
    assert {call.arguments["ts"] for call in slack.of("chat.update")} == {"1000.000001"}
    assert "step 30 of 60" in slack.card.seen
    assert "data_visualization" in slack.card.seen


def test_progress_within_the_interval_is_coalesced(tells, story, slack, clock):
    story.reach_running()
    tells()
    for step in range(1, 21):
        story.progress(step)
        clock.advance(0.2)
        tells()

    assert 1 <= len(slack.of("chat.update")) <= 3
    assert slack.thread == slack.of("chat.postMessage")[1:]
    assert len(slack.thread) == 1


def test_skipped_card_is_drawn_with_the_next_batch_of_any_run(tells, services, story, slack, clock):
    story.reach_running()
    tells()
    story.progress(7)
    tells()
    assert "step 7" not in slack.card.seen

    clock.advance(10)
    other = Story(services, clock, run_id="tiny-llama-ffffffff")
    other.begin()
    tells()

    assert "step 7 of 60" in slack.of("chat.update")[-1].seen


def test_end_is_delivered_after_a_short_429(tells, story, slack, clock):
    story.reach_running()
    tells()
    story.phases(ev.RunPhase.FAILED, reason="out of memory")
    slack.refuse("chat.update", Refusal(headers={"Retry-After": "3"}, **RATE_LIMITED))

    tells()

    assert "out of memory" in slack.card.seen
    assert 3.0 in clock.slept


def test_end_is_delivered_by_the_repeated_batch_after_a_long_429(
    tells, notifier, stream, story, slack, clock
):
    story.reach_running()
    tells()
    story.progress(7)
    story.phases(ev.RunPhase.FAILED, reason="out of memory")
    batch = read_batch(stream.next_batch())
    slack.refuse("chat.update", Refusal(headers={"Retry-After": "30"}, **RATE_LIMITED))

    with pytest.raises(TransientError, match="30 s"):
        notifier.notify(batch)
    notifier.notify(batch)
    edits = slack.of("chat.update")
    notifier.notify(batch)

    assert slack.of("chat.update") == edits
    assert "out of memory" in slack.card.seen
    assert 30.0 not in clock.slept
    assert sum("run failed" in call.seen for call in slack.thread) == 1


def test_end_takes_the_last_of_the_budget_that_progress_may_not(
    tells, story, services, slack, clock
):
    story.reach_running()
    tells()
    clock.advance(1.6)
    while services.deliveries.take_update_token(clock.now(), reserve=3) == 0:
        pass
    story.progress(30)
    tells()
    assert slack.of("chat.update") == []

    story.phases(ev.RunPhase.SUCCEEDED)
    tells()

    assert "succeeded" in slack.card.seen


def test_end_that_finds_no_edit_left_comes_with_a_batch_of_its_own(
    tells, story, services, slack, clock
):
    story.reach_running()
    tells()
    now = clock.now()
    clock.advance(1_800)
    while services.deliveries.take_update_token(clock.now()) == 0:
        pass
    clock.at = now  # the bucket is empty, and is refilled in half an hour by this clock
    story.phases(ev.RunPhase.FAILED, reason="out of memory")

    tells()
    assert "out of memory" not in slack.card.seen
    clock.advance(3_600)
    tells()  # the batch that it has brought about

    assert "out of memory" in slack.card.seen
    assert sum("*run failed*" in call.seen for call in slack.thread) == 1


def test_batch_delivered_twice_posts_everything_once(notifier, stream, story, slack, clock):
    story.reach_running()
    story.progress(30)
    story.progress(60)
    end(story)
    batch = read_batch(stream.next_batch())

    notifier.notify(batch)
    first = [(call.method, call.seen) for call in slack.calls]
    clock.advance(60)
    notifier.notify(batch)

    assert [(call.method, call.seen) for call in slack.calls] == first


def test_events_of_one_batch_share_one_thread_message(tells, story, slack):
    story.begin()
    tells()
    story.reach_running()
    for index in range(4):
        story.happen(
            ev.PodChanged, pod=f"{story.run_id}-worker-{index}", phase="Running", node="n1"
        )
        story.progress(index + 1)

    tells()

    assert len(slack.thread) == 1
    text = slack.thread[0].arguments["text"]
    assert text.index("provisioning") < text.index("training") < text.index("worker-3")
    assert slack.thread[0].arguments["thread_ts"] == "1000.000001"


def test_lines_of_many_batches_share_a_message_and_none_is_lost(
    tells, notifier, story, slack, clock
):
    story.begin()
    tells()
    started = clock.monotonic()
    for step in range(1, 31):
        story.happen(cl.CheckFinished, check=f"check-{step}", passed=True, detail="")
        tells()
        clock.advance(1)
    clock.advance(60)
    notifier.refresh()

    assert len(slack.thread) <= 2 + (clock.monotonic() - started) / 10
    thread = "".join(call.seen for call in slack.thread)
    assert [step for step in range(1, 31) if thread.count(f"*check-{step}*") != 1] == []


def test_interval_of_a_card_grows_with_the_number_of_live_runs(tells, services, slack, clock):
    stories = [Story(services, clock, run_id=f"tiny-llama-{index:08x}") for index in range(4)]
    for story in stories:
        story.begin()
    tells()
    stories[0].progress(1)
    clock.advance(5.9)
    tells()
    assert slack.of("chat.update") == []

    clock.advance(0.2)
    stories[0].progress(2)
    tells()

    assert "step 2 of 60" in slack.of("chat.update")[0].seen


def test_details_do_not_wait_for_the_interval_that_progress_keeps(tells, services, slack, clock):
    stories = [Story(services, clock, run_id=f"tiny-llama-{index:08x}") for index in range(4)]
    for story in stories:
        story.begin()
        story.phases(ev.RunPhase.PROVISIONING)
    tells()

    before = clock.monotonic()

    stories[0].happen(cl.PluginReady, plugin="fsx-csi")
    tells()

    assert "plugins: fsx-csi" in slack.of("chat.update")[0].seen
    assert clock.monotonic() - before < 4 * 1.5


def test_end_of_training_uploads_the_curve_once(tells, story, slack, clock):
    story.reach_running()
    for step in (20, 40, 60):
        story.progress(step)
    story.phases(ev.RunPhase.SUCCEEDED)
    tells()
    story.tear_down()
    clock.advance(30)
    tells()

    assert len(slack.uploads) == 1
    assert b"\x89PNG" in slack.uploads[0]
    completed = slack.of("files.completeUploadExternal")
    assert [call.arguments["thread_ts"] for call in completed] == ["1000.000001"]
    assert completed[0].arguments["channel_id"] == CHANNEL


def test_receipt_is_posted_once_and_seen_in_the_channel(tells, story, slack):
    story.reach_running()
    tells()
    story.phases(ev.RunPhase.SUCCEEDED)
    story.tear_down()
    tells()
    made = {"kind": ResourceKind.FILE_SYSTEM, "name": "fs-1"}
    story.happen(cl.ResourceDeleted, **made)
    story.happen(cl.TeardownCompleted, cost_usd=0.42)
    tells()

    receipts = [call for call in slack.thread if "Nothing billable is left" in call.seen]
    assert len(receipts) == 1
    assert slack.thread[-1] is receipts[0]
    assert not any("deleted" in call.seen for call in slack.thread[:-1])
    assert receipts[0].arguments["reply_broadcast"]
    assert "$0.42" in receipts[0].seen
    assert "torn down: nothing billable is left" in slack.card.seen


@pytest.mark.parametrize(
    ("method", "error"),
    [("files.getUploadURLExternal", "not_in_channel"), ("chat.update", "msg_blocks_too_long")],
)
def test_refused_curve_or_card_does_not_hold_up_the_receipt(
    tells, story, slack, caplog, method, error
):
    story.begin()
    tells()
    story.reach_running()
    for step in (30, 60):
        story.progress(step)
    end(story)
    slack.refuse(method, Refusal(error=error), Refusal(error=error))

    tells()

    assert any("Nothing billable is left" in call.seen for call in slack.thread)
    assert any(error in str(record.exc_info) for record in caplog.records)


def test_failed_teardown_is_reported_and_its_later_success_too(tells, story, slack, clock):
    story.begin()
    story.phases(ev.RunPhase.FAILED, reason="no capacity")
    story.tear_down()
    story.happen(cl.TeardownFailed, reason="cluster is in use", left=["cluster stationmaster-x"])
    tells()
    story.tear_down()
    story.happen(cl.TeardownCompleted, cost_usd=1.5)
    clock.advance(60)
    tells()

    titles = [
        call.blocks[0]["text"]["text"]
        for call in slack.thread
        if call.blocks[0]["type"] == "header"
    ]
    assert ["not yet final" in title for title in titles] == [True, False]


def test_card_that_somebody_deleted_is_posted_anew(tells, story, slack, clock):
    story.begin()
    tells()
    clock.advance(1)
    slack.refuse("chat.update", Refusal(error="message_not_found"))
    story.phases(ev.RunPhase.PROVISIONING)

    tells()

    cards = [call for call in slack.of("chat.postMessage") if "thread_ts" not in call.arguments]
    assert len(cards) == 2
    assert slack.thread[-1].arguments["thread_ts"] == "1000.000002"


def test_channel_that_refuses_for_good_does_not_hold_up_others(
    tells, services, story, slack, clock, caplog
):
    story.begin()
    other = Story(services, clock, run_id="tiny-llama-ffffffff")
    other.begin()
    slack.refuse("chat.postMessage", Refusal(error="msg_blocks_too_long"))

    tells()

    assert len(slack.of("chat.postMessage")) == 1
    assert any("it cannot be posted" in record.message for record in caplog.records)


def test_own_memory_in_the_stream_is_no_news(tells, stream, story, slack):
    story.begin()
    tells()
    calls = len(slack.calls)

    batch = stream.next_batch()

    assert batch["Records"] != []
    assert read_batch(batch) == StreamBatch()
    assert len(slack.calls) == calls


def test_checkpoints_that_had_to_wait_are_one_line_of_the_newest(tells, story, slack, clock):
    story.reach_running()
    tells()
    for step in (10, 20, 30):
        story.happen(ev.CheckpointSaved, step=step)
        tells()
    clock.sleep(61)
    story.happen(ev.CheckpointSaved, step=40)
    tells()

    posted = [call.seen for call in slack.thread if "checkpoint at step" in call.seen]
    assert len(posted) == 1
    assert "checkpoint at step 40" in posted[0]


def test_program_that_crashes_again_and_again_has_twelve_lines_in_its_thread(
    tells, story, slack, clock
):
    story.reach_running()
    tells()
    for restart in range(8):
        for pod in ("w-0", "w-1"):
            line = f"KeyError: 'labels' at 0x7f{restart}"
            process = "process 0 exited with code 1"
            story.happen(ev.ProcessFailed, pod=pod, restarts=restart, process=process, line=line)
            story.happen(ev.WorkersRestarting, pod=pod, reason=process)
            story.happen(
                ev.PodChanged,
                pod=pod,
                phase="Failed",
                exit_code=1,
                reason="Error",
                restarts=restart,
            )
            story.happen(ev.PodChanged, pod=pod, phase="Running", restarts=restart + 1)
        clock.advance(30)
        tells()
    end(story, ev.RunPhase.FAILED)
    tells()

    lines = [line for call in slack.thread for line in call.arguments["text"].splitlines()]
    receipt = next(index for index, line in enumerate(lines) if "receipt" in line)
    assert len(lines[:receipt]) <= 12
    said = [line for line in lines if "KeyError" in line]
    assert ["(16 times in all)" in line for line in said] == [False, True]


DIRECT = "D0OPERATOR"
WHO = Actor(user_id=USER, channel_id="")


@pytest.fixture
def batch(story, stream):
    """A run has failed."""
    story.begin()
    story.phases(RunPhase.FAILED, reason="out of memory")
    return read_batch(stream.next_batch())


def directly(slack):
    return [each.seen for each in slack.of("chat.postMessage") if DIRECT in each.arguments.values()]


def posted(slack):
    (line,) = (call.seen for call in slack.thread if "*run failed*" in call.seen)
    return line


@pytest.mark.parametrize(
    ("notices", "lost", "is_mentioned", "num_direct"),
    [
        (None, {}, True, 0),
        ("both", {}, True, 1),
        ("direct", {}, False, 1),
        ("neither", {}, False, 0),
        ("direct", {DIRECT: "channel_not_found"}, True, 0),
    ],
)
def test_failure_is_told_as_the_requester_wants_it_and_once(
    services, slack, clock, story, batch, notices, lost, is_mentioned, num_direct
):
    if notices is not None:
        set_notices(services, WHO, notices)
    slack.lost |= lost
    for _ in range(2):
        new_notifier(services, slack, clock).notify(batch)

    assert (f"<@{USER}>" in posted(slack)) is is_mentioned
    assert len(directly(slack)) == num_direct
    for message in directly(slack):
        assert "out of memory" in message
        assert f"`{story.run_id}` in <#{CHANNEL}>" in message


def test_crash_between_direct_message_and_thread_repeats_neither(
    services, slack, clock, dying, batch
):
    set_notices(services, WHO, "direct")
    dying.dies_at = "confirm"
    with pytest.raises(Killed):
        new_notifier(services, slack, clock).notify(batch)
    assert (len(directly(slack)), slack.thread) == (1, [])
    dying.dies_at = ""
    new_notifier(services, slack, clock).notify(batch)

    assert posted(slack)
    assert len(directly(slack)) == 1


def test_direct_messages_keep_to_the_pace_of_posts(services, slack, clock, notifier, batch):
    set_notices(services, WHO, "both")
    while not services.deliveries.take_post_token(DIRECT, clock.now()):
        pass
    before = clock.now()
    notifier.notify(batch)

    assert len(directly(slack)) == 1
    assert (clock.now() - before).total_seconds() >= 0.9

"""Runs side by side: compare with its picture, diff with what was saved, and what a month costs."""

from __future__ import annotations

import io
from typing import Any

import boto3
import pytest
from bot_world import CHANNEL, REGION, USER, Clock, ClusterStory, Person, Story, seen
from PIL import Image
from recording_slack import RecordingSlack, Refusal

from bot.actions import RunButton
from bot.blocks.comparing import runs_compared
from stationmaster import spending
from stationmaster.commands.comparing import Comparison
from stationmaster.domain.cluster import events as cl
from stationmaster.domain.resources import ResourceKind
from stationmaster.domain.run import events as ev
from stationmaster.domain.run.attempts import attempt_id
from stationmaster.domain.run.request import Placement
from stationmaster.domain.run.view import RunView
from stationmaster.services import Services
from stationmaster.settings import Settings
from tests.support.artifacts_world import BUCKET, save_run

OTHER = "U0OTHER"
BAD_IMAGE = "aws/nccl-tests:cuda13.0.2-efa1.48.0-ofiv1.19.0"


@pytest.fixture
def services(settings: Settings, clock: Clock) -> Services:
    return Services(settings.model_copy(update={"artifacts_bucket": BUCKET}), now=clock.now)


def begin(services: Services, clock: Clock, run_id: str, **request: Any) -> Story:
    """A run of the channel that was asked for like this, and has trained two steps."""
    story = Story(services, clock, run_id=run_id)
    story.begin(**({"command": ""} | request))
    story.reach_running()
    story.progress(20)
    story.progress(40)
    return story


@pytest.fixture
def pair(services: Services, clock: Clock) -> tuple[Story, Story]:
    first = begin(services, clock, "tiny-llama-0000aaaa", name="books-v1")
    clock.advance(60)
    changed = {"overrides": {"learning_rate": "0.01"}, "command": "/train tiny-llama", "nodes": 1}
    return first, begin(services, clock, "tiny-llama-0000bbbb", user_id=OTHER, **changed)


def test_compare_shows_what_differs_what_came_out_and_posts_one_picture_in_the_channel(
    person: Person, slack: RecordingSlack, tells, pair
) -> None:
    tells()

    said = seen(person.type("compare books-v1 tiny-llama-0000bbbb", trigger_id="typed"))
    tells()
    person.type("compare books-v1 tiny-llama-0000bbbb", trigger_id="typed")  # Slack tried again
    tells()

    for row in ("learning_rate", "nodes  ", "final loss", "6.000", "2.05 K", "duration"):
        assert row in said
    assert "follows as one picture" in said
    (png,) = slack.uploads
    assert Image.open(io.BytesIO(png)).size == (1200, 600)
    (asked,) = slack.of("files.getUploadURLExternal")
    assert "A books-v1, ends at 6.000; B tiny-llama, ends at 6.000" in asked.arguments["alt_txt"]
    (completed,) = slack.of("files.completeUploadExternal")
    assert completed.arguments["channel_id"] == CHANNEL
    assert "thread_ts" not in completed.arguments
    assert f"<@{USER}> compares *A* books-v1" in completed.arguments["initial_comment"]


def test_picture_that_slack_refuses_is_named_in_the_channel(
    person: Person, slack: RecordingSlack, tells, pair
) -> None:
    slack.refuse("files.getUploadURLExternal", Refusal(error="missing_scope"))

    person.type("compare books-v1 tiny-llama-0000bbbb")
    tells()

    said = [
        each.seen
        for each in slack.of("chat.postMessage")
        if "picture of the compared runs" in each.seen
    ]
    assert len(said) == 1
    assert "Slack answers missing_scope" in said[0]


def test_report_of_a_receipt_is_one_page_in_the_thread_of_its_run(
    person: Person, slack: RecordingSlack, tells, story: Story
) -> None:
    story.reach_running()
    story.phases(ev.RunPhase.FAILED)
    story.tear_down()
    story.happen(cl.TeardownCompleted, cost_usd=0.42)
    tells()
    assert [call for call in slack.thread if '"report_run"' in call.seen] == [slack.thread[-1]]
    value = RunButton(run_id=story.run_id).model_dump_json()

    for _ in range(2):  # Slack tries again
        person.press("report_run", value, trigger_id="pressed")
    tells()

    (page,) = slack.uploads
    assert page.startswith(b"<!doctype html>")
    assert story.run_id.encode() in page
    (completed,) = slack.of("files.completeUploadExternal")
    assert completed.arguments["thread_ts"] == slack.card.ts
    assert "follows as a file in its thread" in slack.responses[0].seen


def test_runs_without_two_steps_have_no_picture_and_one_run_is_not_compared_with_itself(
    person: Person, story: Story, pair
) -> None:
    story.begin()
    again = Story(story.services, story.clock, run_id="tiny-llama-0000cccc")
    again.begin()

    assert "there is no picture" in seen(person.type(f"compare {story.run_id} {again.run_id}"))
    same = seen(person.type("compare books-v1 tiny-llama-0000aaaa"))
    assert "books-v1 and tiny-llama-0000aaaa are one run" in same
    assert "no run is called" in seen(person.type("compare books-v1 nothing"))


def test_study_is_a_run_for_each_value_however_often_it_is_delivered(
    person: Person, services: Services, slack: RecordingSlack, cluster: ClusterStory
) -> None:
    cluster.become_ready()

    said = seen(person.type("study tiny-llama on=team-a nodes=1,4 steps=9", trigger_id="typed"))
    person.type("study tiny-llama on=team-a nodes=1,4 steps=9", trigger_id="typed")

    runs = sorted(services.runs.list_recent(), key=lambda run: run.request.nodes)
    assert "2 runs of a study" in said
    assert [(run.request.nodes, run.request.alone) for run in runs] == [(1, True), (4, True)]
    assert all(set(run.request.study) == {each.run_id for each in runs} for run in runs)
    assert len(slack.cards) == 2


def test_study_without_on_makes_one_cluster_however_often_and_under_what_id_it_comes(
    person: Person, services: Services, slack: RecordingSlack, settings: Settings, set_rules: Any
) -> None:
    set_rules({"approval": {"instance_types": ["m5.2xlarge"]}, "together": {"runs": 3}})
    text = "study tiny-llama nodes=1,2,4 steps=9"

    first = seen(person.type(text))
    assert "nothing is new" in seen(person.type(text))
    assert "runs at most 3 at a time" in seen(person.type(f"{text} seed=2"))

    runs = services.runs.list_recent()
    (cluster,) = services.cluster_states.list_open()
    assert len(runs) == 3
    assert len(slack.cards) == 4
    runs.sort(key=lambda run: run.request.nodes)
    assert cluster.waiting_runs == [run.run_id for run in runs]
    assert (cluster.name, cluster.spec.nodes, cluster.keep_until) == (cluster.cluster_id, 4, None)
    assert all(run.request.goes_with_study and not run.awaits_approval for run in runs)
    assert cluster.approval is not None
    assert f"`{cluster.label}` is made for them, once it is approved" in first
    assert f"and ${cluster.approval.wish.usd:.2f}" in first
    person.press("stop_run", RunButton(run_id=runs[1].run_id).model_dump_json())
    assert "their cluster goes with the last" in slack.responses[-1].seen
    compared = Comparison((RunView(runs[0], cluster), RunView(runs[1], cluster)), ())
    shown = runs_compared(compared, has_picture=False, now=cluster.requested_at)
    assert f"`{cluster.label}` has cost $0.00 so far; $0.00 of it" in str(shown.blocks)


def test_study_that_would_go_over_a_limit_writes_and_posts_nothing(
    person: Person, services: Services, slack: RecordingSlack, set_rules: Any
) -> None:
    for limit in ({"runs": 2}, {"usd_per_hour": 1.0}, {"usd_a_month": 0.5}):
        set_rules({"together": limit})
        assert "this channel" in seen(person.type("study tiny-llama nodes=1,2,4 steps=9"))

    assert services.runs.list_recent() == services.cluster_states.list_open() == []
    assert slack.cards == []


def test_table_of_a_study_comes_once_when_the_last_of_its_runs_has_ended(
    services: Services, clock: Clock, slack: RecordingSlack, tells
) -> None:
    nodes_of = {"tiny-llama-0000aaaa": 1, "tiny-llama-0000bbbb": 4}
    study = (*nodes_of, "tiny-llama-refused0")
    stories = [Story(services, clock, run_id=run_id) for run_id in nodes_of]
    for story, nodes in zip(stories, nodes_of.values(), strict=True):
        story.begin(study=study, nodes=nodes, command="")
        story.reach_running()
    for story, nodes in zip(stories, nodes_of.values(), strict=True):
        assert not [post for post in slack.of("chat.postMessage") if "Study" in post.seen]
        placement = Placement(nodes=nodes, instance_type="m5.2xlarge")
        story.happen(
            ev.AttemptStarted,
            attempt_id=attempt_id(story.run_id, 2),
            cluster_id=story.run_id,
            placement=placement,
            job=story.run_id,
            rendezvous_id=story.run_id,
        )
        for step in range(4):
            figures = {"loss_nats": 8.0 - step, "samples_per_s": 100.0 * nodes**0.5}
            story.happen(ev.ProgressReported, seq=step, step=step, total_steps=9, **figures)
        story.phases(ev.RunPhase.SAVING, ev.RunPhase.SUCCEEDED)
        story.tear_down()
        story.happen(cl.TeardownCompleted, cost_usd=0.5)
        for _ in range(3):
            clock.advance(60)
            tells()

    (table,) = [post for post in slack.of("chat.postMessage") if "Study: 2 runs" in post.seen]
    assert "of linear" in table.seen
    assert "100%" in table.seen
    assert "50%" in table.seen
    assert Image.open(io.BytesIO(slack.uploads[-1])).size == (1200, 600)


def test_diff_reads_what_was_saved_and_names_versions_that_are_known_to_be_bad(
    person: Person, pair: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3 = boto3.client("s3", REGION)
    s3.create_bucket(Bucket=BUCKET)
    monkeypatch.setenv("STATIONMASTER_ARTIFACTS_BUCKET", BUCKET)
    unsaved = seen(person.type("diff books-v1 tiny-llama-0000bbbb"))
    for story, data, image in zip(pair, "xy", (BAD_IMAGE, "aws/ours:1.0"), strict=True):
        facts = {
            "versions": {"code": f"sha256:{data.encode().hex() * 32}", "torch": "2.11"},
            "seed": 7,
            "data": f"text ({data})",
            "image": f"{image}@sha256:{'0a' * 32}",
        }
        made = save_run(s3, story.run_id, {"metrics.jsonl": b"{}"}, **facts)
        # Before the second has saved anything, nothing that it saves differs.
        half = seen(person.type("diff books-v1 tiny-llama-0000bbbb"))
        assert ("*nodes* `2`" in half, "*code*" in half) == (True, False)
        story.happen(ev.ResultsSaved, num_files=1, **made.recorded)

    said = seen(person.type("diff books-v1 tiny-llama-0000bbbb"))

    assert "are not compared: run tiny-llama-0000aaaa has" in unsaved
    assert "learning_rate" in unsaved
    for named in ("*nodes* `2`", "*code* `sha256:787878787878`", "*data* `text (x)`"):
        assert named in said
    assert "sha256:0a0a0a0a0a0a`" in said
    assert "torch" not in said
    assert "tiny-llama-0000aaaa has aws-ofi-nccl 1.19.0, which hangs" in said
    assert "are not compared" not in said


def test_cost_adds_up_a_month_by_person_with_what_is_not_ended(
    person: Person, services: Services, clock: Clock, cluster: ClusterStory
) -> None:
    cluster.begin(user_id=OTHER)
    cluster.become_ready()
    cluster.use("tiny-llama-0000aaaa", nodes=2)  # half of the cluster for half an hour
    cluster.train("tiny-llama-0000aaaa")
    clock.advance(1800)
    cluster.leave("tiny-llama-0000aaaa")
    clock.advance(1800)
    cluster.happen(cl.ResourceDeleted, kind=ResourceKind.CLUSTER, name="control plane")
    person.type("tiny-llama", user_id=OTHER, user_name="other.one")

    now, before = seen(person.type("cost")), seen(person.type("cost 2026-01"))

    assert f"<@{OTHER}> \u00b7 $0.00 \u00b7 1 run \u00b7 1 not ended, $0.00 so far" in now
    assert USER not in now
    assert "Cost of 2026-01: $36.00" in before
    assert f"<@{USER}> \u00b7 $9.00 \u00b7 1 run" in before
    assert f"<@{OTHER}> \u00b7 $27.00 \u00b7 1 kept cluster" in before
    assert "*By recipe*\\ntiny-llama \u00b7 $9.00 \u00b7 1 run" in before
    assert "Cost of 2026-01: $27.00" in seen(person.type("cost @other.one 2026-01"))
    assert "nobody called @nobody" in seen(person.type("cost @nobody"))
    for words, channel in (("2025-12", CHANNEL), ("2026-01", "C0ELSE")):
        said = seen(person.type(f"cost {words}", channel_id=channel))
        assert f"Cost of {words}: $0.00" in said


def test_cost_says_how_far_back_it_was_read(
    person: Person, pair: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spending, "MOST_READ", 1)

    said = seen(person.type("cost 2026-01"))

    assert "read back to" in said
    assert "tiny-llama-0000aaaa" not in said

"""Signed requests through the shipped Lambda handler: commands, buttons, forgeries, suggestions."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import boto3
import pytest
from bot_world import REGION, USER, Person, Story, seen, started_workflows
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models import EC2Backend
from recording_slack import RecordingSlack
from run_blocks import buttons

from bot.actions import ActionId
from bot.blocks.card import run_card
from bot.blocks.stopping import stops_offered
from stationmaster.commands.looking import view_run
from stationmaster.domain.bus import LogTail
from stationmaster.domain.planning.plan import plan_recipe
from stationmaster.domain.planning.recipe_lookup import get_recipe
from stationmaster.domain.planning.requirements import check_data
from stationmaster.domain.run import events as ev
from stationmaster.domain.run.view import RunView
from stationmaster.local.slack.blocks import check_blocks
from stationmaster.services import Services
from stationmaster.settings import Settings
from tests.support.factories import START, make_run

P4D_WITHOUT_GPUS = {"InstanceType": "p4d.24xlarge"}

GOES_WELL = (
    ev.RunPhase.PROVISIONING,
    ev.RunPhase.VALIDATING,
    ev.RunPhase.STAGING,
    ev.RunPhase.SUBMITTING,
    ev.RunPhase.RUNNING,
    ev.RunPhase.SAVING,
    ev.RunPhase.SUCCEEDED,
)


def out_of_order(*_: object, **__: object) -> None:
    raise EC2ClientError("RequestLimitExceeded", "later")


def test_same_words_start_another_run_once_the_first_is_stopped(person, services):
    for text in ("tiny-llama", "tiny-llama", "stop last now", "tiny-llama", "tiny-llama"):
        person.type(text)

    assert sorted(run.is_stopping for run in services.runs.list_recent()) == [False, True]


@pytest.mark.parametrize(("variable", "speed"), [("720", 720.0), ("", None)])
def test_run_on_emulated_machines_remembers_their_speed(
    person, services, monkeypatch, variable, speed
):
    monkeypatch.setenv("STATIONMASTER_EMULATED_SPEED", variable)

    person.type("tiny-llama")

    assert [run.emulated_speed for run in services.runs.list_recent()] == [speed]


def test_rendezvous_on_etcd_is_refused_where_this_machine_has_none(
    person, services, monkeypatch, tmp_path
):
    monkeypatch.setenv("STATIONMASTER_EMULATED_SPEED", "720")
    monkeypatch.setenv("PATH", str(tmp_path))

    refused = seen(person.type("tiny-llama rendezvous=etcd"))

    assert "apt install etcd-server); use rendezvous=c10d" in refused
    assert services.runs.list_recent() == []
    (tmp_path / "etcd").touch(mode=0o755)
    assert "is on its way" in seen(person.type("tiny-llama rendezvous=etcd"))


@pytest.mark.parametrize("text", ["tiny-llama nodes=2", "plan tiny-llama", "plan llama2-7b"])
def test_command_is_planned_once_and_its_recipe_looked_up_and_checked_once(person, services, text):
    once = {function.__code__: function for function in (plan_recipe, get_recipe, check_data)}
    called = []

    def count(frame, event, _):
        if event == "call" and frame.f_code in once:
            called.append(once[frame.f_code])

    sys.setprofile(count)
    try:
        person.type(text)
    finally:
        sys.setprofile(None)

    assert sorted(called, key=repr) == sorted(once.values(), key=repr)


@pytest.mark.parametrize("text", ["plan llama2-7b nodes=2", "llama2-7b nodes=2"])
def test_answer_about_machines_without_gpus_warns_and_names_the_way_out(
    person, services, monkeypatch, text
):
    monkeypatch.setattr(EC2Backend, "instance_types", [P4D_WITHOUT_GPUS])

    answer = person.type(text)

    assert "EC2 in us-east-1 says that p4d.24xlarge has 0 GPUs" in seen(answer)
    assert "preset=smoke runs it small" in seen(answer)
    assert len(services.runs.list_recent()) == (not text.startswith("plan"))


def test_question_about_machines_that_fails_fails_no_command(person, services, monkeypatch):
    monkeypatch.setattr(EC2Backend, "describe_instance_types", out_of_order)

    answer = person.type("llama2-7b nodes=2")

    assert "is on its way" in seen(answer)
    assert "EC2" not in seen(answer)
    assert len(services.runs.list_recent()) == 1


def test_recipe_on_cpus_asks_ec2_nothing(person, monkeypatch):
    asked = []
    monkeypatch.setattr(
        EC2Backend, "describe_instance_types", lambda *_, **__: asked.append(1) or []
    )

    person.type("plan tiny-llama")
    assert asked == []
    person.type("plan llama2-7b")
    person.type("plan llama2-7b")

    assert asked == [1]


def test_request_leaves_the_level_of_the_products_logger_as_it_is(person):
    products = logging.getLogger("stationmaster")
    before = products.level
    products.setLevel(logging.DEBUG)
    try:
        person.type("help")
        assert products.level == logging.DEBUG
    finally:
        products.setLevel(before)


@pytest.mark.parametrize(
    ("text", "named", "suggestion"),
    [
        ("x" * 10_000, "10,000 characters", None),
        ("resume tiny-llama", "keeps no results", None),
        ("tiny-llama <!channel>=1", "&lt;!channel&gt;", "/train plan tiny-llama"),
        ("resnet50", "new and empty", "/train plan resnet50 preset=smoke"),
        ("tiny-llama dataset=s3://bucket/text", "s3://bucket/text", None),
    ],
)
def test_bad_command_gets_one_helpful_answer_and_starts_nothing(
    person, services, settings, slack, text, named, suggestion
):
    answer = person.type(text)

    assert answer["statusCode"] == 200
    assert answer["answer"]["response_type"] == "ephemeral"
    assert named in seen(answer)
    assert (f"```{suggestion}```" in seen(answer)) == (suggestion is not None)
    assert services.runs.list_recent() == []
    assert started_workflows(settings) == []
    assert slack.calls == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("help", "how to use /train"),
        ("help", "/train stop"),
        ("recipes", "llama2-7b"),
        ("plan tiny-llama nodes=2 steps=10", "```/train tiny-llama nodes=2 steps=10```"),
        ("list", "no run in this channel"),
    ],
)
def test_question_is_answered_in_valid_blocks_and_starts_nothing(person, services, text, expected):
    answer = person.type(text)

    assert expected in answer["body"]
    assert answer["answer"]["response_type"] == "ephemeral"
    assert not check_blocks(answer["answer"]["blocks"])
    assert services.runs.list_recent() == []


def test_start_that_does_not_fit_names_what_would_and_creates_nothing(person, services):
    answer = person.type("llama2-7b nodes=1 instance=g5.12xlarge steps=10")

    assert "does not fit" in seen(answer)
    assert "Try this instead" in seen(answer)
    assert "```/train plan llama2-7b nodes=" in seen(answer)
    assert "steps=10" in seen(answer)
    assert services.runs.list_recent() == []


def test_newest_run_is_shown_and_its_log_as_inert_code(person, story, services, slack, clock):
    story.begin()
    tail = LogTail(
        pod=f"{story.run_id}-worker-0", at=clock.now(), lines=["old", "```<!here> & done"]
    )
    services.runs.save_log_tails(story.run_id, [tail])

    person.press("show_logs", json.dumps({"run_id": story.run_id}))

    for logs in (seen(person.type("logs")), slack.responses[0].seen):
        assert "'''&lt;!here&gt; &amp; done" in logs
        assert "`worker-0`" in logs
    assert slack.responses[0].arguments["replace_original"] is False
    for step in (10, 20):
        story.progress(step)
    status = seen(person.type("status last"))
    assert story.run_id in status
    # Slack does not say whether it takes the chart of an answer.
    assert "training `" in status
    assert "|dashboard>" in status
    assert "data_visualization" not in status
    assert story.run_id in seen(person.type("list"))
    assert story.run_id not in seen(person.type("list", channel_id="C0OTHER"))


def test_logs_of_one_pod_and_with_a_text_are_shown_alone(person, story, services, clock):
    story.begin()
    pods = {"worker-0": ["step 1", "Loss 4.1"], "worker-1": ["step 1"]}
    tails = [
        LogTail(pod=f"{story.run_id}-{pod}", at=clock.now(), lines=lines)
        for pod, lines in pods.items()
    ]
    services.runs.save_log_tails(story.run_id, tails)

    alone = seen(person.type("logs worker-1"))
    assert ("`worker-1`" in alone, "`worker-0`" in alone) == (True, False)
    found = seen(person.type(f"logs {story.run_id} grep=loss"))
    assert ("Loss 4.1" in found, "step 1" in found) == (True, False)
    assert 'no pod "worker-7"' in person.type("logs worker-7")["answer"]["text"]
    assert 'no line with "nan"' in person.type("logs grep=nan")["answer"]["text"]


def test_logs_since_a_time_leave_out_older_lines(person, story, services):
    story.begin()
    lines = {"lines": ["step 1", "step 2"], "ages_s": [5_000, 0]}
    at = datetime.now(UTC) - timedelta(seconds=600)  # the function's own clock
    newest = LogTail(pod=f"{story.run_id}-worker-0", at=at, **lines)
    services.runs.save_log_tails(story.run_id, [newest])

    found = seen(person.type("logs since=1h"))
    none = person.type("logs since=1m grep=step")["answer"]["text"]

    assert ("step 2" in found, "step 1" in found) == (True, False)
    assert 'no line with "step" of the last 1m is among the newest' in none


def test_stop_button_pressed_twice_stops_once_and_tells_who_pressed(person, story, services, slack):
    story.begin()
    value = json.dumps({"run_id": story.run_id})

    for user in ("U0FIRST", "U0SECOND"):
        assert person.press("stop_run", value, user=user)["statusCode"] == 200
        assert "is being stopped" in slack.responses[-1].seen
        assert slack.responses[-1].arguments["response_type"] == "ephemeral"

    assert services.runs.load(story.run_id).stop_requested_by == "U0FIRST"
    stops = [e for e in services.runs.events(story.run_id) if e.type == "run.stop_requested"]
    assert len(stops) == 1
    story.phases(ev.RunPhase.STOPPED)
    assert person.press("stop_run", value)["statusCode"] == 200
    assert "has ended already" in slack.responses[-1].seen


@pytest.mark.parametrize(
    "phases",
    [
        *([*GOES_WELL[:number]] for number in range(len(GOES_WELL) + 1)),
        [*GOES_WELL[:-2], ev.RunPhase.RECOVERING],
        [ev.RunPhase.QUEUED],
    ],
    ids=lambda phases: phases[-1].value if phases else "requested",
)
@pytest.mark.parametrize("way", ["button", "command now"])
def test_card_offers_stop_in_just_the_phases_in_which_it_stops(
    person, story, services, phases, way
):
    story.begin()
    for phase in phases:
        story.phases(phase)
    run = services.runs.load(story.run_id)

    card = run_card(view_run(services, run), now=services.now())
    ended = run.phase in (ev.RunPhase.SAVING, ev.RunPhase.SUCCEEDED)
    if way == "command now":
        person.type(f"stop {story.run_id} now")
    else:
        asked = seen(person.type(f"stop {story.run_id}"))
        assert services.runs.load(story.run_id).stop_requested_by is None
        assert ("Stop this run?" in asked, "stop_run" in asked) == (not ended, not ended)
        person.press("stop_run", json.dumps({"run_id": story.run_id}))

    stopped = services.runs.load(story.run_id).stop_requested_by is not None
    assert ("stop_run" in buttons(card), stopped) == (not ended, not ended)


def test_stop_of_a_run_that_is_saved_says_what_has_ended_already(person, story, services):
    story.begin()
    story.phases(ev.RunPhase.SUBMITTING, ev.RunPhase.RUNNING)
    story.phases(ev.RunPhase.SAVING, reason="pod w-0 failed: KeyError")

    said = seen(person.type(f"stop {story.run_id}"))

    assert "has failed (pod w-0 failed: KeyError): its training processes have been ended" in said
    assert services.runs.load(story.run_id).stop_requested_by is None


def test_breakdown_shows_a_reference_that_the_log_has(person, caplog):
    boto3.client("dynamodb", REGION).delete_table(TableName="runs")

    answer = person.type("list")

    assert answer["statusCode"] == 200
    references = [getattr(record, "reference", None) for record in caplog.records]
    reference = next(reference for reference in references if reference)
    assert f"reference {reference}" in seen(answer)
    assert "ResourceNotFound" not in seen(answer)


@pytest.mark.parametrize(
    ("others", "text", "typing", "words"),
    [
        ([], "stop", "U0OTHER", "no active run of this channel is yours"),
        (["tiny-llama-00000002"], "stop", USER, "you have 2 active runs"),
        (["tiny-llama-00000002"], "kill all", USER, "you have 2 active runs"),
    ],
)
def test_stop_command_that_may_mean_several_runs_stops_none_and_offers_each(
    person, services, clock, slack, others, text, typing, words
):
    stories = [Story(services, clock, run_id=each) for each in ("tiny-llama-00000001", *others)]
    for story in stories:
        story.begin()

    answer = person.type(text, user_id=typing)

    assert words in seen(answer)
    offered = [each["accessory"] for each in answer["answer"]["blocks"] if "accessory" in each]
    assert {each["confirm"]["title"]["text"] for each in offered} == {"Stop this run?"}
    assert len(offered) == len(stories)
    assert not any(services.runs.load(each.run_id).is_stopping for each in stories)

    person.press(offered[-1]["action_id"], offered[-1]["value"])

    assert "is being stopped" in slack.responses[-1].seen
    stopping = [services.runs.load(each.run_id).is_stopping for each in stories]
    assert stopping == [True] + [False] * len(others)


def test_stops_offered_are_bounded_and_the_rest_is_counted():
    views = [RunView(make_run(run_id=f"tiny-llama-{number:08}"), None) for number in range(10)]

    content = stops_offered(views, why="you have 49 active runs", more=39, now=START)

    assert not check_blocks(content.blocks)
    assert "39 more: `/train list`" in json.dumps(content.blocks)


def test_run_is_called_by_its_name_or_by_what_was_typed(person, slack, services):
    person.type("tiny-llama steps=60 seed=7 name=books-v3")
    person.type("tiny-llama steps=61 nodes=2")

    assert "books-v3: " in slack.cards[0].seen
    assert "/train tiny-llama steps=60 seed=7 name=books-v3" in slack.cards[0].seen
    assert "tiny-llama steps=61: " in slack.cards[1].seen
    (named,) = (run for run in services.runs.list_recent() if run.request.name)
    assert named.run_id in seen(person.type("status books-v3"))
    assert 'no run is called \\"books-v4\\"' in seen(person.type("status books-v4"))
    listed = seen(person.type("list"))
    assert "*books-v3*" in listed
    assert "*tiny-llama steps=61*" in listed


def buttons_of(answer: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The buttons of an answer, by what they say."""
    rows = [each for each in answer["answer"]["blocks"] if each["type"] == "actions"]
    return {each["text"]["text"]: each for row in rows for each in row["elements"]}


def click(person: Person, slack: RecordingSlack, element: dict[str, Any], **more: str) -> str:
    person.press(element["action_id"], element["value"], **more)
    return slack.responses[-1].seen


def test_mistyped_start_is_planned_or_run_by_a_button(
    person: Person, slack: RecordingSlack, services: Services, settings: Settings
) -> None:
    offered = buttons_of(person.type("tiny-lama nodes=2 steps=60"))

    assert "It would create" in click(person, slack, offered["Plan it"])
    assert services.runs.list_recent() == []
    assert offered["Run it"]["confirm"]["text"]["text"] == "`/train tiny-llama nodes=2 steps=60`"

    assert "is on its way" in click(person, slack, offered["Run it"])
    (run,) = services.runs.list_recent()
    assert run.request.command == "/train tiny-llama nodes=2 steps=60"
    assert started_workflows(settings) == [run.run_id]


def test_second_click_in_the_same_moment_starts_nothing_more(
    person: Person, slack: RecordingSlack, services: Services
) -> None:
    run_it = buttons_of(person.type("tiny-lama nodes=2"))["Run it"]

    for trigger in ("one", "two"):
        said = click(person, slack, run_it, trigger_id=trigger)

    assert "was requested a moment ago" in said
    assert len(services.runs.list_recent()) == 1


def test_what_only_shows_something_asks_nothing(person: Person, slack: RecordingSlack) -> None:
    offered = buttons_of(person.type("statsu"))

    assert list(offered) == ["Show it"]
    assert "confirm" not in offered["Show it"]
    assert "there is no run in this channel yet" in click(person, slack, offered["Show it"])


@pytest.mark.parametrize("value", ["", "{}", '{"text": ""}', json.dumps({"text": "x" * 2_000})])
def test_value_of_another_version_is_refused(
    person: Person, slack: RecordingSlack, value: str
) -> None:
    person.press(ActionId.TYPE_COMMAND, value)

    assert "older version" in slack.responses[-1].seen

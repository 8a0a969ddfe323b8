"""A real line of each deployed function's log: it names the run or the cluster that it is about."""

from __future__ import annotations

import inspect
import io
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import Any

import pytest
from bot_world import Person, Story, TableStream
from recording_slack import Refusal

from bot import notifier_handler
from lambdas import reaper, recorder, registry, start_teardown, steps
from lambdas.step import _services_of
from stationmaster.domain.bus import RELAY_BATCH_DETAIL_TYPE
from stationmaster.domain.errors import StationmasterError
from stationmaster.domain.names import SET_ASIDE
from stationmaster.invocations import logger
from tests.support.factories import signed

NOBODY = "tiny-llama-00000000"
Lines = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def lines(settings) -> Iterator[Lines]:
    """What the functions have written, read as CloudWatch reads it."""
    _services_of.cache_clear()
    written = io.StringIO()
    handler = logger.registered_handler
    before = handler.setStream(written)  # type: ignore[attr-defined]
    yield lambda: [json.loads(line) for line in written.getvalue().splitlines()]
    handler.setStream(before)  # type: ignore[attr-defined]
    _services_of.cache_clear()


def test_lines_of_each_step_name_what_it_is_about(lines: Lines):
    names = [function.name.replace("-", "_") for function in registry.STEPS]
    for number, name in enumerate(names):
        step = getattr(import_module(f"stationmaster.steps.{name}"), name)
        _, owner, *others = inspect.signature(step).parameters
        assert owner in ("run_id", "cluster_id"), name

        with suppress(StationmasterError):  # there is no such run, and no such cluster
            getattr(steps, name)({owner: f"nobody-{number}", **dict.fromkeys(others, "x")}, None)

        of_step = [line for line in lines() if line["step"] == name]
        assert of_step, name
        assert {line[owner] for line in of_step} == {f"nobody-{number}"}
    assert {line["step"] for line in lines()} == {*names}


def test_lines_of_the_recorder_name_the_run_in_modules_that_do_not_know_it(lines: Lines):
    happened = {"type": "nobody.knows.this"}
    detail = {
        "run_id": NOBODY,
        "batch_id": "b1",
        "at": "2026-01-02T09:00:00Z",
        "events": [happened],
    }
    detail = signed(detail)

    recorder.handler({"detail-type": RELAY_BATCH_DETAIL_TYPE, "detail": detail}, None)

    (of_library,) = [line for line in lines() if line["message"] == SET_ASIDE]
    assert of_library["location"].startswith("set_aside:")
    assert {line["run_id"] for line in lines()} == {NOBODY}


def test_lines_of_the_recorder_name_the_run_of_an_execution_that_died(
    lines: Lines, settings, story: Story
):
    story.begin()
    detail = {
        "stateMachineArn": settings.train_state_machine_arn,
        "name": story.run_id,
        "status": "ABORTED",
    }

    with suppress(StationmasterError):
        recorder.handler({"detail-type": "of an execution", "detail": detail}, None)

    assert lines()[-1]["run_id"] == lines()[-1]["execution"] == story.run_id


def test_lines_of_the_teardowns_starter_name_the_cluster(lines: Lines):
    with pytest.raises(StationmasterError):
        start_teardown.handler({"detail": {"cluster_id": NOBODY}}, None)

    assert {line["cluster_id"] for line in lines()} == {NOBODY}


def test_lines_of_the_reaper_name_whom_it_has_helped(lines: Lines, story: Story):
    story.begin()

    reaper.handler({}, None)

    (reaped,) = [line for line in lines() if line.get("step") == "reap"]
    assert reaped["result"] == [story.run_id]


def test_lines_of_the_bot_name_the_run_of_a_command_and_of_a_button(
    lines: Lines, person: Person, story: Story
):
    story.begin()

    person.type(f"status {story.run_id}")
    person.type("help")
    person.press("show_logs", json.dumps({"run_id": story.run_id}))

    answered = [line for line in lines() if line["message"] == "request answered"]
    assert [line.get("run_id") for line in answered] == [story.run_id, None, story.run_id]
    assert [line["status"] for line in answered] == [200, 200, 200]
    assert {line["service"] for line in answered} == {"stationmaster"}


def test_lines_of_the_notifier_name_the_runs_of_a_batch_and_the_one_it_tells_of(
    lines: Lines, stream: TableStream, story: Story, slack
):
    story.begin()
    slack.refusals["chat.postMessage"].append(Refusal(error="msg_blocks_too_long"))

    notifier_handler.handler(stream.next_batch(), None)

    (refused,) = [line for line in lines() if line["message"] == "it cannot be posted"]
    assert refused["run_id"] == story.run_id
    assert refused["location"].startswith("_tell_all:")
    assert {tuple(line["run_ids"]) for line in lines()} == {(story.run_id,)}


def test_every_function_has_its_lines_read_here():
    others = {"recorder", "start-teardown", "reaper", "bot", "notifier"}
    of_the_deployment = {"check-reach"}  # it is about no run and no cluster

    names = {each.name for each in registry.FUNCTIONS} - {each.name for each in registry.STEPS}
    assert names == others | of_the_deployment


def figures_in(lines: list[dict[str, Any]]) -> list[dict[str, float]]:
    """What CloudWatch makes metrics of, a dictionary for each line that has any."""
    return [
        {each["Name"]: line[each["Name"]][0] for each in described["Metrics"]}
        for line in lines
        for described in line.get("_aws", {}).get("CloudWatchMetrics", [])
    ]


def test_bot_counts_what_it_answers_and_what_it_refuses(lines: Lines, person: Person):
    person.type("help")
    person.secret = "of-somebody-else"
    person.type("help")

    assert figures_in(lines()) == [{"Requests": 1}, {"RefusedRequests": 1}]


def test_recorder_measures_how_far_behind_a_relay_it_is(lines: Lines, story: Story):
    story.begin()

    for number, sent_at in enumerate((datetime.now(UTC) - timedelta(hours=1), "no time")):
        detail = signed({"run_id": story.run_id, "batch_id": f"b{number}", "at": str(sent_at)})
        recorder.handler({"detail-type": RELAY_BATCH_DETAIL_TYPE, "detail": detail}, None)

    (figures,) = figures_in(lines())
    assert figures.keys() == {"EventLagSeconds"}
    assert 3600 <= figures["EventLagSeconds"] < 7200


def test_notifier_measures_how_far_behind_the_table_the_channel_is(
    lines: Lines, stream: TableStream, story: Story
):
    story.begin()
    batch = stream.next_batch()
    for record in batch["Records"]:
        record["dynamodb"]["ApproximateCreationDateTime"] -= 3600

    notifier_handler.handler(batch, None)

    (figures,) = figures_in(lines())
    assert figures.keys() == {"NewsLagSeconds"}
    assert 3600 <= figures["NewsLagSeconds"] < 7200

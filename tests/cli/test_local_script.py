"""`local run` with several commands, on a channel and a table that the tests play."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from stationmaster.aws.table import table_definition
from stationmaster.cli.local_script import Script
from stationmaster.cli.local_watch import Record, Watch
from stationmaster.domain.catalogue.instances import get_instance
from stationmaster.domain.cluster import events as cl
from stationmaster.domain.cluster.events import ClusterPhase
from stationmaster.domain.cluster.spec import spec_for_any
from stationmaster.domain.run import events as ev
from stationmaster.domain.run.attempts import first_assignment
from stationmaster.local.aws import LocalAws
from stationmaster.local.slack.records import TRAINING_CHANNEL_ID, ApiCall
from stationmaster.local.stop_signals import StopSignals
from stationmaster.services import Services
from stationmaster.settings import Settings
from tests.support.factories import make_request, make_requested

TABLES = (f"runs-{number}" for number in count())
CLUSTER_ID = "team-a-0123abcd"


class PlayedMode:
    """A local mode of which only the channel and the table are there.

    `answers` says what each command does: a function that records events.
    """

    def __init__(self, settings: Settings, services: Services) -> None:
        self.settings = settings
        self.services = services
        self.answers: dict[str, Callable[[], None]] = {
            "cluster create team-a": self.create,
            "cluster delete team-a now": self.delete,
        }
        self.typed: list[str] = []
        self.slack = self.aws = self
        self.watch: Watch | None = None
        self._count = 0

    def type_command(self, text: str) -> None:
        text = text.removeprefix("/train ")
        self.typed.append(text)
        self.answers.get(text, lambda: None)()

    def settle(self) -> bool:
        return True

    def _say(self, event: Any) -> None:
        assert self.watch is not None
        self.watch.event(event)

    def cluster(self, kind: type[Any], /, **values: Any) -> None:
        """Record an event of the cluster, as the table's stream shows it."""
        self._count += 1
        about = {"event_id": f"c{self._count}", "cluster_id": CLUSTER_ID, "at": datetime.now(UTC)}
        event = kind(**(about | values))
        if kind is cl.ClusterRequested:
            self.services.cluster_states.create(event)
        else:
            self.services.cluster_states.record(CLUSTER_ID, [event])
        self._say(event)

    def create(self) -> None:
        self.request_cluster()
        self.phases(ClusterPhase.PROVISIONING, ClusterPhase.READY)

    def request_cluster(self) -> None:
        self.cluster(
            cl.ClusterRequested,
            spec=spec_for_any(get_instance("m5.2xlarge"), nodes=2, file_system_gib=1200),
            name="team-a",
            requester=cl.Requester(team_id="T1", channel_id=TRAINING_CHANNEL_ID, user_id="U1"),
            keep_until=datetime.now(UTC) + timedelta(hours=8),
        )

    def phases(self, *phases: ClusterPhase) -> None:
        for phase in phases:
            self.cluster(cl.ClusterPhaseChanged, phase=phase)

    def delete(self) -> None:
        self.cluster(cl.DeletionRequested, user_id="U1")
        self.cluster(cl.TeardownStarted)
        self.cluster(cl.TeardownCompleted, cost_usd=2.0)

    def run(self, kind: type[Any], run_id: str, /, **values: Any) -> None:
        self._count += 1
        about = {"event_id": f"r{self._count}", "run_id": run_id, "at": datetime.now(UTC)}
        event = kind(**(about | values))
        self.services.runs.record(run_id, [event])
        self._say(event)

    def request(self, run_id: str) -> None:
        """A run on the cluster is requested and leases one node."""
        request = make_request(nodes=1, cluster_id=CLUSTER_ID, channel_id=TRAINING_CHANNEL_ID)
        requested = make_requested(run_id, at=datetime.now(UTC), request=request)
        until = datetime.now(UTC) + timedelta(seconds=30)
        self.services.runs.create(requested, dedup_key=run_id, dedup_until=until)
        self._say(requested)
        self.run(ev.AttemptStarted, run_id, **dict(first_assignment(run_id, request)))
        self.cluster(cl.LeaseRequested, run_id=run_id, nodes=1)

    def end(self, run_id: str, phase: ev.RunPhase = ev.RunPhase.SUCCEEDED) -> None:
        for each in (ev.RunPhase.SUBMITTING, ev.RunPhase.RUNNING):
            self.run(ev.PhaseChanged, run_id, phase=each)
        self.run(ev.ProgressReported, run_id, seq=1, step=1, total_steps=1, loss_nats=2.0)
        self.run(ev.PhaseChanged, run_id, phase=phase)
        self.cluster(cl.LeaseReleased, run_id=run_id)

    def stop(self, run_id: str = "tiny-llama-aaaaaaaa") -> None:
        self.run(ev.StopRequested, run_id, user_id="U1")
        self.end(run_id, ev.RunPhase.STOPPED)

    def train(self, run_id: str, phase: ev.RunPhase = ev.RunPhase.SUCCEEDED) -> None:
        self.request(run_id)
        self.end(run_id, phase)


@pytest.fixture
def mode(aws: LocalAws, monkeypatch: pytest.MonkeyPatch) -> PlayedMode:
    for name, value in aws.environment().items():
        monkeypatch.setenv(name, value)
    table = next(TABLES)
    aws.client("dynamodb").create_table(**table_definition(table))
    settings = Settings(region=aws.region, table_name=table, bus_name="bus")
    return PlayedMode(settings, Services.create(settings))


@pytest.fixture
def play(mode: PlayedMode, tmp_path: Path) -> Callable[..., tuple[int, list[dict[str, Any]]]]:
    """Plays a script; the exit code, and the result and summary lines."""

    def run(
        *texts: str, together: bool = False, timeout_s: float = 60.0, same_words_s: float = 0.0
    ):
        path = tmp_path / "out.jsonl"
        with Record(path) as record, StopSignals() as signals:
            record.open()
            mode.watch = Watch(record)
            script = Script(
                mode, mode.watch, signals, timeout_s=timeout_s, same_words_s=same_words_s
            )
            code = script.play(texts, together=together)
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        return code, [line for line in lines if line["kind"] in ("result", "summary")]

    return run


def test_commands_are_typed_one_after_the_others_end(mode, play):
    mode.answers["tiny-llama on=team-a"] = lambda: mode.train("tiny-llama-aaaaaaaa")

    texts = ("cluster create team-a", "tiny-llama on=team-a", "cluster delete team-a now")
    code, lines = play(*texts)

    assert code == 0
    assert mode.typed == list(texts)
    result, summary = lines
    assert (result["status"], result["cluster_id"]) == ("succeeded", CLUSTER_ID)
    assert result["time_to_first_step_s"] >= 0
    assert (result["queued_s"], result["billable_resources_left"]) == (0.0, 0)
    assert result["result"] is None
    assert (result["goodput"], result["spent_s"]) == (None, None)  # nothing of it has a price
    assert (summary["commands"], summary["succeeded"]) == (3, 3)
    assert (summary["cost_usd"], summary["billable_resources_left"]) == (2.0, 0)


def test_cluster_that_was_ready_and_fails_its_validation_is_the_verdict(mode, play):
    def validate() -> None:
        mode.cluster(cl.PassBegan, nodes=2, user_id="U1")
        mode.phases(ClusterPhase.VALIDATING, ClusterPhase.FAILED)
        mode.delete()

    mode.answers["validate team-a"] = validate

    code, (summary,) = play("cluster create team-a", "validate team-a")

    assert code == 1
    assert (summary["commands"], summary["succeeded"]) == (2, 1)


def test_run_that_fails_is_the_verdict(mode, play):
    failed = ev.RunPhase.FAILED
    mode.answers |= {
        "one": lambda: mode.train("tiny-llama-aaaaaaaa", failed),
        "two": lambda: mode.train("tiny-llama-bbbbbbbb"),
    }

    code, lines = play("cluster create team-a", "one", "two")

    assert code == 1
    assert [line["status"] for line in lines[:2]] == ["failed", "succeeded"]
    assert lines[-1]["succeeded"] == 2


def test_refused_command_ends_the_script(mode, play):
    code, lines = play("cluster create team-a", "tiny-lama on=team-a", "tiny-llama on=team-a")

    assert code == 2
    assert "tiny-llama on=team-a" not in mode.typed
    assert mode.typed[-1] == "cluster delete team-a now"
    assert lines[-1]["succeeded"] == 1


def test_questions_end_at_once_and_a_word_that_is_no_command_is_bad_input(play):
    assert play("cluster list") == (0, [])
    assert play("plan tiny-llama", "status")[0] == 0
    assert play("clusters")[0] == 2


def test_together_types_all_before_it_waits(mode, play):
    def end_both() -> None:
        mode.request("tiny-llama-bbbbbbbb")
        mode.end("tiny-llama-aaaaaaaa")
        mode.end("tiny-llama-bbbbbbbb")

    mode.answers |= {
        "one": lambda: mode.request("tiny-llama-aaaaaaaa"),
        "two": end_both,
    }

    code, lines = play("cluster create team-a", "one", "two", together=True)

    assert code == 0
    assert [line["run_id"] for line in lines[:2]] == ["tiny-llama-aaaaaaaa", "tiny-llama-bbbbbbbb"]


def test_run_that_takes_too_long_is_stopped_and_the_rest_goes_on(mode, play):
    mode.answers |= {
        "slow": lambda: mode.request("tiny-llama-aaaaaaaa"),
        "stop tiny-llama-aaaaaaaa now": mode.stop,
    }

    code, lines = play("cluster create team-a", "slow", timeout_s=0.05)

    assert code == 1
    assert "stop tiny-llama-aaaaaaaa now" in mode.typed
    assert lines[0]["status"] == "stopped"


def test_run_that_a_later_command_stops_has_one_result(mode, play):
    mode.answers |= {
        "slow": lambda: mode.request("tiny-llama-aaaaaaaa"),
        "stop": mode.stop,
    }

    code, lines = play("cluster create team-a", "slow", "stop", together=True)

    assert code == 1
    assert [line["kind"] for line in lines] == ["result", "summary"]
    assert lines[-1]["succeeded"] == 2


def test_same_words_are_typed_again_when_they_mean_another_run(mode, play):
    times = []
    runs = iter(["tiny-llama-aaaaaaaa", "tiny-llama-bbbbbbbb"])

    def train() -> None:
        times.append(time.monotonic())
        mode.train(next(runs))

    mode.answers["tiny-llama on=team-a"] = train
    again = "tiny-llama on=team-a"

    code, lines = play("cluster create team-a", again, again, same_words_s=1.0)

    assert code == 0
    assert len(lines) == 3
    assert times[1] - times[0] >= 0.9


def test_wait_in_the_queue_is_reported_in_seconds(mode, play):
    def train() -> None:
        mode.request("tiny-llama-aaaaaaaa")
        mode.run(
            ev.PhaseChanged,
            "tiny-llama-aaaaaaaa",
            phase=ev.RunPhase.QUEUED,
            at=datetime.now(UTC) - timedelta(seconds=12),
        )
        mode.end("tiny-llama-aaaaaaaa")

    mode.answers["waits"] = train

    _, lines = play("cluster create team-a", "waits")

    assert lines[0]["queued_s"] == pytest.approx(12, abs=2)


def test_cluster_that_fails_is_no_success(mode, play):
    def fail() -> None:
        mode.request_cluster()
        mode.phases(ClusterPhase.PROVISIONING)
        mode.cluster(cl.ClusterPhaseChanged, phase=ClusterPhase.FAILED, reason="no capacity")
        mode.cluster(cl.TeardownStarted)
        mode.cluster(cl.TeardownCompleted, cost_usd=0.1)

    mode.answers["cluster create team-a"] = fail

    assert play("cluster create team-a")[0] == 1


def test_texts_are_printed_as_slack_shows_them(capsys):
    Watch(Record(None)).slack(
        ApiCall(
            method="chat.postMessage",
            channel="C1",
            ts="1",
            text="x -&gt; y &amp; stays until <!date^1795358485^{time}|2026-11-22 14:41 UTC>",
            blocks=[],
        )
    )

    assert "x -> y & stays until 2026-11-22 14:41 UTC" in capsys.readouterr().out

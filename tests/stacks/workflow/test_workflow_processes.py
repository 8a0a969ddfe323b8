"""The whole workflow with every function in processes of AWS's own Lambda runtime client.

In-process handlers share modules, clients and an environment; these share nothing, as in AWS. The
run is typed as a person types it, so bot and notifier take part.
"""

from __future__ import annotations

import threading
from pathlib import Path

import boto3
import pytest

from stationmaster.commands import view_run
from stationmaster.domain.cluster.events import ClusterEvent
from stationmaster.domain.run.events import RunEvent
from stationmaster.local.mode import REPOSITORY, LocalMode, LocalOptions
from stationmaster.services import Services
from stationmaster.steps.parts.leftovers import find_left
from tests.chaos.torchrun import programs_in
from tests.chaos.world import LIMITS
from tests.support.lambda_processes import LambdaProcesses
from tests.support.patience import PATIENCE_S


def test_run_typed_in_slack_goes_through_lambda_processes_to_its_receipt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "logs").mkdir()
    runtime = LambdaProcesses(log_dir=tmp_path / "logs", working_dir=REPOSITORY)
    options = LocalOptions(
        state_dir=tmp_path / "state",
        port=0,
        runtime=runtime,
        limits=LIMITS,
        extra_path=programs_in(tmp_path),
    )
    seen: list[RunEvent | ClusterEvent] = []
    over = threading.Event()

    def follow(event: RunEvent | ClusterEvent) -> None:
        seen.append(event)
        if event.type in ("teardown.completed", "teardown.failed"):
            over.set()

    with LocalMode(options) as mode:
        assert mode.aws is not None
        assert mode.settings is not None
        mode.on_event(follow)
        mode.slack.type_command("/train tiny-llama nodes=1")
        assert over.wait(PATIENCE_S), f"the run is not over; last event: {seen[-1:]}"
        mode.aws.settle(timeout_s=PATIENCE_S)
        for name, value in mode.aws.environment().items():
            monkeypatch.setenv(name, value)
        boto3.setup_default_session()  # an earlier one may keep another account's key
        services = Services.create(mode.settings)
        view = view_run(services, services.runs.load(seen[0].run_id))
        run = view.run
        left = find_left(services, run.run_id)
        (card, *_) = [message.text for message in mode.slack.messages()]
        functions = {path.stem for path in (tmp_path / "logs").glob("*.log")}

    assert (run.phase.value, view.teardown.value, left) == ("succeeded", "completed", [])
    assert "succeeded" in card.lower()
    assert {"bot", "notifier", "recorder", "start-teardown", "await-job"} <= functions

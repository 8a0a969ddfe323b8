"""A run whose job, nodes or cluster go away: who ends it, and with what sentence.

The store, the steps, the gateway and the cluster are real; EKS and Step Functions are played.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from stationmaster.aws.file_systems import FileSystem
from stationmaster.domain.bus import RelayBatch
from stationmaster.domain.errors import TransientError
from stationmaster.domain.names import relay_name
from stationmaster.domain.resources import ResourceKind
from stationmaster.domain.run import events as ev
from stationmaster.domain.run.attempts import first_assignment
from stationmaster.domain.run.events import RunPhase
from stationmaster.kubernetes.views import PodView
from stationmaster.local.cluster import LocalCluster
from stationmaster.steps.await_job import await_job
from stationmaster.steps.conclude_run import conclude_run
from stationmaster.steps.install_plugin import install_plugin
from stationmaster.steps.parts.silence import explain_silence, why_failed
from stationmaster.steps.prepare_run import await_limit_s
from stationmaster.steps.record_events import record_batch
from stationmaster.steps.save_results import save_results
from stationmaster.steps.submit_job import submit_job
from tests.support.aws_fixtures import until as eventually
from tests.support.kubernetes_gateway_fixtures import (
    CLUSTER_ID,
    NAMESPACE,
    REQUEST,
    RUN_ID,
    add_nodes,
    set_job_condition,
)
from tests.support.kubernetes_gateway_world import (
    ControlPlanes,
    Fsx,
    Groups,
    World,
    world_of,
)

TO_RUNNING = (
    RunPhase.PROVISIONING,
    RunPhase.VALIDATING,
    RunPhase.SUBMITTING,
    RunPhase.RUNNING,
)
SILENCE = {"Error": "States.HeartbeatTimeout", "Cause": ""}


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A world whose cluster cannot be looked into."""
    with world_of(monkeypatch, None) as made:
        yield made


def begin(world: World) -> None:
    """A run that trains on two pods, its workflow waiting for the job."""
    world.begin(*TO_RUNNING)
    submitted = event(world, ev.JobSubmitted, job=RUN_ID)
    pods = [pod(world, f"{RUN_ID}-worker-{n}", "Running", node=f"n-{n}") for n in (0, 1)]
    step = event(world, ev.ProgressReported, seq=1, step=1, total_steps=9, loss_nats=1.0)
    world.runs.record(RUN_ID, [submitted, *pods, step])
    await_job(world, RUN_ID, task_token="token")
    assert world.workflows.said == []


def event(world: World, event_class: Any, **fields: Any) -> Any:
    event_id = f"{event_class.__name__} {json.dumps(fields, default=str)} {world.late_s}"
    return event_class(event_id=event_id, run_id=RUN_ID, at=world.now(), **fields)


def pod(world: World, name: str, phase: str, **fields: Any) -> ev.PodChanged:
    return event(world, ev.PodChanged, pod=name, phase=phase, **fields)


def report(world: World, *events: Any, heartbeat: bool = True) -> None:
    batch = RelayBatch(
        run_id=RUN_ID, batch_id="b", at=world.now(), events=list(events), heartbeat=heartbeat
    )
    record_batch(world, batch)


class PlayedLogs:
    """A gateway, as far as the end of a pod's log is read."""

    def __init__(self, line: str | Exception) -> None:
        self.line = line

    def failure_line(self, name: str) -> str:
        if isinstance(self.line, Exception):
            raise self.line
        return self.line


@pytest.mark.parametrize(
    ("line", "said"), [("KeyError: 'model'", ": KeyError: 'model'"), (TransientError("away"), "")]
)
def test_failure_whose_cause_no_relay_reported_is_read_from_the_pods(
    outside: World, line: str | Exception, said: str
):
    begin(outside)
    report(outside, pod(outside, "w-0", "Failed", exit_code=75, reason="Error"))
    run = outside.runs.load(RUN_ID)
    pods = [
        PodView(name="w-0", phase="Running", exit_code=75, terminated_reason="Error"),
        PodView(name="w-1", phase="Running", exit_code=137, terminated_reason="OOMKilled"),
    ]

    sentence = why_failed(PlayedLogs(line), run, "the job failed", pods)

    assert sentence == f"pod w-1 exited with code 137 (OOMKilled){said}; the job failed"


def test_what_the_trainer_has_said_comes_before_how_its_pod_ended(outside: World):
    begin(outside)
    name, said = f"{RUN_ID}-worker-0", "the loss is not a number"
    report(outside, event(outside, ev.TrainingReportedFailure, reason=said))
    report(outside, pod(outside, name, "Failed", exit_code=1, reason="Error"))
    run = outside.runs.load(RUN_ID)

    sentence = why_failed(PlayedLogs(""), run, "the job failed", [])

    assert sentence == said


def test_lost_node_is_a_recovery_that_is_waited_for_while_its_group_stands(outside: World):
    begin(outside)

    report(outside, event(outside, ev.NodeLost, node="n-1", reason="the node was deleted"))

    assert outside.runs.load(RUN_ID).phase is RunPhase.RECOVERING
    assert outside.workflows.said == [("heartbeat", "")]


@pytest.mark.parametrize(
    ("group", "status", "what"),
    [("training", None, "was deleted"), ("system", "DELETING", "is DELETING")],
)
def test_recovery_whose_node_group_is_deleted_ends_with_the_next_heartbeat(
    outside: World, group: str, status: str | None, what: str
):
    begin(outside)
    outside.node_groups.statuses[group] = status
    report(outside)
    assert outside.workflows.said == [("heartbeat", "")], "a run that trains is not looked at"

    report(outside, event(outside, ev.NodeLost, node="n-1", reason="the node was deleted"))

    sentence = f"the {group} node group {what} during the run"
    assert outside.workflows.said[1:] == [("TrainingFailed", sentence)]


def test_node_group_that_is_gone_is_recorded_as_deleted_once_and_costs_nothing_from_then(
    outside: World,
):
    begin(outside)
    outside.node_groups.statuses["training"] = None

    report(outside, event(outside, ev.NodeLost, node="n-1", reason="r"))
    report(outside)

    deleted = [(e.kind, e.name) for e in outside.events("resource.deleted")]
    assert deleted == [(ResourceKind.NODE_GROUP, "training")]
    assert outside.cluster_states.load(CLUSTER_ID).billable_left == []


def test_recovery_is_waited_for_while_eks_does_not_answer(outside: World):
    begin(outside)
    outside.clusters.failure = TransientError("EKS is away")

    report(outside, event(outside, ev.NodeLost, node="n-1", reason="the node was deleted"))

    assert outside.workflows.said == [("heartbeat", "")]


class NoFsx(Fsx):
    """FSx without any file system."""

    def list_tagged(self, cluster_id: str) -> list[FileSystem]:
        return []


def conclude(world: World) -> tuple[RunPhase, str]:
    """How the run ends, and why; its file system is gone, so nothing of it can be saved."""
    world.file_systems = NoFsx()
    save_results(world, RUN_ID, error=SILENCE)
    conclude_run(world, RUN_ID, error=SILENCE)
    run = world.runs.load(RUN_ID)
    return run.phase, run.reason


SILENT = "the relay in the cluster fell silent, so the job is not watched"
NO_SYSTEM = Groups({"training": "ACTIVE", "system": None})
EKS_AWAY = ControlPlanes(failure=TransientError("EKS is away"))


@pytest.mark.parametrize(
    ("part", "played", "sentence"),
    [
        ("clusters", ControlPlanes(gone=True), f"the cluster of run {RUN_ID} was deleted during"),
        ("clusters", ControlPlanes(status="DELETING"), f"cluster {RUN_ID} is DELETING during the"),
        ("node_groups", NO_SYSTEM, "the system node group was deleted during the run"),
        ("clusters", EKS_AWAY, f"{SILENT}; the cluster could not be looked at: EKS is away"),
    ],
)
def test_silence_of_a_relay_that_went_with_its_cluster_names_what_was_deleted(
    outside: World, part: str, played: Any, sentence: str
):
    begin(outside)
    setattr(outside, part, played)

    phase, reason = conclude(outside)

    assert phase is RunPhase.FAILED
    assert reason.startswith(sentence)


def test_silence_of_an_api_server_is_reported(world: World, cluster: LocalCluster):
    begin(world)
    world.gateway.close()
    cluster.stop(grace_s=0.1)

    _, reason = conclude(world)

    assert reason.endswith("the cluster's Kubernetes API does not answer")


def test_silence_is_explained_from_the_job_over_nodes_and_pods_to_the_relay(
    world: World, cluster: LocalCluster
):
    wish = REQUEST.model_copy(update={"nodes": 3})  # the attempt was placed on two
    world.begin(*TO_RUNNING, request=wish, assignment=first_assignment(RUN_ID, REQUEST))
    add_nodes(cluster, group="system")
    eventually(lambda: install_plugin(world, RUN_ID, plugin="training-operator")["ready"])

    def explain() -> str:
        sentence, succeeded = explain_silence(world, world.runs.load(RUN_ID))
        assert not succeeded
        return sentence

    assert explain() == f"PyTorchJob {RUN_ID} was deleted from the cluster before it had ended"

    submit_job(world, RUN_ID)
    labels = {"stationmaster/role": "training"}
    eventually(lambda: [p for p in world.gateway.pods(labels=labels) if p.unschedulable])
    assert explain() == "0 of 2 training nodes are ready"

    cluster.install_addon("aws-fsx-csi-driver")
    add_nodes(cluster, group="training")
    eventually(lambda: [p.phase for p in world.gateway.pods(labels=labels)] == ["Running"] * 2)
    relay = {"stationmaster/role": "relay"}
    world.gateway.delete("apps/v1", "Deployment", name=relay_name(RUN_ID), namespace=NAMESPACE)
    eventually(lambda: not world.gateway.pods(labels=relay))
    assert explain() == f"{SILENT}: its pod is gone"


def test_job_that_succeeded_while_the_relay_was_silent_is_a_success(
    world: World, cluster: LocalCluster
):
    begin(world)
    add_nodes(cluster, group="system")
    eventually(lambda: install_plugin(world, RUN_ID, plugin="training-operator")["ready"])
    submit_job(world, RUN_ID)
    set_job_condition(cluster, "Succeeded")

    assert conclude(world) == (RunPhase.SUCCEEDED, "")


DAY_S = 86_400


@pytest.mark.parametrize(
    ("estimated_s", "days"), [(60, 7), (2 * DAY_S, 7), (23 * DAY_S, 69), (900 * DAY_S, 300)]
)
def test_wait_for_the_job_is_three_times_its_estimate_between_a_week_and_a_year(
    estimated_s: int, days: int
):
    assert await_limit_s(estimated_s) == days * DAY_S

"""Runs as guests in an EKS cluster that a person made: they come, train, and leave it as it was.

Real are the state machines, the handlers, the account, the cluster, its pods and the relays in it.
The handlers have no other rights in the cluster than those that its owner is asked for.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from stationmaster.domain.cluster.aggregate import TeardownStatus
from stationmaster.domain.ids import ClusterId, RunId
from stationmaster.domain.job_kinds import JobKind
from stationmaster.domain.keys.job_options import JobOptions
from stationmaster.domain.names import LABEL_ROLE, LABEL_RUN_ID
from stationmaster.domain.run.events import NodeLost, PhaseChanged, RunPhase
from stationmaster.kubernetes.gateway import KubernetesGateway
from tests.chaos.outcomes import Outcome
from tests.chaos.owner import Owner
from tests.chaos.world import World, run_id_of


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The product's functions have a kubeconfig that their owner writes."""
    return {"kubeconfig": str(tmp_path_factory.mktemp("guest") / "kubeconfig")}


@pytest.fixture(scope="module")
def owner(world: World, settings: dict[str, str]) -> Owner:
    made = Owner(world)
    made.make()
    made.let_in(Path(settings["kubeconfig"]))
    return made


def test_guest_trains_as_a_trainjob_where_others_have_trainer_only_over_a_lost_node(
    world: World, owner: Owner
) -> None:
    services, run_id = world.services, run_id_of("trainjob")
    of_run = {LABEL_RUN_ID: run_id, LABEL_ROLE: "training"}

    with owner.with_trainer():
        before = owner.belongings()
        world.request("trainjob", plan="waits", nodes=2, **owner.guest)
        world.until_awaiting(run_id)
        gateway = services.kubernetes(ClusterId(run_id))
        job, pods = gateway.job(run_id), gateway.pods(labels=of_run)
        where, lost = {pod.node for pod in pods}, pods[1].node
        world.until(lambda: nodes_known_of(world, run_id) == where, "the relay has seen both pods")
        world.mode.cluster.lose_node(lost)
        world.until(lambda: set_back(world, run_id), "the loss is reported")
        old = {pod.name for pod in pods}
        world.until(lambda: len(running(gateway, of_run) - old) == 2, "all start again")
        new_pods = gateway.pods(labels=of_run)
        world.let_end(run_id)
        world.until_rested(run_id, torn_down=True)
        after = owner.belongings()
        owner.replace_node()

    outcome = world.outcome(run_id)
    run = outcome.run
    assert (run.phase, run.reason) == (RunPhase.SUCCEEDED, "")
    assert run.results is not None
    assert run.job_kind is JobKind.TRAIN_JOB
    assert job is not None
    assert (job.kind, job.condition("Failed")) == (JobKind.TRAIN_JOB, None)
    events = services.runs.events(run_id)
    assert {each.node for each in events if isinstance(each, NodeLost)} == {lost}
    phases = [each.phase for each in events if isinstance(each, PhaseChanged)]
    assert phases[phases.index(RunPhase.RECOVERING) + 1] is RunPhase.RUNNING
    assert len({pod.node for pod in pods}) == 2
    assert len({pod.node for pod in new_pods} - {lost}) == 2, "both start again"
    assert not {pod.name for pod in pods} & {pod.name for pod in new_pods}
    assert set(run.pods) == {f"{run_id}-node-0-{index}" for index in (0, 1)}
    nodes = "/api/v1/nodes"
    assert after | {nodes: []} == before | {nodes: []}
    assert [each for each in before[nodes] if each[1] != lost] == after[nodes]
    assert_left_nothing(outcome)
    assert outcome.cluster is not None
    assert outcome.cluster.job_kind is JobKind.TRAIN_JOB


def test_guest_trains_on_a_claim_of_their_namespace_and_leaves_it(
    world: World, owner: Owner
) -> None:
    file_system = owner.make_claim()
    before = owner.belongings()

    run_id = world.request(
        "claim", nodes=2, eks_name=owner.guest["eks_name"], file_system=file_system
    )
    world.until_rested(run_id, torn_down=True)

    outcome = world.outcome(run_id)
    assert (outcome.run.phase, outcome.run.reason) == (RunPhase.SUCCEEDED, "")
    assert outcome.run.results is not None
    assert outcome.run.job_kind is JobKind.PYTORCH_JOB
    assert {each.name for each in outcome.cluster.checks} >= {"access", "nodes", "storage"}
    assert owner.belongings() == before
    assert_left_nothing(outcome)


def test_two_guests_share_the_namespace_of_a_team_and_leave_what_it_has_there(
    world: World, owner: Owner, settings: dict[str, str]
) -> None:
    team = "hyperpod-ns-research"
    gateway = owner.make_team(team)
    owner.let_in(Path(settings["kubeconfig"]), team)
    before = owner.belongings()
    queues = {"team-one": f"{team}-clusterqueue", "team-two": f"{team}-localqueue"}

    runs = [
        world.request(name, nodes=2, job_options=JobOptions(queue=queue), **owner.guest)
        for name, queue in queues.items()
    ]
    for run_id in runs:
        owner.admit(gateway, run_id)
    for run_id in runs:
        world.until_rested(run_id, torn_down=True)

    for outcome in map(world.outcome, runs):
        assert (outcome.run.phase, outcome.run.reason) == (RunPhase.SUCCEEDED, "")
        assert outcome.cluster.spec.place == f"theirs/{team}"
        assert_left_nothing(outcome)
    assert owner.belongings() == before
    owner.let_in(Path(settings["kubeconfig"]))
    gateway.close()


def running(gateway: KubernetesGateway, labels: dict[str, str]) -> set[str]:
    return {pod.name for pod in gateway.pods(labels=labels) if pod.phase == "Running"}


def nodes_known_of(world: World, run_id: RunId) -> set[str]:
    return {pod.node for pod in world.services.runs.load(run_id).pods.values()}


def set_back(world: World, run_id: RunId) -> list[str]:
    """The reasons for which the run was recovering."""
    events = world.services.runs.events(run_id)
    changes = [each for each in events if isinstance(each, PhaseChanged)]
    return [each.reason for each in changes if each.phase is RunPhase.RECOVERING]


def assert_left_nothing(outcome: Outcome) -> None:
    assert (outcome.teardown, outcome.left, outcome.billable_left) == (
        TeardownStatus.COMPLETED,
        [],
        [],
    )

"""Runs on a range of nodes of a kept cluster: on what is free, on all, and on what is left."""

import math

import pytest
from e2e_world import World, world

from stationmaster import commands
from stationmaster.domain.names import (
    LABEL_ROLE,
    LABEL_RUN_ID,
    TRAINING_NODE_GROUP,
    cluster_name,
)
from stationmaster.domain.run.events import RunPhase
from stationmaster.local.slack import OPERATOR_ID, TRAINING_CHANNEL_ID
from stationmaster.services import Services

# A constant rate, so that the number of steps decides no loss; small, so that rounding stays small.
KEYS = (
    "schedule=constant learning_rate=3e-4 min_learning_rate=0 eval_every=0 sequence_length=64 "
    "global_batch_size=4"
)
FEW, MANY = (
    "steps=6 checkpoint_every=3 log_every=1",
    "steps=100000 checkpoint_every=15 log_every=1",
)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory):
    """A local mode with a kept cluster of two nodes."""
    with world(tmp_path_factory.mktemp("ranges"), forks=True) as made:
        made.type("/train cluster create lab nodes=2 ttl=4h")
        made.wait(lambda: phases(made, "ready"), "the cluster is ready")
        yield made


def phases(made: World, phase: str):
    return [event for event in made.of_type("cluster.phase_changed") if event.phase == phase]


def of(made: World, run_id: str, kind: str):
    return [event for event in made.of_type(kind) if event.run_id == run_id]


def losses(made: World, run_id: str, *, before=None, after=None) -> dict[int, float]:
    """By step, as reported before an event, or after one."""
    events = list(made.events)
    first = 0 if after is None else events.index(after)
    last = len(events) if before is None else events.index(before)
    return {
        event.step: event.loss_nats
        for event in events[first:last]
        if event.type == "progress.reported" and event.run_id == run_id
    }


def differing(one: dict[int, float], other: dict[int, float]) -> list[int]:
    """Steps whose losses differ by more than two ranks round otherwise than one."""
    both = one.keys() & other.keys()
    return [step for step in both if not math.isclose(one[step], other[step], abs_tol=1e-4)]


def left(made: World, run_id: str) -> bool:
    return bool(of(made, run_id, "lease.released"))


def stop(made: World, run_id: str) -> None:
    commands.stop_run(
        made.services,
        run_id,
        who=commands.Actor(channel_id=TRAINING_CHANNEL_ID, user_id=OPERATOR_ID),
    )
    made.wait(lambda: left(made, run_id), f"{run_id} leaves")


def nodes_of_pods(services: Services, cluster_id: str, run_id: str) -> dict[str, str]:
    gateway = services.kubernetes(cluster_id)
    pods = gateway.pods(labels={LABEL_RUN_ID: run_id, LABEL_ROLE: "training"})
    return {pod.name.rpartition("-")[2]: pod.node for pod in pods}


def bring_nodes(made: World, cluster_id: str, *, count: int) -> None:
    """Let AWS replace what was lost."""
    made.mode.aws.client("eks").update_nodegroup_config(
        clusterName=cluster_name(cluster_id),
        nodegroupName=TRAINING_NODE_GROUP,
        scalingConfig={"minSize": count, "maxSize": count, "desiredSize": count},
    )


def test_range_takes_what_is_free_or_all_and_goes_on_with_what_is_left(
    lab: World,
):
    other = lab.start(f"/train tiny-llama on=lab nodes=1 {KEYS} steps=100000 log_every=50")
    lab.wait(lambda: of(lab, other, "progress.reported"), "the other run trains")

    beside = lab.start(f"/train tiny-llama on=lab nodes=1:2 {KEYS} {FEW}")
    lab.wait(lambda: of(lab, beside, "nodes.leased"), "the run beside it has what is free")
    stop(lab, other)
    lab.wait(lambda: left(lab, beside), "it ends")

    run = lab.services.runs.load(beside)
    assert run.phase is RunPhase.SUCCEEDED, run.reason
    assert [event.world_size for event in of(lab, beside, "training.started")] == [1]
    assert run.placement.nodes == 1
    assert "1 of 1:2 nodes" in str(lab.card(beside).blocks)

    alone = lab.start(f"/train tiny-llama on=lab nodes=1:2 {KEYS} {MANY}")
    lab.wait(lambda: of(lab, alone, "checkpoint.saved"), "a checkpoint on two nodes")
    cluster_id = lab.services.runs.load(alone).cluster_id
    lab.mode.cluster.lose_node(nodes_of_pods(lab.services, cluster_id, alone)["1"])
    lab.wait(lambda: of(lab, alone, "node.lost"), "the loss is reported")
    lab.wait(lambda: of(lab, alone, "training.resumed"), "it starts again on one node")
    (resumed,) = of(lab, alone, "training.resumed")
    lab.wait(lambda: len(losses(lab, alone, after=resumed)) > 5, "it trains on")
    lab.wait(lambda: lab.services.runs.load(alone).phase is RunPhase.RUNNING, "it runs again")
    run = lab.services.runs.load(alone)
    assert "2 of 1:2 nodes" in str(lab.card(alone).blocks)
    bring_nodes(lab, cluster_id, count=2)
    lab.wait(lambda: len(of(lab, alone, "training.resumed")) == 2, "it takes a new node in")
    stop(lab, alone)

    assert [event.world_size for event in of(lab, alone, "training.started")] == [2, 1, 2]
    assert RunPhase.RECOVERING in [phase for phase, _ in run.phases]
    on_two = losses(lab, alone, before=of(lab, alone, "node.lost")[0])
    assert differing(losses(lab, beside), on_two) == []
    assert differing(on_two, losses(lab, alone, after=resumed)) == []
    assert run.reason.startswith(f"resumed from step {resumed.step}")
    assert "after node " in run.reason
    ended = lab.services.runs.load(alone)
    assert ended.phase is RunPhase.STOPPED
    assert ended.results is not None

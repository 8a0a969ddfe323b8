"""Runs on a range of nodes of a kept cluster: on what is free, on all, and on what is left."""

import math

import pytest
from e2e_world import World, world

from local.slack import OPERATOR_ID, TRAINING_CHANNEL_ID
from stationmaster import commands
from stationmaster.domain.names import LABEL_ROLE, LABEL_RUN_ID
from stationmaster.domain.run.events import RunPhase
from stationmaster.services import Services

# A constant rate, so that the number of steps decides no loss; small, so that rounding stays small.
KEYS = (
    "preset=smoke schedule=constant learning_rate=3e-4 min_learning_rate=0 eval_every=0 log_every=1"
)
FEW, MANY = "steps=12 checkpoint_every=6", "steps=100000 checkpoint_every=100"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory):
    """A local mode with a kept cluster of two nodes."""
    with world(tmp_path_factory.mktemp("ranges")) as made:
        made.type("/train cluster create lab nodes=2 ttl=4h")
        made.wait(lambda: phases(made, "ready"), "the cluster is ready")
        yield made


def phases(made: World, phase: str):
    return [event for event in made.of_type("cluster.phase_changed") if event.phase == phase]


def of(made: World, run_id: str, kind: str, until=None):
    events = list(made.events)
    seen = events[: events.index(until)] if until is not None else events
    return [event for event in seen if event.type == kind and event.run_id == run_id]


def losses(made: World, run_id: str) -> dict[int, float]:
    return {event.step: event.loss_nats for event in of(made, run_id, "progress.reported")}


def left(made: World, run_id: str) -> bool:
    return bool(of(made, run_id, "lease.released"))


def stop(made: World, run_id: str) -> None:
    commands.stop_run(made.services, run_id, channel_id=TRAINING_CHANNEL_ID, user_id=OPERATOR_ID)
    made.wait(lambda: left(made, run_id), f"{run_id} leaves")


def nodes_of_pods(services: Services, cluster_id: str, run_id: str) -> dict[str, str]:
    gateway = services.kubernetes(cluster_id)
    pods = gateway.pods(labels={LABEL_RUN_ID: run_id, LABEL_ROLE: "training"})
    return {pod.name.rpartition("-")[2]: pod.node for pod in pods}


def test_range_takes_what_is_free_or_all_and_goes_on_with_what_is_left(
    lab: World,
):
    other = lab.start(f"/train tiny-llama on=lab nodes=1 {KEYS} steps=100000")
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
    again = of(lab, alone, "training.resumed")[-1].step
    lab.wait(lambda: max(losses(lab, alone)) > again + 40, "it trains on")
    lab.wait(lambda: lab.services.runs.load(alone).phase is RunPhase.RUNNING, "it runs again")
    trained = losses(lab, alone)
    run = lab.services.runs.load(alone)
    assert "2 of 1:2 nodes" in str(lab.card(alone).blocks)
    stop(lab, alone)

    assert [event.world_size for event in of(lab, alone, "training.started")] == [2, 1]
    assert RunPhase.RECOVERING in [phase for phase, _ in run.phases]
    lost = of(lab, alone, "node.lost")[0]
    before = of(lab, alone, "progress.reported", until=lost)
    for reference in (losses(lab, beside), {event.step: event.loss_nats for event in before}):
        both = reference.keys() & trained.keys()
        assert [n for n in both if not math.isclose(reference[n], trained[n], abs_tol=1e-4)] == []
    assert run.reason == f"resumed from step {again}"
    ended = lab.services.runs.load(alone)
    assert ended.phase is RunPhase.STOPPED
    assert ended.results is not None

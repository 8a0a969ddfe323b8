"""A run as a guest on nodes of SageMaker HyperPod, from its request to its receipt.

Emulated are HyperPod's nodes, with the labels of AWS's pages, and its recovery of a reported node.
The handlers have no other rights in the cluster than those that its owner is asked for.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from stationmaster.domain.cluster.aggregate import TeardownStatus
from stationmaster.domain.ids import ClusterId
from stationmaster.domain.names import LABEL_ROLE, LABEL_RUN_ID, own_namespace
from stationmaster.domain.run.events import RunPhase
from stationmaster.kubernetes.views import NodeView
from stationmaster.rendering.metadata import LABEL_INSTANCE_TYPE
from tests.chaos.owner import NAME, Owner
from tests.chaos.world import World, run_id_of


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The product's functions have a kubeconfig that their owner writes."""
    return {"kubeconfig": str(tmp_path_factory.mktemp("guest") / "kubeconfig")}


def test_guest_trains_on_fit_nodes_of_hyperpod_which_replaces_a_reported_one(
    world: World, settings: dict[str, str]
) -> None:
    owner, services, run_id = Owner(world), world.services, run_id_of("hyperpod")
    owner.make()
    owner.make_hyperpod("pod-1", nodes=2)
    owner.let_in(Path(settings["kubeconfig"]))
    gateway = services.kubernetes(ClusterId(run_id))

    def fit() -> list[NodeView]:
        nodes = gateway.nodes(labels={LABEL_INSTANCE_TYPE: "ml.m5.2xlarge"})
        return [node for node in nodes if not node.unfit]

    reported = fit()[0].name
    gateway.report_node(reported)
    world.until(lambda: len(fit()) == 2, "HyperPod brings another node")
    before = owner.belongings()
    world.request("hyperpod", plan="waits", nodes=2, **owner.guest)
    world.until_awaiting(run_id)
    pods = gateway.pods(
        labels={LABEL_RUN_ID: run_id, LABEL_ROLE: "training"},
        namespace=own_namespace(ClusterId(run_id)),
    )
    world.let_end(run_id)
    world.until_rested(run_id, torn_down=True)

    assert services.hyperpod_clusters.eks_name("pod-1") == NAME
    assert {pod.node for pod in pods} == {node.name for node in fit()} - {reported}
    outcome = world.outcome(run_id)
    assert (outcome.run.phase, outcome.run.reason) == (RunPhase.SUCCEEDED, "")
    assert outcome.cluster is not None
    assert outcome.cluster.spec.hyperpod_vcpus == 4
    assert (outcome.teardown, outcome.left, outcome.billable_left) == (
        TeardownStatus.COMPLETED,
        [],
        [],
    )
    assert owner.belongings() == before

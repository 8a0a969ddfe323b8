"""A spot node is taken back while a job trains on it: drained, gone, replaced."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stationmaster.local.cluster.controllers import interruptions
from tests.support.cluster_fixtures import Cluster, eventually, pytorchjob, start_cluster

LABEL = "eks.amazonaws.com/capacityType"


@pytest.fixture(params=["spot-interrupted", "spot-scarce"])
def at_risk(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Cluster]:
    """A cluster in which the first spot node that a job runs on is taken back at once."""
    started = start_cluster(tmp_path / "state", spot_trains_first_s=0.0)
    monkeypatch.setitem(interruptions.FAULTS, "spot-scarce", 3.0)
    started.local.faults.add(request.param)
    started.add_nodes(labels={LABEL: "ON_DEMAND"})
    started.install_operator()
    yield started
    started.close()


def test_spot_node_is_drained_and_replaced_and_its_pod_starts_again(at_risk: Cluster):
    at_risk.add_nodes(node_group="spot", labels={LABEL: "SPOT"})
    seen: list[tuple[str, bool]] = []
    nodes_there: set[int] = set()
    body = pytorchjob("taken", workers=0, script="trap '' TERM; sleep 60")
    template = body["spec"]["pytorchReplicaSpecs"]["Master"]["template"]
    template["spec"]["nodeSelector"] = {LABEL: "SPOT"}
    at_risk.submit(body)

    def runs_elsewhere() -> bool:
        nodes = at_risk.core.list_node(label_selector=f"{LABEL}=SPOT").items
        nodes_there.add(len(nodes))
        for node in nodes:
            now = (node.metadata.name, bool(node.spec.unschedulable))
            seen.extend([now] if now not in seen else [])
        pods = at_risk.core.list_namespaced_pod("default").items
        names = {name for name, _ in seen}
        return len(names) == 2 and any(
            pod.status.phase == "Running" and pod.spec.node_name == seen[-1][0] for pod in pods
        )

    eventually(runs_elsewhere, "the pod on another spot node")

    (first, _), *_ = seen
    assert "spot-scarce" not in at_risk.local.faults or 0 in nodes_there
    assert (first, True) in seen  # its pod had a second to end
    assert seen[-1][0] != first
    assert seen[-1][1] is False
    there = at_risk.core.list_node(label_selector=f"{LABEL}=SPOT").items
    assert [node.metadata.labels["eks.amazonaws.com/nodegroup"] for node in there] == ["spot"]

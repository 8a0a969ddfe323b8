"""The nodes of a cluster, recorded for who asked as Kubernetes has them."""

from __future__ import annotations

from typing import Any

import pytest

from stationmaster.domain.bus import NODES_WANTED_DETAIL_TYPE
from stationmaster.domain.cluster.events import ClusterPhase, ClusterPhaseChanged
from stationmaster.domain.cluster.nodes import NodesSeen
from stationmaster.domain.errors import TransientError
from stationmaster.inspection import live_cluster
from stationmaster.kubernetes.views import parse_node
from stationmaster.services import Services
from stationmaster.steps.parts.node_looks import seen_node
from stationmaster.steps.take_in import take_in
from tests.support.aws_steps import IDLE, Account
from tests.support.cluster_steps import pod, training_nodes

SPEED = IDLE


def ask(account: Account, *, times: int = 1, **changes: Any) -> NodesSeen:
    """Deliver a question; the one answer that is recorded."""
    detail = {"cluster_id": account.cluster_id, "asked": "a", **changes}
    event = {"detail-type": NODES_WANTED_DETAIL_TYPE, "detail": detail}
    for _ in range(times):
        assert take_in(account.services, event) == {"set_aside": 0}
    (seen,) = account.events("cluster.nodes_seen")
    assert isinstance(seen, NodesSeen)
    return seen


def test_nodes_are_recorded_once_with_their_runs_and_what_is_wrong(account: Account) -> None:
    account.request()
    training_nodes(account)
    account.happen_to_cluster(ClusterPhaseChanged, phase=ClusterPhase.VALIDATING)
    gateway = account.services.kubernetes(account.cluster_id)
    first, second = live_cluster(account.services, account.cluster).training_nodes
    gateway.cordon(second.name, "a GPU is gone")
    item = pod(account, "worker-0")
    spec = {"nodeName": first.name, "containers": [{"name": "c", "image": "image"}]}
    gateway.apply([item | {"spec": spec}])

    seen = ask(account, times=2)

    assert (seen.num_nodes, seen.num_ready, seen.reason) == (2, 2, "")
    assert [(node.name, node.trouble, node.pods) for node in seen.nodes] == [
        (second.name, "cordoned: a GPU is gone", ""),
        (first.name, "", f"1 pod of {account.run_id}"),
    ]
    assert (seen.nodes[1].instance_type, seen.nodes[1].zone) == ("m5.2xlarge", "us-west-2a")


def test_cluster_that_does_not_answer_is_said_to(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    account.request()

    def silent(services: Services, cluster_id: str) -> None:
        raise TransientError("the cluster's API does not answer")

    monkeypatch.setattr(Services, "kubernetes", silent)

    seen = ask(account)

    assert (seen.nodes, seen.reason) == ((), "the cluster's API does not answer")


def test_question_that_cannot_be_read_is_set_aside(account: Account) -> None:
    for detail in ({"cluster_id": "gone-1", "asked": "a"}, {"cluster_id": account.cluster_id}):
        event = {"detail-type": NODES_WANTED_DETAIL_TYPE, "detail": detail}
        assert take_in(account.services, event) == {"set_aside": 1}


def test_conditions_devices_and_taints_of_a_node_are_named() -> None:
    conditions = [("Ready", "Unknown"), ("MemoryPressure", "True"), ("DiskPressure", "False")]
    conditions += [("AcceleratedHardwareReady", "False"), ("KernelReady", "True")]
    node = parse_node(
        {
            "metadata": {"name": "n"},
            "spec": {"taints": [{"key": "theirs", "effect": "NoSchedule"}]},
            "status": {
                "allocatable": {"nvidia.com/gpu": "7"},
                "capacity": {"nvidia.com/gpu": "8"},
                "conditions": [
                    {"type": kind, "status": status, "reason": "Why"} for kind, status in conditions
                ],
            },
        }
    )

    seen = seen_node(node, [])

    assert (seen.is_ready, seen.gpus, seen.efa) == (False, (7, 8), (0, 0))
    assert seen.trouble == (
        "Ready is Unknown (Why); MemoryPressure is True (Why); "
        "AcceleratedHardwareReady is False (Why); has the taint theirs"
    )

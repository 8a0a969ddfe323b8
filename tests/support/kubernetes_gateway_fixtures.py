"""A local cluster with a gateway to it, for the contract tests of the product's Kubernetes side.

The fixtures are in tests/gateway/conftest.py.
"""

from __future__ import annotations

from pathlib import Path

from stationmaster.local.cluster import LocalCluster
from tests.support.aws_fixtures import until as eventually
from tests.support.cluster_fixtures import instances
from tests.support.factories import make_request

__all__ = ["CLUSTER_ID", "NAMESPACE", "REPOSITORY", "REQUEST", "RUN_ID", "add_nodes", "eventually"]

REPOSITORY = Path(__file__).resolve().parents[2]
NAMESPACE = "stationmaster"
RUN_ID = "tiny-llama-0123abcd"
CLUSTER_ID = RUN_ID
REQUEST = make_request()


def add_nodes(
    cluster: LocalCluster,
    *,
    group: str,
    count: int = 0,
    nodes_named: str = "",
    zone: str = "us-west-2a",
    instance_type: str = "",
    **capacity: str,
) -> None:
    """Nodes of a group; those of another `nodes_named` are added to it, not put in its place."""
    training = group == "training"
    by_device = "p4d.24xlarge" if "nvidia.com/gpu" in capacity else "m5.2xlarge"
    cluster.add_nodes(
        node_group=nodes_named or group,
        cluster="c",
        instance_type=instance_type or by_device,
        instance_ids=instances(count or (2 if training else 1)),
        zone=zone,
        labels={
            "stationmaster/node-group": group,
            **({"stationmaster/cluster-id": CLUSTER_ID} if training else {}),
            **({"nvidia.com/gpu.present": "true"} if "nvidia.com/gpu" in capacity else {}),
        },
        taints=[{"key": "stationmaster/training", "value": "true", "effect": "NoSchedule"}]
        if training
        else [],
        capacity={"cpu": "8", "memory": "32Gi"} | capacity,
    )

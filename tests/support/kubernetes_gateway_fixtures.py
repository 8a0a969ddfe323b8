"""A local cluster with a gateway to it, for the contract tests of the product's Kubernetes side.

The fixtures are in tests/gateway/conftest.py.
"""

from __future__ import annotations

from typing import Any

from kubernetes import client, config

from stationmaster.local.cluster import LocalCluster
from tests.support.cluster_fixtures import instances
from tests.support.factories import make_request

NAMESPACE = "stationmaster"
RUN_ID = "tiny-llama-0123abcd"
CLUSTER_ID = RUN_ID
REQUEST = make_request()


def add_nodes(
    cluster: LocalCluster,
    *,
    group: str,
    count: int = 0,
    zone: str = "us-west-2a",
    instance_type: str = "",
    **capacity: str,
) -> None:
    training = group == "training"
    by_device = "p4d.24xlarge" if "nvidia.com/gpu" in capacity else "m5.2xlarge"
    cluster.add_nodes(
        node_group=group,
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


def clients(cluster: LocalCluster) -> client.ApiClient:
    """What the typed clients of a cluster share; to be closed."""
    return config.new_client_from_config(config_file=str(cluster.kubeconfig))


def patch_job(cluster: LocalCluster, change: dict[str, Any], *, subresource: str = "") -> None:
    """Change the run's job as others in the cluster do."""
    with clients(cluster) as api:
        custom = client.CustomObjectsApi(api)
        patch = getattr(custom, f"patch_namespaced_custom_object{subresource}")
        patch("kubeflow.org", "v1", NAMESPACE, "pytorchjobs", RUN_ID, change)


def set_job_condition(cluster: LocalCluster, kind: str, message: str = "") -> None:
    """Write how the job ended, as the operator does."""
    done = {"type": kind, "status": "True", "message": message}
    patch_job(cluster, {"status": {"conditions": [done]}}, subresource="_status")

"""The relay in the cluster: its account, its rights and its Deployment.

Account and rights are the cluster's, the same for every run and named after the product; the
Deployment is the run's own, and comes and goes with its job.

Reads jobs, pods, logs and events in its own namespace and nodes anywhere; writes nothing. Its AWS
role comes from a Pod Identity association of the service account, made by the cluster step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from stationmaster.domain.ids import RunId
from stationmaster.domain.names import (
    LABEL_ROLE,
    LABEL_RUN_ID,
    NAMESPACE,
    RELAY,
    relay_name,
)
from stationmaster.rendering.job_spec import KubernetesObject
from stationmaster.rendering.metadata import (
    LABEL_MANAGED_BY,
    container_security,
    metadata,
    off_the_training_nodes,
    run_labels,
)

_RBAC: Final = "rbac.authorization.k8s.io"
_READ: Final = ["get", "list", "watch"]


def render_relay(
    run_id: RunId, *, job: str, image: str, bus_name: str, region: str
) -> list[KubernetesObject]:
    """The relay of a run, in a cluster that has the account and the rights of relays.

    `job` is the PyTorchJob of the attempt that it watches.
    """
    variables = {
        "STATIONMASTER_RUN_ID": run_id,
        "STATIONMASTER_JOB": job,
        "STATIONMASTER_BUS_NAME": bus_name,
        "AWS_REGION": region,
    }
    return [_deployment(run_id, image, variables)]


def render_relay_rights() -> list[KubernetesObject]:
    """The account of all relays of a cluster, and what it may read."""
    ours = {LABEL_MANAGED_BY: "stationmaster"}
    shared = {"name": RELAY, "namespace": NAMESPACE, "labels": ours}
    subject = {"kind": "ServiceAccount", "name": RELAY, "namespace": NAMESPACE}
    return [
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": shared,
        },
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "Role",
            "metadata": shared,
            "rules": [
                {"apiGroups": [""], "resources": ["pods", "events"], "verbs": _READ},
                {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]},
                {"apiGroups": ["kubeflow.org"], "resources": ["pytorchjobs"], "verbs": _READ},
            ],
        },
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "RoleBinding",
            "metadata": shared,
            "roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": RELAY},
            "subjects": [subject],
        },
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "ClusterRole",
            "metadata": {"name": RELAY, "labels": ours},
            "rules": [{"apiGroups": [""], "resources": ["nodes"], "verbs": _READ}],
        },
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": RELAY, "labels": ours},
            "roleRef": {"apiGroup": _RBAC, "kind": "ClusterRole", "name": RELAY},
            "subjects": [subject],
        },
    ]


def _deployment(run_id: RunId, image: str, variables: Mapping[str, str]) -> KubernetesObject:
    selector = {LABEL_RUN_ID: run_id, LABEL_ROLE: "relay"}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(run_labels(run_id, "relay"), name=relay_name(run_id)),
        "spec": {
            # One at a time: two would report everything twice (harmless, and twice the traffic).
            "replicas": 1,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": selector},
            "template": {
                "metadata": {"labels": run_labels(run_id, "relay")},
                "spec": {
                    "serviceAccountName": RELAY,
                    "terminationGracePeriodSeconds": 10,
                    "affinity": off_the_training_nodes(),
                    "containers": [
                        {
                            "name": "relay",
                            "image": image,
                            "command": ["python", "-m", "relay"],
                            "env": [
                                {"name": name, "value": value} for name, value in variables.items()
                            ],
                            "resources": {
                                "requests": {"cpu": "100m", "memory": "128Mi"},
                                "limits": {"memory": "512Mi"},
                            },
                            "securityContext": {**container_security(), "runAsUser": 65532},
                        }
                    ],
                },
            },
        },
    }

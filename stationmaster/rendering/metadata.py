"""Metadata and placement that every rendered object shares: labels, the namespace, tolerations."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Final, Literal

from pydantic import SecretStr

from stationmaster.domain.ids import ClusterId, RunId
from stationmaster.domain.names import (
    LABEL_CLUSTER_ID,
    LABEL_ROLE,
    LABEL_RUN_ID,
    NAMESPACE,
    TRAINING_NODE_GROUP,
    TRAINING_TAINT,
)
from stationmaster.rendering.job_spec import KubernetesObject

# The user of the training image, whom what is on the file system belongs to.
TRAINER_USER: Final = 1000
RunRole = Literal[
    "training", "relay", "rendezvous", "exporting", "saving", "backup", "pushing", "staging"
]
ClusterRole = Literal["check", "storage"]

_RBAC: Final = "rbac.authorization.k8s.io"
LABEL_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
LABEL_INSTANCE_TYPE: Final = "node.kubernetes.io/instance-type"
LABEL_HOSTNAME: Final = "kubernetes.io/hostname"
LABEL_CHECK: Final = "stationmaster/check"
# What SageMaker HyperPod says of its nodes, and is told by whoever wants one replaced. Source: AWS,
# "Resilience-related Kubernetes labels by SageMaker HyperPod" and "Manually quarantine, replace, or
# reboot a node".
LABEL_HEALTH: Final = "sagemaker.amazonaws.com/node-health-status"
HEALTHY: Final = "Schedulable"
TO_REPLACE: Final = "UnschedulablePendingReplacement"
LABEL_DEEP_CHECK: Final = "sagemaker.amazonaws.com/deep-health-check-status"
# Set on the nodes of a managed node group when it is created, "training" on those of the run.
LABEL_NODE_GROUP: Final = "stationmaster/node-group"
# Why a node is cordoned that Stationmaster has cordoned.
ANNOTATION_CORDONED: Final = "stationmaster/cordoned"

# Which GPU nodes often carry, so that other pods stay off them.
GPU_TAINT: Final = "nvidia.com/gpu"
# The training node group is tainted; whatever the taint's value or effect, these pods belong there.
TRAINING_TOLERATION: Final[KubernetesObject] = {"key": TRAINING_TAINT, "operator": "Exists"}


def run_labels(run_id: RunId, role: RunRole) -> dict[str, str]:
    """Return the labels of every object of a run; release finds objects by them."""
    return {LABEL_RUN_ID: run_id, LABEL_ROLE: role, LABEL_MANAGED_BY: "stationmaster"}


def cluster_labels(cluster_id: ClusterId, role: ClusterRole) -> dict[str, str]:
    """Make the labels of a cluster's objects: a Kubernetes cluster may have several."""
    return {LABEL_CLUSTER_ID: cluster_id, LABEL_ROLE: role, LABEL_MANAGED_BY: "stationmaster"}


def metadata(labels: Mapping[str, str], *, name: str) -> KubernetesObject:
    """Metadata of a namespaced object."""
    return {"name": name, "namespace": NAMESPACE, "labels": dict(labels)}


def render_account(name: str) -> KubernetesObject:
    """Return a service account in the namespace."""
    labels = {LABEL_MANAGED_BY: "stationmaster"}
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata(labels, name=name)}


def render_secret(
    name: str, labels: Mapping[str, str], values: Mapping[str, SecretStr]
) -> KubernetesObject:
    """Return a Secret in the namespace."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata(labels, name=name),
        "type": "Opaque",
        "data": {
            key: base64.b64encode(value.get_secret_value().encode()).decode()
            for key, value in values.items()
        },
    }


def render_role(
    name: str,
    rules: Sequence[KubernetesObject],
    subject: KubernetesObject,
    *,
    binding: str = "",
    everywhere: bool = False,
) -> list[KubernetesObject]:
    """Return a role, in the namespace or `everywhere`, and the binding by which a subject has it.

    The binding has the name of the role unless it is given one.
    """
    prefix, place = ("Cluster", {}) if everywhere else ("", {"namespace": NAMESPACE})
    labels = {LABEL_MANAGED_BY: "stationmaster"}
    return [
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": f"{prefix}Role",
            "metadata": {"name": name, **place, "labels": labels},
            "rules": list(rules),
        },
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": f"{prefix}RoleBinding",
            "metadata": {"name": binding or name, **place, "labels": labels},
            "roleRef": {"apiGroup": _RBAC, "kind": f"{prefix}Role", "name": name},
            "subjects": [subject],
        },
    ]


def account_subject(name: str) -> KubernetesObject:
    """Return a service account as a binding names it."""
    return {"kind": "ServiceAccount", "name": name, "namespace": NAMESPACE}


def render_deployment(
    run_id: RunId, role: RunRole, *, name: str, pod: KubernetesObject
) -> KubernetesObject:
    """Return a Deployment of one small pod of a run, never of two at a time."""
    labels, selector = run_labels(run_id, role), {LABEL_RUN_ID: run_id, LABEL_ROLE: role}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(labels, name=name),
        "spec": {
            "replicas": 1,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": selector},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "terminationGracePeriodSeconds": 10,
                    "affinity": off_the_training_nodes(),
                    **pod,
                },
            },
        },
    }


def small_resources() -> KubernetesObject:
    """Return the resources of a program that mostly waits."""
    return {
        "requests": {"cpu": "100m", "memory": "128Mi"},
        "limits": {"memory": "512Mi"},
    }


def container_security() -> KubernetesObject:
    """Return a container without any privilege: the restricted profile of Kubernetes' pod security.

    Images name their user by number, which is how the kubelet knows that it is not root.
    """
    return {
        "allowPrivilegeEscalation": False,
        "runAsNonRoot": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def namespace() -> KubernetesObject:
    """Return the namespace of jobs, checks and the relay."""
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": NAMESPACE, "labels": {LABEL_MANAGED_BY: "stationmaster"}},
    }


def off_the_training_nodes() -> KubernetesObject:
    """Prefer system nodes even where a cluster's training nodes carry no taint."""
    return {
        "nodeAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {
                    "weight": 100,
                    "preference": {
                        "matchExpressions": [
                            {
                                "key": LABEL_NODE_GROUP,
                                "operator": "NotIn",
                                "values": [TRAINING_NODE_GROUP],
                            }
                        ]
                    },
                }
            ]
        }
    }

"""The Job of a program that works for a run before its training job, beside it, or after it.

One shape for all of them: one container with the file system of the cluster. The program is started
again when it fails, unless that cannot help.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from stationmaster.domain.exit_codes import EXIT_MISUNDERSTOOD, EXIT_REFUSED
from stationmaster.domain.ids import ClusterId
from stationmaster.rendering.environment import render_hugging_face_token
from stationmaster.rendering.job_spec import KubernetesObject
from stationmaster.rendering.metadata import (
    GPU_TAINT,
    TRAINING_TOLERATION,
    container_security,
    metadata,
)
from stationmaster.rendering.shared_volume import shared_mount, shared_volume

# Pods that fail are started again this many times: a node may be lost, S3 may be away for minutes.
_RETRIES: Final = 3
# For pods on whatever node has room, also training nodes.
ON_ANY_NODE: Final[KubernetesObject] = {
    "tolerations": [TRAINING_TOLERATION, {"key": GPU_TAINT, "operator": "Exists"}]
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """What differs between these Jobs."""

    container: str
    """The container's name; its exit code counts."""
    image: str
    command: Sequence[str]
    variables: Mapping[str, str] = field(default_factory=dict)
    has_hub_token: bool = False
    """The Secret with the token is applied beside the Job, or is there."""
    resources: KubernetesObject
    user: int | None = None
    """None for the image's."""
    reads_only: bool = False
    account: str = ""
    """The service account, with its rights in AWS; "" for none, also in Kubernetes."""
    placement: KubernetesObject
    """The fields of a pod that say on which nodes it may be."""
    deadline_s: int
    """A program that hangs is ended after it."""


def run_job(
    program: Program,
    name: str,
    labels: Mapping[str, str],
    *,
    cluster_id: ClusterId,
    number: int | None = None,
) -> KubernetesObject:
    """Return the Job; `number` pods work side by side, one without it."""
    side_by_side = {} if number is None else {"parallelism": number, "completions": number}
    rights: KubernetesObject = {"automountServiceAccountToken": False}
    if program.account:
        rights = {"serviceAccountName": program.account}
    given_up = {
        "action": "FailJob",
        "onExitCodes": {
            "containerName": program.container,
            "operator": "In",
            "values": [EXIT_MISUNDERSTOOD, EXIT_REFUSED],
        },
    }
    pod = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 10,
        **rights,
        **program.placement,
        "containers": [_container(program)],
        "volumes": [shared_volume(cluster_id)],
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata(labels, name=name),
        "spec": {
            **side_by_side,
            "backoffLimit": _RETRIES * (number or 1),
            "activeDeadlineSeconds": program.deadline_s,
            "podFailurePolicy": {"rules": [given_up]},
            "template": {"metadata": {"labels": dict(labels)}, "spec": pod},
        },
    }


def _container(program: Program) -> KubernetesObject:
    user = {} if program.user is None else {"runAsUser": program.user}
    token = [render_hugging_face_token()] if program.has_hub_token else []
    return {
        "name": program.container,
        "image": program.image,
        "command": list(program.command),
        "env": [
            *({"name": name, "value": value} for name, value in program.variables.items()),
            *token,
        ],
        "resources": program.resources,
        "securityContext": {**container_security(), **user},
        "volumeMounts": [shared_mount() | ({"readOnly": True} if program.reads_only else {})],
    }


def one_cpu(memory: str, *, most: str) -> KubernetesObject:
    """Return the resources of a program of one CPU that may take more memory than it asks for."""
    return {"requests": {"cpu": "1", "memory": memory}, "limits": {"memory": most}}


def unexpanded_json(text: str) -> str:
    """Keep the kubelet from expanding $(VAR) in JSON in a variable, which reads back as it was."""
    return text.replace("$", "\\u0024")

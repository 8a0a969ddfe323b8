"""The Job of one of the trainer's programs that work on a run's model after training.

It runs in the training image, which has torch, transformers and the hub's client, on whatever node
has room: the training nodes have the image, and may be gone. It has the file system and the token
of the Hugging Face hub, and no rights in Kubernetes or AWS.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from stationmaster.domain.ids import ClusterId, RunId
from stationmaster.rendering.environment import render_hugging_face_token
from stationmaster.rendering.job_spec import KubernetesObject
from stationmaster.rendering.metadata import TRAINING_TOLERATION, container_security, run_labels
from stationmaster.rendering.retried_job import retried_job
from stationmaster.rendering.storage import shared_mount, shared_volume


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelProgram:
    """What differs between these programs."""

    container: str
    role: Literal["exporting", "pushing"]
    command: Sequence[str]
    memory: str
    """That a node must have free."""
    most_memory: str
    deadline_s: int
    variables: Mapping[str, str] = field(default_factory=dict)
    reads_only: bool = False


def model_job(
    program: ModelProgram, run_id: RunId, *, name: str, cluster_id: ClusterId, image: str
) -> KubernetesObject:
    """The Job; the Secret with the hub's token is applied beside it, or is there."""
    variables = {
        "NVIDIA_VISIBLE_DEVICES": "void",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HOME": "/tmp/huggingface",
        **program.variables,
    }
    mount: dict[str, Any] = shared_mount()
    container = {
        "name": program.container,
        "image": image,
        "command": list(program.command),
        "env": [
            *({"name": key, "value": value} for key, value in variables.items()),
            render_hugging_face_token(),
        ],
        "resources": {
            "requests": {"cpu": "1", "memory": program.memory},
            "limits": {"memory": program.most_memory},
        },
        "securityContext": container_security(),
        "volumeMounts": [mount | {"readOnly": True} if program.reads_only else mount],
    }
    pod = {
        "automountServiceAccountToken": False,
        "tolerations": [TRAINING_TOLERATION, {"key": "nvidia.com/gpu", "operator": "Exists"}],
        "containers": [container],
        "volumes": [shared_volume(cluster_id)],
    }
    labels = run_labels(run_id, program.role)
    return retried_job(
        name, labels, pod, container=program.container, deadline_s=program.deadline_s
    )

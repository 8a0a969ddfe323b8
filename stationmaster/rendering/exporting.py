"""The Job that makes a model of what another framework has saved, before a run's result is saved.

It runs `python -m training.frameworks` in the training image, which has torch and transformers, on
whatever node has room, as the push does. It writes `model` beside the framework's checkpoints, on
the file system, and has no rights in Kubernetes or AWS. With the token of the Hugging Face hub that
the training job had, it may fetch the tokenizer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from stationmaster.domain.ids import ClusterId, RunId
from stationmaster.domain.names import exporting_name
from stationmaster.rendering.environment import render_hugging_face_token
from stationmaster.rendering.job_spec import RUNS_DIRECTORY, KubernetesObject
from stationmaster.rendering.metadata import TRAINING_TOLERATION, container_security, run_labels
from stationmaster.rendering.retried_job import retried_job
from stationmaster.rendering.storage import shared_mount, shared_volume

CONTAINER: Final = "export"
# 16 GB are read and written in minutes: an export that hangs is ended.
DEADLINE_S: Final = 2 * 3600


def render_export(
    run_id: RunId,
    *,
    recipe: str,
    overrides: Mapping[str, str],
    tokenizer: str,
    loss_nats: float | None,
    cluster_id: ClusterId,
    image: str,
) -> KubernetesObject:
    """The Job; `image` is that of the product's own trainer, `tokenizer` "" for the recipe's."""
    words = [f"{key}={value}" for key, value in sorted(overrides.items())]
    container = {
        "name": CONTAINER,
        "image": image,
        "command": [
            *("python", "-m", "training.frameworks", recipe),
            # Text that a person typed: the kubelet must not expand $(VAR).
            *(word.replace("$", "$$") for word in words),
            *("--output-dir", f"{RUNS_DIRECTORY}/{run_id}"),
            *(("--tokenizer", tokenizer.replace("$", "$$")) if tokenizer else ()),
            *(("--loss", f"{loss_nats:.6g}") if loss_nats is not None else ()),
        ],
        "env": [
            {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"},
            {"name": "HF_HUB_DISABLE_TELEMETRY", "value": "1"},
            {"name": "HF_HOME", "value": "/tmp/huggingface"},
            {"name": "STATIONMASTER_CACHE_DIR", "value": "/tmp/stationmaster"},
            render_hugging_face_token(),
        ],
        # A file of weights is in memory, 5 GB, with the libraries.
        "resources": {
            "requests": {"cpu": "1", "memory": "8Gi"},
            "limits": {"memory": "16Gi"},
        },
        "securityContext": container_security(),
        "volumeMounts": [shared_mount()],
    }
    pod = {
        "automountServiceAccountToken": False,
        "tolerations": [TRAINING_TOLERATION, {"key": "nvidia.com/gpu", "operator": "Exists"}],
        "containers": [container],
        "volumes": [shared_volume(cluster_id)],
    }
    labels = run_labels(run_id, "exporting")
    name = exporting_name(run_id)
    return retried_job(name, labels, pod, container=CONTAINER, deadline_s=DEADLINE_S)

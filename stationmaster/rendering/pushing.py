"""The Job that pushes a run's model to the Hugging Face hub.

It runs `python -m training.push` in the training image, which has the hub's client, on whatever
node has room: the training nodes have the image, and may be gone. It reads the file system only,
and has no rights in Kubernetes or AWS.
"""

from __future__ import annotations

from typing import Final

from stationmaster.domain.ids import ClusterId, RunId
from stationmaster.domain.names import pushing_name
from stationmaster.domain.results import MODEL
from stationmaster.rendering.environment import render_hugging_face_token
from stationmaster.rendering.job_spec import RUNS_DIRECTORY, KubernetesObject
from stationmaster.rendering.metadata import TRAINING_TOLERATION, container_security, run_labels
from stationmaster.rendering.retried_job import retried_job
from stationmaster.rendering.storage import shared_mount, shared_volume

CONTAINER: Final = "push"
# As long as saving may take; a push that hangs is ended.
DEADLINE_S: Final = 6 * 3600


def render_push(
    run_id: RunId, *, repository: str, cluster_id: ClusterId, image: str
) -> KubernetesObject:
    """The Job; the Secret behind HF_TOKEN is applied beside it."""
    container = {
        "name": CONTAINER,
        "image": image,
        "command": [
            *("python", "-m", "training.push"),
            *("--model", f"{RUNS_DIRECTORY}/{run_id}/{MODEL}"),
            *("--repository", repository),
            *("--run-id", run_id),
        ],
        "env": [
            {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"},
            # Files go as plain LFS uploads, of which each is sent once.
            {"name": "HF_HUB_DISABLE_XET", "value": "1"},
            {"name": "HF_HUB_DISABLE_TELEMETRY", "value": "1"},
            {"name": "HF_HOME", "value": "/tmp/huggingface"},
            render_hugging_face_token(),
        ],
        "resources": {
            "requests": {"cpu": "1", "memory": "1Gi"},
            "limits": {"memory": "4Gi"},
        },
        "securityContext": container_security(),
        "volumeMounts": [{**shared_mount(), "readOnly": True}],
    }
    pod = {
        "automountServiceAccountToken": False,
        "tolerations": [TRAINING_TOLERATION, {"key": "nvidia.com/gpu", "operator": "Exists"}],
        "containers": [container],
        "volumes": [shared_volume(cluster_id)],
    }
    labels = run_labels(run_id, "pushing")
    name = pushing_name(run_id)
    return retried_job(name, labels, pod, container=CONTAINER, deadline_s=DEADLINE_S)

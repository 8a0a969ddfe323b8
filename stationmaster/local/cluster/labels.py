"""What the operators write on the pods and services of a training job, to be known by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

TRAINING_LABEL: Final = "training.kubeflow.org/"
JOB_NAME_LABEL: Final = f"{TRAINING_LABEL}job-name"
# What JobSet writes on the pods of a job of Trainer.
JOBSET_LABEL: Final = "jobset.sigs.k8s.io/"
JOBSET_NAME_LABEL: Final = f"{JOBSET_LABEL}jobset-name"
# The init container of a worker, which looks the master up in DNS.
WAIT_FOR_MASTER: Final = "init-pytorch"


def training_job_of(item: Mapping[str, Any]) -> str:
    """Return the training job that a pod or Service belongs to; "" for none."""
    labels = item["metadata"].get("labels") or {}
    return str(labels.get(JOB_NAME_LABEL) or labels.get(JOBSET_NAME_LABEL) or "")

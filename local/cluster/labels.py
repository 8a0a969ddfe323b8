"""What the Training Operator writes on the pods and services of a job, to be known by."""

from __future__ import annotations

from typing import Final

TRAINING_LABEL: Final = "training.kubeflow.org/"
JOB_NAME_LABEL: Final = f"{TRAINING_LABEL}job-name"
# The init container of a worker, which looks the master up in DNS.
WAIT_FOR_MASTER: Final = "init-pytorch"

"""Labels that the Training Operator writes on the pods and services of a job."""

from __future__ import annotations

from typing import Final

TRAINING_LABEL: Final = "training.kubeflow.org/"
JOB_NAME_LABEL: Final = f"{TRAINING_LABEL}job-name"

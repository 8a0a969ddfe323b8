"""The Job that makes a model of what another framework has saved, before a run's result is saved.

It runs `python -m training.frameworks`, which writes `model` beside the framework's checkpoints, on
the file system. With the token of the Hugging Face hub that the training job had, it may fetch the
tokenizer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from stationmaster.domain.ids import ClusterId, RunId
from stationmaster.domain.names import exporting_name
from stationmaster.rendering.job_spec import RUNS_DIRECTORY, KubernetesObject
from stationmaster.rendering.model_job import ModelProgram, model_job

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
    program = ModelProgram(
        container=CONTAINER,
        role="exporting",
        command=[
            *("python", "-m", "training.frameworks", recipe),
            # Text that a person typed: the kubelet must not expand $(VAR).
            *(word.replace("$", "$$") for word in words),
            *("--output-dir", f"{RUNS_DIRECTORY}/{run_id}"),
            *(("--tokenizer", tokenizer.replace("$", "$$")) if tokenizer else ()),
            *(("--loss", f"{loss_nats:.6g}") if loss_nats is not None else ()),
        ],
        # A file of weights is in memory, 5 GB, with the libraries.
        memory="8Gi",
        most_memory="16Gi",
        deadline_s=DEADLINE_S,
        variables={"STATIONMASTER_CACHE_DIR": "/tmp/stationmaster"},
    )
    return model_job(
        program, run_id, name=exporting_name(run_id), cluster_id=cluster_id, image=image
    )

"""The Job that pushes a run's model to the Hugging Face hub, with `python -m training.push`.

It reads the file system only.
"""

from __future__ import annotations

from typing import Final

from stationmaster.domain.ids import ClusterId, RunId
from stationmaster.domain.names import pushing_name
from stationmaster.domain.results import MODEL
from stationmaster.rendering.job_spec import RUNS_DIRECTORY, KubernetesObject
from stationmaster.rendering.model_job import ModelProgram, model_job

CONTAINER: Final = "push"
# As long as saving may take; a push that hangs is ended.
DEADLINE_S: Final = 6 * 3600


def render_push(
    run_id: RunId, *, repository: str, cluster_id: ClusterId, image: str
) -> KubernetesObject:
    """The Job; the Secret behind HF_TOKEN is applied beside it."""
    program = ModelProgram(
        container=CONTAINER,
        role="pushing",
        command=[
            *("python", "-m", "training.push"),
            *("--model", f"{RUNS_DIRECTORY}/{run_id}/{MODEL}"),
            *("--repository", repository),
            *("--run-id", run_id),
        ],
        memory="1Gi",
        most_memory="4Gi",
        deadline_s=DEADLINE_S,
        # Files go as plain LFS uploads, of which each is sent once.
        variables={"HF_HUB_DISABLE_XET": "1"},
        reads_only=True,
    )
    return model_job(program, run_id, name=pushing_name(run_id), cluster_id=cluster_id, image=image)

"""Converts published weights for Megatron, in the image of Megatron-Bridge.

One pod on one of the run's nodes: it needs a GPU, for NCCL's single rank, and memory for the
weights twice. It needs no right in AWS.
"""

from __future__ import annotations

from typing import Final

from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import StagingWork
from stationmaster.domain.run.staging import Staging
from stationmaster.jobs.bringing import fail_with, look_for, node_program, render_work
from stationmaster.jobs.live_run import LiveRun
from stationmaster.rendering.job_spec import DATA_DIRECTORY, KubernetesObject

NAME: Final = "convert"
WORK: Final[StagingWork] = "converting"
# Where `container/nemo` has it.
CONVERTER: Final = "/usr/local/lib/stationmaster/convert_weights.py"

look = look_for(WORK)
failed = fail_with("the weights could not be converted")


def applies(run: Run, staging: Staging | None) -> bool:
    """Say whether the run's framework cannot read weights as they are published."""
    is_done = staging is not None and staging.weights_root
    return bool(run.request.weights_to_convert) and not is_done


def render(live: LiveRun) -> list[KubernetesObject]:
    """Make the Job, with the token with which it fetches the weights."""
    spec, settings = live.spec(), live.services.settings
    program = node_program(
        spec,
        [
            *("python", CONVERTER, live.run.request.weights_to_convert),
            *("--data-directory", DATA_DIRECTORY),
            *("--run-id", live.run_id),
        ],
        {"HF_HUB_DISABLE_TELEMETRY": "1"},
        image=settings.nemo_image,
        num_gpus=min(1, spec.instance.num_gpus),
    )
    return render_work(live, NAME, WORK, program)

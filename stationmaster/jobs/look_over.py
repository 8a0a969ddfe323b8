"""Looks at data that is on the file system already: `python -m stationmaster.relay.look`.

It has no rights in AWS and the user of the training pods: what it cannot read they cannot.
"""

from __future__ import annotations

from typing import Final

from stationmaster.domain.catalogue.models import ImageModel
from stationmaster.domain.datasets import SharedPath
from stationmaster.domain.names import SHARED_MOUNT
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import StagingWork
from stationmaster.domain.run.staging import Staging
from stationmaster.domain.staged_data import LookingOrder
from stationmaster.jobs.bringing import (
    fail_with,
    keep_free_bytes,
    look_for,
    relay_program,
    render_work,
)
from stationmaster.jobs.live_run import LiveRun
from stationmaster.rendering.job_spec import KubernetesObject
from stationmaster.rendering.metadata import TRAINER_USER
from stationmaster.rendering.run_job import unexpanded_json

NAME: Final = "look"
WORK: Final[StagingWork] = "looking"

look = look_for(WORK)
failed = fail_with("the data cannot be trained on")


def applies(run: Run, staging: Staging | None) -> bool:
    """Say whether the run reads its data in place."""
    return isinstance(run.request.data, SharedPath) and not (staging and staging.looked)


def render(live: LiveRun) -> list[KubernetesObject]:
    request = live.run.request
    recipe = request.resolved
    order = LookingOrder(
        run_id=live.run_id,
        dataset=request.dataset,
        path=request.data.path if isinstance(request.data, SharedPath) else "",
        task=request.data_task,
        num_classes=recipe.model.num_classes if isinstance(recipe.model, ImageModel) else 0,
        evaluates=recipe.training.eval_every > 0,
        # Of a command of people's own nobody knows its checkpoints.
        keep_free_bytes=0 if request.program else keep_free_bytes(live),
    )
    variables = {
        "STATIONMASTER_LOOKING_ORDER": unexpanded_json(order.model_dump_json()),
        "STATIONMASTER_SHARED_DIRECTORY": SHARED_MOUNT,
    }
    program = relay_program(live, "look", variables, user=TRAINER_USER, account="", reads_only=True)
    return render_work(live, NAME, WORK, program)

"""Copies a run's data of S3 to the file system: `python -m stationmaster.relay.stage`.

In AWS, through Pod Identity, it may read the buckets that the deployment names.
"""

from __future__ import annotations

from typing import Final

from stationmaster.domain.datasets import S3Source
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import StagingWork
from stationmaster.domain.run.staging import Staging
from stationmaster.domain.staged_data import StagingOrder
from stationmaster.jobs.bringing import (
    fail_with,
    keep_free_bytes,
    look_for,
    relay_program,
    render_work,
    staging_settings,
)
from stationmaster.jobs.live_run import LiveRun
from stationmaster.rendering.job_spec import DATA_DIRECTORY, KubernetesObject
from stationmaster.rendering.run_job import unexpanded_json

NAME: Final = "stage"
WORK: Final[StagingWork] = "copying"

look = look_for(WORK)
failed = fail_with("the data could not be brought")


def applies(run: Run, staging: Staging | None) -> bool:
    """Say whether the run has data of S3 that is not on the file system yet."""
    is_here = staging is not None and (staging.root or staging.data_id)
    return isinstance(run.request.data, S3Source) and not is_here


def render(live: LiveRun) -> list[KubernetesObject]:
    """Make the Job with its account."""
    return render_order(live, NAME, WORK)


def render_order(
    live: LiveRun,
    name: str,
    work: StagingWork,
    *,
    linked: str = "",
    objects_read: int | None = None,
) -> list[KubernetesObject]:
    """Make the Job that copies the data, or looks at what is `linked` of it."""
    request, spec = live.run.request, live.spec()
    order = StagingOrder(
        run_id=live.run_id,
        dataset=request.dataset,
        task=request.data_task,
        settings={} if spec.program else staging_settings(spec.recipe),
        keep_free_bytes=keep_free_bytes(live),
        linked=linked,
        objects_read=objects_read,
    )
    variables = {
        "STATIONMASTER_STAGING_ORDER": unexpanded_json(order.model_dump_json()),
        "STATIONMASTER_DATA_DIRECTORY": DATA_DIRECTORY,
        "AWS_REGION": live.services.settings.region,
    }
    return render_work(live, name, work, relay_program(live, "stage", variables, user=65532))

"""The job of an attempt as it is rendered, with its data where that was brought."""

from __future__ import annotations

from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.attempts import Attempt
from stationmaster.domain.run.staging import Staging
from stationmaster.rendering import job_spec
from stationmaster.rendering.job_spec import JobSpec
from stationmaster.services import Services


def spec_of_job(services: Services, run: Run, attempt: Attempt) -> JobSpec:
    """The job of an attempt, with its data where it was brought."""
    staging = staging_of(run, attempt)
    return job_spec(
        run.request,
        attempt,
        run_id=run.run_id,
        image=services.settings.image_of(run.request.resolved.framework),
        data_root=staging.root if staging else "",
        weights_root=staging.weights_root if staging else "",
    )


def staging_of(run: Run, attempt: Attempt) -> Staging | None:
    """How far the data has come on the file system of the attempt's cluster."""
    is_here = run.staging is not None and run.staging.cluster_id == attempt.cluster_id
    return run.staging if is_here else None

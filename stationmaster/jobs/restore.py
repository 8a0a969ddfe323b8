"""Brings back what a run needs of other runs' results: `python -m stationmaster.relay.restore`.

Each result has a Job of its own, whose account reaches that one result.
"""

from __future__ import annotations

from typing import Final

from stationmaster.domain.names import results_account
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import StagingWork
from stationmaster.domain.run.staging import Staging
from stationmaster.inspection import Verdict
from stationmaster.jobs.bringing import fail_with, look_at_staging, relay_program, render_work
from stationmaster.jobs.live_run import LiveRun, Outcome
from stationmaster.rendering.job_spec import RUNS_DIRECTORY, KubernetesObject
from stationmaster.rendering.metadata import TRAINER_USER

NAME: Final = "restore"
WORK: Final[StagingWork] = "restoring"

failed = fail_with("the saved result could not be brought back")


def applies(run: Run, staging: Staging | None) -> bool:
    """Say whether the run resumes another or starts from its model."""
    is_done = staging is not None and staging.restored
    return run.request.restoring_order(run.run_id) is not None and not is_done


def render(live: LiveRun) -> list[KubernetesObject]:
    """Make the Jobs; they compare what they bring with what was recorded of the results."""
    settings, order = live.services.settings, live.run.request.restoring_order(live.run_id)
    assert order is not None, "only what applies is rendered"
    found, _ = live.services.runs.load_each(sorted(order.by_source()))
    manifests = {run.run_id: run.saved_manifest for run in found}
    order = order.model_copy(update={"manifests": manifests})
    programs = [
        relay_program(
            live,
            "restore",
            {
                "STATIONMASTER_RESTORING_ORDER": part.model_dump_json(),
                "STATIONMASTER_ARTIFACTS_BUCKET": settings.artifacts_bucket,
                "STATIONMASTER_RUN_DIRECTORY": f"{RUNS_DIRECTORY}/{live.run_id}",
                "AWS_REGION": settings.region,
            },
            user=TRAINER_USER,
            account=results_account(source),
        )
        for source, part in order.by_source().items()
    ]
    return render_work(live, NAME, WORK, *programs)


def look(live: LiveRun) -> Outcome:
    """Judge by all results together."""
    order = live.run.request.restoring_order(live.run_id)
    sources = list(order.by_source()) if order is not None else []
    outcome = look_at_staging(live, WORK, number=len(sources))
    if outcome.verdict is Verdict.MISSING:
        return Outcome(Verdict.MISSING, reaches=sources)
    return outcome

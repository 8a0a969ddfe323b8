"""Makes the job of a run anew, after a failure that another start may not meet again.

The recorder calls it last, a look at a time: it deletes the job, and once its pods are gone makes
another one of the same name, for which the run's workflow keeps waiting. What does not answer is
tried again after the next batch.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from stationmaster.domain.errors import PermanentError, TransientError
from stationmaster.domain.reactions.restarts import RestartJob
from stationmaster.domain.reactions.run import Reaction
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import JobRestarted, RunPhase
from stationmaster.jobs.live_run import LiveRun, attempt_of, cluster_of
from stationmaster.kubernetes.gateway import KubernetesGateway
from stationmaster.rendering.metadata import run_labels
from stationmaster.services import Services
from stationmaster.steps.parts.removal import forget_lost

logger = logging.getLogger(__name__)


def restart_job(services: Services, run: Run, reactions: Iterable[Reaction]) -> None:
    """Look once at the restart of the run's job where that was decided; nothing is raised."""
    for reaction in reactions:
        if not isinstance(reaction, RestartJob):
            continue
        try:
            _look(services, run, reaction)
        except (TransientError, PermanentError) as exc:
            extra = {"run_id": run.run_id, "restart": reaction.number, "error": str(exc)}
            logger.warning("job not restarted yet", extra=extra)
        return


def _look(services: Services, run: Run, restart: RestartJob) -> None:
    gateway = services.kubernetes(cluster_of(run))
    job = gateway.job(run.job)
    if job is None or job.condition("Failed") is not None:
        if not _is_removed(gateway, run):
            return
        attempt = attempt_of(run)
        # What agents left at the old rendezvous must not meet the new ones.
        fresh = {"rendezvous_id": f"{attempt.rendezvous_id}-{restart.number}"}
        spec = LiveRun(services, run).spec(attempt=attempt.model_copy(update=fresh))
        gateway.apply(gateway.backend.render(spec))
    # Else a recorder that was killed has made it, and it is not written yet.
    event = JobRestarted(
        **services.run_stamp(run.run_id, "job restarted", restart.number),
        number=restart.number,
        reason=restart.why,
    )
    run = services.runs.record(run.run_id, [event])
    if run.is_stopping or run.phase is RunPhase.SAVING or run.phase.is_terminal:
        # Whoever ended the run in this moment may have looked for a job, and seen none.
        gateway.delete_job(run.job)


def _is_removed(gateway: KubernetesGateway, run: Run) -> bool:
    """Delete what is left of the job; say whether its pods are gone."""
    gateway.delete_job(run.job)
    pods = gateway.pods(labels=run_labels(run.run_id, "training"))
    forget_lost(gateway, pods)
    return not pods

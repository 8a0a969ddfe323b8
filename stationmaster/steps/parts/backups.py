"""What a run that trains has so far goes to the artifacts bucket, by a Job in its cluster.

The recorder carries this out after it has recorded a batch of the relay's and kept the run's wait
alive: a cluster that does not answer costs no heartbeat. Each call looks once and never waits. What
is about to be done is recorded first, so a recorder that is killed, and a batch that is delivered
twice, start no second Job: its name has the number of the backup.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from stationmaster.domain.errors import PermanentError, ResultMissing, TransientError
from stationmaster.domain.ids import RunId
from stationmaster.domain.names import backup_name
from stationmaster.domain.reactions.backups import TRAINING, LookAtBackup, StartBackup
from stationmaster.domain.reactions.run import Reaction
from stationmaster.domain.restoring import saved_step
from stationmaster.domain.results import is_backup
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import (
    BackupFailed,
    BackupLookedAt,
    BackupSaved,
    BackupStarted,
    RunPhase,
    run_event_id,
)
from stationmaster.kubernetes.gateway import KubernetesGateway
from stationmaster.kubernetes.views import BatchJobView
from stationmaster.rendering.metadata import run_labels
from stationmaster.rendering.saving import render_saving
from stationmaster.services import Services
from stationmaster.steps.parts.failure_reasons import has_run, why_saver_failed
from stationmaster.steps.parts.records import cluster_of
from stationmaster.steps.parts.result_facts import result_facts

logger = logging.getLogger(__name__)


def back_up(services: Services, run: Run, reactions: Iterable[Reaction]) -> None:
    """Begin or look at a backup of the run where that was decided.

    What does not answer is asked again after a later heartbeat: nothing is raised.
    """
    for reaction in reactions:
        if not isinstance(reaction, StartBackup | LookAtBackup):
            continue
        try:
            _look(services, _noted(services, run, reaction))
        except (TransientError, PermanentError) as exc:
            extra = {"run_id": run.run_id, "backup": reaction.number, "error": str(exc)}
            logger.warning("backup not looked at", extra=extra)


def remove_backups(gateway: KubernetesGateway, run_id: RunId) -> bool:
    """Delete the Jobs that back the run up; whether no pod of theirs is left."""
    labels = run_labels(run_id, "backup")
    for job in gateway.batch_jobs(labels=labels):
        gateway.delete("batch/v1", "Job", name=job.name)
    pods = gateway.pods(labels=labels)
    return all(pod.phase in ("Succeeded", "Failed") for pod in pods)


def _noted(services: Services, run: Run, reaction: StartBackup | LookAtBackup) -> Run:
    """Record what is about to be done; it sets the time of the next look, whatever comes of it."""
    run_id, number, now = run.run_id, reaction.number, services.now()
    if isinstance(reaction, StartBackup):
        started = BackupStarted(
            event_id=run_event_id(run_id, "backup.started", number),
            run_id=run_id,
            at=now,
            number=number,
            step=reaction.step,
        )
        return services.runs.record(run_id, [started])
    looked = BackupLookedAt(
        event_id=run_event_id(run_id, "backup.looked_at", number, run.backups.looked_at),
        run_id=run_id,
        at=now,
        number=number,
    )
    return services.runs.record(run_id, [looked])


def _look(services: Services, run: Run) -> None:
    """Look at the newest backup's Job: start it, leave it, or record how it has ended."""
    if not run.backups.is_running or run.phase not in TRAINING:
        return  # somebody else has seen its end, or the run is being saved for good
    gateway, name = services.kubernetes(cluster_of(run)), _job_of(run)
    jobs = {job.name: job for job in gateway.batch_jobs(labels=_labels(run))}
    for earlier in jobs.keys() - {name}:
        # Whoever recorded its end was killed before it was deleted.
        gateway.delete("batch/v1", "Job", name=earlier)
    job = jobs.get(name)
    if job is None:
        _start(services, gateway, run)
        return
    ended = _end(services, gateway, run, job)
    if ended is not None:
        services.runs.record(run.run_id, [ended])
        gateway.delete("batch/v1", "Job", name=name)


def _start(services: Services, gateway: KubernetesGateway, run: Run) -> None:
    settings = services.settings
    gateway.apply(
        render_saving(
            result_facts(services, gateway, run, outcome=RunPhase.RUNNING),
            cluster_id=cluster_of(run),
            image=settings.relay_image,
            bucket=settings.artifacts_bucket,
            region=settings.region,
            backup_number=run.backups.number,
        )
    )


def _end(
    services: Services, gateway: KubernetesGateway, run: Run, job: BatchJobView
) -> BackupSaved | BackupFailed | None:
    """How the backup has ended; None while it runs."""
    if job.succeeded:
        try:
            return _verified(services, run)
        except PermanentError as exc:
            return _failed(services, run, str(exc))
    pods = gateway.pods(labels=_labels(run))
    if job.failed:
        return _failed(services, run, why_saver_failed(gateway, job, pods))
    if has_run(job, pods):
        return None  # once a pod of it has run, the Job's own deadline counts
    begun_at = run.backups.begun_at or services.now()
    waited_s = (services.now() - begun_at).total_seconds()
    limit_s = services.settings.job_start_timeout_s
    if waited_s <= limit_s:
        return None
    why = gateway.explain(pods)
    return _failed(
        services,
        run,
        f"Job {job.name} did not start after {waited_s:.0f} s (limit {limit_s:.0f} s): {why}",
    )


def _verified(services: Services, run: Run) -> BackupSaved:
    """What the bucket has, once S3 itself says so.

    Raises:
        PermanentError: a file is missing or damaged, or it is no backup with a checkpoint.
    """
    found = services.artifacts.verify(run.run_id)
    step = saved_step(found.manifest)
    if not is_backup(found.manifest) or step is None:
        raise ResultMissing(f"{found.uri} has no checkpoint of a run that still trains")
    number = run.backups.number
    return BackupSaved(
        event_id=run_event_id(run.run_id, "backup.ended", number),
        run_id=run.run_id,
        at=services.now(),
        number=number,
        step=step,
        num_bytes=found.manifest.num_bytes,
        uri=found.uri,
        manifest_sha256=found.manifest_sha256,
    )


def _failed(services: Services, run: Run, reason: str) -> BackupFailed:
    number = run.backups.number
    return BackupFailed(
        event_id=run_event_id(run.run_id, "backup.ended", number),
        run_id=run.run_id,
        at=services.now(),
        number=number,
        reason=reason,
        again=bool(run.backups.failed),
    )


def _job_of(run: Run) -> str:
    return backup_name(run.run_id, run.backups.number)


def _labels(run: Run) -> dict[str, str]:
    return run_labels(run.run_id, "backup")

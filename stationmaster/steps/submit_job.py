"""The run's job, its relay, and the volume that it works on, handed to the cluster."""

from __future__ import annotations

from stationmaster.cluster_file_system import shared_storage
from stationmaster.domain.ids import RunId
from stationmaster.domain.run.events import JobSubmitted, RunPhase
from stationmaster.jobs.live_run import LiveRun, attempt_of
from stationmaster.jobs.run_jobs import render_token
from stationmaster.rendering.metadata import namespace
from stationmaster.rendering.placing import from_copies
from stationmaster.rendering.relay import render_relay, render_relay_key
from stationmaster.rendering.rendezvous import render_rendezvous
from stationmaster.rendering.shared_volume import render_storage
from stationmaster.services import Services
from stationmaster.steps import READY, StepResult
from stationmaster.steps.parts.admission import in_class, refuse_missing, render_queue
from stationmaster.steps.parts.exit_from_existing import taken_out_when_late
from stationmaster.steps.parts.records import enter_phase, place_attempt
from stationmaster.steps.parts.removal import remove_attendants, remove_jobs
from stationmaster.steps.parts.results_access import ensure_access
from stationmaster.steps.parts.stops import raise_if_stopped, wanted_run


def submit_job(services: Services, run_id: RunId) -> StepResult:
    """Apply the volume, the Hugging Face token and the etcd where there is one, relay and job.

    Nothing in the cluster is the run's own before that. Repeating it changes nothing.

    Raises:
        TransientError: the operator's admission webhook does not answer yet, or the file system
            is not there.
        PermanentError: the cluster refuses the job; has its reason.
        JobNotStarted: the cluster has no such queue or priority class.
        RunStopped: someone asked to stop, or the run has ended meanwhile; nothing of it stays.
    """
    run = wanted_run(services, run_id)
    run = place_attempt(services, run)
    run = enter_phase(services, run, RunPhase.SUBMITTING)
    attempt = attempt_of(run)
    cluster_id = attempt.cluster_id
    settings = services.settings
    spec = LiveRun(services, run).spec()
    gateway = services.kubernetes(cluster_id)
    relay = render_relay(
        run_id,
        job=attempt.job,
        image=settings.relay_image,
        bus_name=settings.bus_name,
        bucket=settings.artifacts_bucket,
        region=settings.region,
        backend=gateway.backend,
        replicas=settings.relay_replicas,
    )
    refuse_missing(gateway, run)
    job = gateway.backend.render(in_class(gateway, spec))
    # What Kueue has admitted since must not be suspended once more.
    is_admitted_by_others = bool(spec.options.queue) and gateway.has(job[-1])
    with taken_out_when_late(services, cluster_id):
        ensure_access(services, run, cluster_id, [run_id])  # for backups, long before the first
        gateway.apply(
            [
                namespace(),
                *render_storage(cluster_id, shared_storage(services, cluster_id)),
                *render_token(services, cluster_id),
                render_relay_key(run_id, services.secrets.relay_key(run_id)),
                *relay,
                *from_copies(render_rendezvous(spec), settings.image_copies),
                *render_queue(gateway, spec.options),
                *([] if is_admitted_by_others else job),
            ]
        )
    stamp = services.run_stamp(run_id, "job.submitted", attempt.attempt_id)
    submitted = JobSubmitted(**stamp, job=attempt.job, kind=gateway.backend.KIND)
    run = services.runs.record(run_id, [submitted])
    if run.phase.is_terminal:
        # Whoever ended the run in this moment has looked for a job, and seen none.
        remove_jobs(gateway, runs=[run_id], jobs=[attempt.job])
        remove_attendants(gateway, runs=[run_id], jobs=[attempt.job])
        raise_if_stopped(run)
    return READY

"""The run's job, and the volume that it works on, handed to the cluster."""

from __future__ import annotations

from stationmaster.domain.errors import TransientError
from stationmaster.domain.events import JobSubmitted, RunPhase, make_event_id
from stationmaster.domain.ids import RunId
from stationmaster.domain.names import job_name
from stationmaster.rendering import JobSpec, job_spec
from stationmaster.rendering.environment import render_hugging_face_secret
from stationmaster.rendering.etcd import render_rendezvous
from stationmaster.rendering.job_spec import KubernetesObject
from stationmaster.rendering.metadata import namespace
from stationmaster.rendering.pytorch_job import render_pytorch_job
from stationmaster.rendering.storage import SharedStorage, render_storage
from stationmaster.services import Services
from stationmaster.steps import READY, StepResult
from stationmaster.steps.recording import enter_phase
from stationmaster.steps.stopping import raise_if_stopped


def submit_job(services: Services, run_id: RunId) -> StepResult:
    """Apply the volume, the Hugging Face token and the etcd where there is one, and the PyTorchJob.

    Repeating it changes nothing.

    Raises:
        TransientError: the operator's admission webhook does not answer yet.
        PermanentError: the cluster refuses the job; has its reason.
        RunStopped: someone asked to stop.
    """
    run = services.runs.load(run_id)
    raise_if_stopped(run)
    run = enter_phase(services, run, RunPhase.SUBMITTING)
    spec = job_spec(run.request, run_id=run_id, image=services.settings.training_image)
    token = services.secrets.hugging_face_token()
    services.kubernetes(run_id).apply(
        [
            namespace(),
            *storage_objects(services, spec),
            *([render_hugging_face_secret(token)] if token else []),
            *render_rendezvous(spec),
            render_pytorch_job(spec),
        ]
    )
    event = JobSubmitted(
        event_id=make_event_id(run_id, "job.submitted"),
        run_id=run_id,
        at=services.now(),
        job=job_name(run_id),
    )
    services.runs.record(run_id, [event])
    return READY


def storage_objects(services: Services, spec: JobSpec) -> list[KubernetesObject]:
    """Volume and claim of the run's file system.

    Raises:
        TransientError: the file system is not there (any more).
    """
    found = services.file_systems.describe(spec.run_id)
    if found is None or not found.mount_name:
        state = "missing" if found is None else found.lifecycle
        raise TransientError(f"the file system of run {spec.run_id} cannot be mounted: {state}")
    return render_storage(
        spec.run_id,
        SharedStorage(
            file_system_id=found.file_system_id,
            dns_name=found.dns_name,
            mount_name=found.mount_name,
            storage_gib=found.storage_gib,
        ),
    )

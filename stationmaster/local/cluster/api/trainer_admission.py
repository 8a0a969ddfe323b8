"""Validating admission of TrainJobs and TrainingRuntimes, as Kubeflow Trainer's webhooks answer.

Called by `objects.py` when a ValidatingWebhookConfiguration covers the object. Source: kubeflow/
trainer v2.3.0, pkg/webhooks and the torch plugin. Pure but for looking a runtime up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from stationmaster.local.cluster.api import resources
from stationmaster.local.cluster.api.admission import denied
from stationmaster.local.cluster.api.applying import check_applied
from stationmaster.local.cluster.api.resources import Object

GROUP: Final = "trainer.kubeflow.org"
TRAIN_JOBS: Final = f"trainjobs.{GROUP}"
RUNTIMES: Final = f"trainingruntimes.{GROUP}"
STEP_LABEL: Final = f"{GROUP}/trainjob-ancestor-step"
NODE: Final = "node"
# Set by the torch plugin. Source: pkg/constants/constants.go, TorchRunReservedEnvNames.
RESERVED: Final = (
    "PET_MASTER_ADDR",
    "PET_MASTER_PORT",
    "PET_NNODES",
    "PET_NODE_RANK",
    "PET_NPROC_PER_NODE",
)

FindRuntime = Callable[[str, str], Object | None]
"""(namespace, name) to a TrainingRuntime."""


def check_templates(runtime: Object) -> None:
    """Refuse a Job template that is none: the type has the schema of a Job in it.

    Raises:
        ApiError: as for a Job with these fields.
    """
    for job in replicated_jobs(runtime):
        spec = (job.get("template") or {}).get("spec") or {}
        whole = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": job["name"]}}
        check_applied(resources.JOBS, whole | {"spec": spec}, namespace="")


def admit(key: str, item: Object, *, find_runtime: FindRuntime) -> None:
    """Let the object pass, or refuse it.

    Raises:
        ApiError: 403 with the reasons.
    """
    reasons = list(_of_runtime(item) if key == RUNTIMES else _of_job(item, find_runtime))
    if reasons:
        name = key.partition(".")[0].removesuffix("s")
        raise denied(f"validator.{name}.{GROUP}", reasons)


def replicated_jobs(runtime: Object) -> list[Mapping[str, Any]]:
    """Return the Job templates of a runtime."""
    template = (runtime.get("spec") or {}).get("template") or {}
    jobs: list[Mapping[str, Any]] = (template.get("spec") or {}).get("replicatedJobs") or []
    return jobs


def _of_runtime(runtime: Object) -> Iterator[str]:
    for index, job in enumerate(replicated_jobs(runtime)):
        labels = ((job.get("template") or {}).get("metadata") or {}).get("labels") or {}
        if labels.get(STEP_LABEL) != "trainer":
            continue
        path = f"spec.template.spec.replicatedJobs[{index}]"
        if job.get("replicas") != 1:
            yield f"{path}.replicas: Invalid value: {job.get('replicas')}: always must be 1"
        pod = job["template"].get("spec", {}).get("template", {}).get("spec", {})
        if NODE not in [each.get("name") for each in pod.get("containers") or []]:
            yield (
                f"{path}.template.spec.template.spec.containers: Invalid value: must contain the "
                "required container for the ancestor: trainer"
            )


def _of_job(job: Object, find_runtime: FindRuntime) -> Iterator[str]:
    reference, about = job["spec"]["runtimeRef"], job["metadata"]
    kind = reference["kind"]
    if kind != "TrainingRuntime":
        yield f"unsupported runtime: {kind}.{reference['apiGroup']}"
        return
    if find_runtime(about["namespace"], reference["name"]) is None:
        yield (
            f'spec.runtimeRef: Invalid value: TrainingRuntime.{GROUP} "{reference["name"]}" not '
            "found: specified trainingRuntime must be created before the TrainJob is created"
        )
    environment = (job["spec"].get("trainer") or {}).get("env") or []
    taken = sorted({each["name"] for each in environment} & {*RESERVED})
    if taken:
        yield (
            "spec.trainer.env: Invalid value: must not have reserved envs, invalid envs "
            f"configured: [{' '.join(taken)}]"
        )

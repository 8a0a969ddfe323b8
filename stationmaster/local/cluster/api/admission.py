"""Admission: what a cluster refuses although it is well formed. Pure but for looking a runtime up.

Called by `objects.py`: pods of accounts that are not there, pods whose images no node of the
cluster can run; and PyTorchJobs, TrainJobs and TrainingRuntimes as the webhooks of their operators
answer, where a ValidatingWebhookConfiguration covers them. The rules of the Training Operator are
in the product's catalogue (`pytorch_job_rules.py`): the linter reads them too. Source of the
others: kubeflow/trainer v2.3.0, pkg/webhooks and the torch plugin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from stationmaster.domain.catalogue import pytorch_job_rules
from stationmaster.local.cluster.api import errors, resources
from stationmaster.local.cluster.api.applying import check_applied
from stationmaster.local.cluster.api.resources import Object, Resource
from stationmaster.local.cluster.labels import WAIT_FOR_MASTER

RESOURCE_KEY = "pytorchjobs.kubeflow.org"
DEFAULT_ACCOUNT = "default"
_WEBHOOK = "validator.pytorchjob.training-operator.kubeflow.org"
_WITH_TEMPLATE = ("Deployment", "DaemonSet", "ReplicaSet", "Job")
_REPLICAS = {"PyTorchJob": "pytorchReplicaSpecs", "MPIJob": "mpiReplicaSpecs"}

RefusedImages = Callable[[list[str]], list[str]]
"""Of the images of a pod's containers, in their order, those that no node can run."""


def check_account(pod: Object, exists: Callable[[str], bool]) -> None:
    """Let a pod pass whose account exists.

    Raises:
        ApiError: 403. Source: kubernetes, plugin/pkg/admission/serviceaccount/admission.go.
    """
    metadata = pod["metadata"]
    account = pod["spec"].get("serviceAccountName") or DEFAULT_ACCOUNT
    if not exists(account):
        raise errors.refused(
            "pods",
            metadata["name"],
            f"error looking up service account {metadata['namespace']}/{account}: serviceaccount "
            f'"{account}" not found',
        )


def check_images(resource: Resource, obj: Object, refused: RefusedImages) -> None:
    """Let an object pass unless pods are made of it whose images cannot run.

    A cluster that pulls images lets every one pass; one whose pods are processes of a machine has
    the programs of a few. A worker's wait for its master is done without the image.

    Raises:
        ApiError: 403 with the images.
    """
    for pod in _pod_specs(obj):
        waits = [
            each for each in pod.get("initContainers") or [] if each["name"] != WAIT_FOR_MASTER
        ]
        containers = [*(pod.get("containers") or []), *waits]
        images = [container.get("image", "") for container in containers]
        if found := refused(images):
            listed = ", ".join(f'"{image}"' for image in dict.fromkeys(found))
            raise errors.forbidden(
                f'{resource.key} "{obj["metadata"]["name"]}" is forbidden: this cluster cannot run '
                f"the image {listed}: its pods are processes of one machine, which has the "
                "programs of the product's own images only"
            )


def _pod_specs(obj: Object) -> Iterator[Mapping[str, Any]]:
    spec = obj.get("spec") or {}
    if obj["kind"] == "Pod":
        yield spec
    elif obj["kind"] in _WITH_TEMPLATE:
        yield (spec.get("template") or {}).get("spec") or {}
    elif obj["kind"] in _REPLICAS:
        for replica in (spec.get(_REPLICAS[obj["kind"]]) or {}).values():
            yield ((replica or {}).get("template") or {}).get("spec") or {}


def is_asked(
    resource: Resource, configurations: Sequence[Object], *, answers: Callable[[], bool]
) -> bool:
    """Say whether a configured webhook is asked about objects of the type, and answers.

    Raises:
        ApiError: 500 when it has to be asked and does not answer.
    """
    hook = _webhook_for(resource, configurations)
    if hook is None:
        return False
    if not answers():
        raise _no_answer(hook)
    return True


def check_job(job: Object) -> None:
    """Let a PyTorchJob pass, or refuse it, as the operator's webhook does.

    Raises:
        ApiError: 403 when the webhook denies it.
    """
    reasons = [f"{_field(path)}: {why}" for path, why in pytorch_job_rules.denials(job)]
    if reasons:
        raise denied(_WEBHOOK, reasons)


def denied(webhook: str, reasons: list[str]) -> errors.ApiError:
    """Return the 403 of a webhook that has reasons to refuse."""
    listed = reasons[0] if len(reasons) == 1 else f"[{', '.join(reasons)}]"
    return errors.forbidden(f'admission webhook "{webhook}" denied the request: {listed}')


def _webhook_for(resource: Resource, configurations: Sequence[Object]) -> Object | None:
    for configuration in configurations:
        for hook in configuration.get("webhooks") or []:
            for rule in hook.get("rules") or []:
                groups, plurals = rule.get("apiGroups") or [], rule.get("resources") or []
                if {resource.group, "*"} & {*groups} and {resource.plural, "*"} & {*plurals}:
                    found: Object = hook
                    return found
    return None


def _no_answer(hook: Object) -> errors.ApiError:
    service = (hook.get("clientConfig") or {}).get("service") or {}
    name, namespace = service.get("name", ""), service.get("namespace", "")
    url = f"https://{name}.{namespace}.svc:443{service.get('path', '/')}?timeout=10s"
    return errors.internal_error(
        f'failed calling webhook "{hook["name"]}": failed to call webhook: Post "{url}": no '
        f'endpoints available for service "{name}"'
    )


def _field(path: pytorch_job_rules.Path) -> str:
    """Return a path as the webhook writes it: replica types and indexes in brackets."""
    written = ""
    for before, part in zip(("", *path), path, strict=False):
        is_key = isinstance(part, int) or before == "pytorchReplicaSpecs"
        written += f"[{part}]" if is_key else f".{part}" if written else str(part)
    return written


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

"""Validating admission of PyTorchJobs, as the Training Operator's webhook answers.

Called by `objects.py` when a ValidatingWebhookConfiguration covers the object. Pure; the rules and
their wording follow the operator's pytorchjob_webhook.go (v1.9).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from local.cluster.api import errors
from local.cluster.api.resources import Object
from local.cluster.api.validation.names import DNS_1035_MESSAGE, is_dns_1035

RESOURCE_KEY = "pytorchjobs.kubeflow.org"
WEBHOOK_NAME = "validator.pytorchjob.training-operator.kubeflow.org"
_MANAGERS = ("kubeflow.org/training-operator", "kueue.x-k8s.io/multikueue")
_ROLES = ("Master", "Worker")
_SPECS = "spec.pytorchReplicaSpecs"


def admit(job: Object, configurations: Sequence[Object], *, answers: Callable[[], bool]) -> None:
    """Let a PyTorchJob pass, or refuse it, as the configured webhook does.

    Raises:
        ApiError: 403 when the webhook denies it, 500 when the webhook does not answer.
    """
    hook = _webhook_for_jobs(configurations)
    if hook is None:
        return
    if not answers():
        if hook.get("failurePolicy") == "Ignore":
            return
        raise _no_answer(hook)
    reasons = denials(job)
    if reasons:
        raise errors.forbidden(denial_message(reasons))


def _webhook_for_jobs(configurations: Sequence[Object]) -> Object | None:
    for configuration in configurations:
        for hook in configuration.get("webhooks") or []:
            for rule in hook.get("rules") or []:
                groups, plurals = rule.get("apiGroups") or [], rule.get("resources") or []
                if {"kubeflow.org", "*"} & {*groups} and {"pytorchjobs", "*"} & {*plurals}:
                    found: Object = hook
                    return found
    return None


def _no_answer(hook: Object) -> errors.ApiError:
    service = (hook.get("clientConfig") or {}).get("service") or {}
    name, namespace = service.get("name", ""), service.get("namespace", "")
    url = (
        f"https://{name}.{namespace}.svc:{service.get('port', 443)}{service.get('path', '/')}"
        "?timeout=10s"
    )
    return errors.internal_error(
        f'failed calling webhook "{hook["name"]}": failed to call webhook: Post "{url}": no '
        f'endpoints available for service "{name}"'
    )


def denials(job: Object) -> list[str]:
    """The reasons to refuse a PyTorchJob; empty when it is admitted."""
    name = job["metadata"].get("name", "")
    spec = job.get("spec") or {}
    found = []
    if not is_dns_1035(name):
        found.append(f'metadata.name: Invalid value: "{name}": should match: {DNS_1035_MESSAGE}')
    manager = (spec.get("runPolicy") or {}).get("managedBy")
    if manager is not None and manager not in _MANAGERS:
        listed = ", ".join(f'"{known}"' for known in _MANAGERS)
        found.append(
            f'spec.runPolicy.managedBy: Unsupported value: "{manager}": supported values: {listed}'
        )
    found.extend(_elastic_denials(spec))
    if spec.get("pytorchReplicaSpecs") is None:
        found.append(f"{_SPECS}: Required value: must be required")
    for role, replica in (spec.get("pytorchReplicaSpecs") or {}).items():
        found.extend(_replica_denials(role, replica or {}))
    return found


def _elastic_denials(spec: Mapping[str, Any]) -> list[str]:
    elastic = spec.get("elasticPolicy")
    if elastic is None:
        return []
    found = []
    if "Worker" not in (spec.get("pytorchReplicaSpecs") or {}):
        found.append(
            f"{_SPECS}[Worker]: Required value: must be configured if elastic policy is used"
        )
    if elastic.get("nProcPerNode") is not None and spec.get("nprocPerNode") is not None:
        found.append(
            "spec.elasticPolicy.nProcPerNode: Forbidden: must not be used with spec.nprocPerNode"
        )
    return found


def _replica_denials(role: str, replica: Mapping[str, Any]) -> list[str]:
    path = f"{_SPECS}[{role}]"
    containers_path = f"{path}.template.spec.containers"
    containers = ((replica.get("template") or {}).get("spec") or {}).get("containers") or []
    found = []
    if role not in _ROLES:
        listed = ", ".join(f'"{known}"' for known in _ROLES)
        found.append(f'{path}: Unsupported value: "{role}": supported values: {listed}')
    if not containers:
        found.append(f"{containers_path}: Required value: must be specified")
    for index, container in enumerate(containers):
        if not container.get("image"):
            found.append(f"{containers_path}[{index}].image: Required value: must be required")
    if not any(container.get("name") == "pytorch" for container in containers):
        found.append(
            f"{containers_path}: Required value: must have at least one container with name pytorch"
        )
    replicas = replica.get("replicas")
    if role == "Master":
        if replicas != 1:
            found.append(f"{path}.replicas: Forbidden: must be 1")
    elif replicas is not None and replicas < 1:
        found.append(f"{path}.replicas: Forbidden: must be at least 1")
    return found


def denial_message(reasons: list[str]) -> str:
    """The message of the 403 answer."""
    joined = reasons[0] if len(reasons) == 1 else "[" + ", ".join(reasons) + "]"
    return f'admission webhook "{WEBHOOK_NAME}" denied the request: {joined}'

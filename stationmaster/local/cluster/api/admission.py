"""Validating admission of PyTorchJobs, as the Training Operator's webhook answers.

Called by `objects.py` when a ValidatingWebhookConfiguration covers the object. Pure; its rules
are in the product's catalogue (`pytorch_job_rules.py`): the linter reads it too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stationmaster.domain.catalogue import pytorch_job_rules
from stationmaster.local.cluster.api import errors
from stationmaster.local.cluster.api.resources import Object, Resource

RESOURCE_KEY = "pytorchjobs.kubeflow.org"
WEBHOOK_NAME = "validator.pytorchjob.training-operator.kubeflow.org"


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
        if hook.get("failurePolicy") == "Ignore":
            return False
        raise _no_answer(hook)
    return True


def admit(job: Object) -> None:
    """Let a PyTorchJob pass, or refuse it, as the operator's webhook does.

    Raises:
        ApiError: 403 when the webhook denies it.
    """
    reasons = denials(job)
    if reasons:
        raise errors.forbidden(denial_message(reasons))


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
    url = (
        f"https://{name}.{namespace}.svc:{service.get('port', 443)}{service.get('path', '/')}"
        "?timeout=10s"
    )
    return errors.internal_error(
        f'failed calling webhook "{hook["name"]}": failed to call webhook: Post "{url}": no '
        f'endpoints available for service "{name}"'
    )


def denials(job: Object) -> list[str]:
    """List the reasons to refuse a PyTorchJob, as the webhook writes them."""
    return [f"{_field(path)}: {message}" for path, message in pytorch_job_rules.denials(job)]


def _field(path: pytorch_job_rules.Path) -> str:
    """Return a path as the webhook writes it: replica types and indexes in brackets."""
    written = ""
    for before, part in zip(("", *path), path, strict=False):
        is_key = isinstance(part, int) or before == "pytorchReplicaSpecs"
        written += f"[{part}]" if is_key else f".{part}" if written else str(part)
    return written


def denial_message(reasons: list[str]) -> str:
    """Return the message of the 403 answer."""
    joined = reasons[0] if len(reasons) == 1 else "[" + ", ".join(reasons) + "]"
    return f'admission webhook "{WEBHOOK_NAME}" denied the request: {joined}'

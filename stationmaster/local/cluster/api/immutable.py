"""What an API server lets nobody change in an object that exists, and how it says so.

Called by `objects.py` when a client updates an object; controllers are not asked. Pure.
Source: kubernetes, pkg/apis/core/validation, pkg/apis/batch/validation, pkg/apis/rbac/validation.
"""

from __future__ import annotations

from collections.abc import Callable

from stationmaster.local.cluster.api import errors
from stationmaster.local.cluster.api.metadata import clone
from stationmaster.local.cluster.api.resources import RBAC, Object, Resource
from stationmaster.local.cluster.api.validation.kinds import NO_SOURCE
from stationmaster.local.cluster.api.validation.problems import Problems

# Fields of a specification that stay as they were created.
_IMMUTABLE = {
    "jobs.batch": ("completions", "selector", "template", "completionMode", "podFailurePolicy"),
    "deployments.apps": ("selector",),
    "daemonsets.apps": ("selector",),
    "replicasets.apps": ("selector",),
}


def check_immutable(resource: Resource, current: Object, new: Object) -> None:
    """Refuse changes of what may not change, e.g. a pod's specification or a Job's template.

    Raises:
        ApiError: 422 with every cause.
    """
    problems = Problems()
    before, after = current.get("spec") or {}, new.get("spec") or {}
    for name in _IMMUTABLE.get(resource.key, ()):
        if after.get(name) != before.get(name):
            problems.invalid(f"spec.{name}", after.get(name), "field is immutable")
    check = _CHECKS.get(resource.key)
    if check is not None:
        check(current, new, problems)
    if problems:
        name = current["metadata"]["name"]
        raise errors.invalid(resource.kind, resource.group, name, problems)


def _check_pod(current: Object, new: Object, problems: Problems) -> None:
    before, after = clone(current["spec"]), clone(new["spec"])
    for spec in (before, after):
        for name in ("activeDeadlineSeconds", "tolerations", "terminationGracePeriodSeconds"):
            spec.pop(name, None)
        for container in [*spec.get("containers", []), *spec.get("initContainers", [])]:
            container.pop("image", None)
    if before != after:
        problems.forbidden(
            "spec",
            "pod updates may not change fields other than `spec.containers[*].image`,"
            "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only "
            "additions to existing tolerations),`spec.terminationGracePeriodSeconds`",
        )


def _check_volume(current: Object, new: Object, problems: Problems) -> None:
    before, after = (
        {name: part for name, part in obj["spec"].items() if name not in NO_SOURCE}
        for obj in (current, new)
    )
    if before != after:
        problems.forbidden(
            "spec.persistentvolumesource",
            "spec.persistentvolumesource is immutable after creation",
        )


def _check_claim(current: Object, new: Object, problems: Problems) -> None:
    before, after = clone(current["spec"]), clone(new["spec"])
    bound = (current.get("status") or {}).get("phase") == "Bound"
    for spec in (before, after):
        spec.pop("volumeAttributesClassName", None)
        if bound:
            (spec.get("resources") or {}).pop("requests", None)
        elif not before.get("volumeName"):
            spec.pop("volumeName", None)
    if before != after:
        problems.forbidden(
            "spec",
            "spec is immutable after creation except resources.requests and "
            "volumeAttributesClassName for bound claims",
        )


def _check_binding(current: Object, new: Object, problems: Problems) -> None:
    if new.get("roleRef") != current.get("roleRef"):
        problems.invalid("roleRef", new.get("roleRef"), "cannot change roleRef")


_CHECKS: dict[str, Callable[[Object, Object, Problems], None]] = {
    "pods": _check_pod,
    "persistentvolumes": _check_volume,
    "persistentvolumeclaims": _check_claim,
    f"rolebindings.{RBAC}": _check_binding,
    f"clusterrolebindings.{RBAC}": _check_binding,
}

"""What an API server lets nobody change in an object that exists, and how it says so.

Called by `objects.py` when a client updates an object; controllers are not asked. Pure.
"""

from __future__ import annotations

import copy
import json

from local.cluster.api import errors
from local.cluster.api.resources import Object, Resource

# Fields of a specification that stay as they were created.
_IMMUTABLE = {
    "jobs.batch": ("template", "selector", "completionMode"),
    "deployments.apps": ("selector",),
    "daemonsets.apps": ("selector",),
    "replicasets.apps": ("selector",),
}


def check_immutable(resource: Resource, current: Object, new: Object) -> None:
    """Refuse changes of what may not change, e.g. a pod's specification or a Job's template."""
    for name in _IMMUTABLE.get(resource.key, ()):
        value = (new.get("spec") or {}).get(name)
        if value != current["spec"].get(name):
            cause = f"Invalid value: {json.dumps(value)}: field is immutable"
            raise errors.invalid(
                resource.kind,
                resource.group,
                current["metadata"]["name"],
                [(f"spec.{name}", cause)],
            )
    if resource.key == "pods":
        _check_pod_unchanged(current, new)


def _check_pod_unchanged(current: Object, new: Object) -> None:
    before, after = copy.deepcopy(current["spec"]), copy.deepcopy(new["spec"])
    for spec in (before, after):
        for name in ("activeDeadlineSeconds", "tolerations", "terminationGracePeriodSeconds"):
            spec.pop(name, None)
        for container in [*spec.get("containers", []), *spec.get("initContainers", [])]:
            container.pop("image", None)
    if before != after:
        message = (
            "Forbidden: pod updates may not change fields other than `spec.containers[*].image`,"
            "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only "
            "additions to existing tolerations),`spec.terminationGracePeriodSeconds`"
        )
        raise errors.invalid("Pod", "", current["metadata"]["name"], [("spec", message)])

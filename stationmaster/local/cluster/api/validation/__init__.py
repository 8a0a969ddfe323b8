"""Whether an object makes sense, as an API server checks it before it stores it. Pure.

Defaults are filled before. One walk over the object finds missing required fields and unknown
words; the modules beside this one hold the rules that relate fields to each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from stationmaster.local.cluster.api import errors
from stationmaster.local.cluster.api.resources import RBAC, Object, Resource
from stationmaster.local.cluster.api.types import Type, type_of
from stationmaster.local.cluster.api.validation import kinds, names
from stationmaster.local.cluster.api.validation.pods import check_pod_spec
from stationmaster.local.cluster.api.validation.problems import Problems

# Words that a field may hold, by struct and field. Source: kubernetes, pkg/apis/*/types.go.
_WORDS: Final = {
    "V1PodSpec.restartPolicy": "Always OnFailure Never",
    "V1PodSpec.dnsPolicy": "ClusterFirst ClusterFirstWithHostNet Default None",
    "V1Container.imagePullPolicy": "Always IfNotPresent Never",
    "V1Container.terminationMessagePolicy": "File FallbackToLogsOnError",
    "V1ContainerPort.protocol": "TCP UDP SCTP",
    "V1Toleration.operator": "Equal Exists",
    "V1Toleration.effect": "NoSchedule PreferNoSchedule NoExecute",
    "V1Taint.effect": "NoSchedule PreferNoSchedule NoExecute",
    "V1ServiceSpec.type": "ClusterIP ExternalName LoadBalancer NodePort",
    "V1ServicePort.protocol": "TCP UDP SCTP",
    "V1PersistentVolumeSpec.persistentVolumeReclaimPolicy": "Delete Recycle Retain",
    "V1DeploymentStrategy.type": "Recreate RollingUpdate",
    "V1JobSpec.completionMode": "Indexed NonIndexed",
    "V1PodFailurePolicyRule.action": "Count FailIndex FailJob Ignore",
    "V1PodFailurePolicyOnExitCodesRequirement.operator": "In NotIn",
}
# Rules of a struct wherever it stands.
_PARTS: Final[dict[str, Callable[[Mapping[str, Any], str, Problems], None]]] = {
    "V1ObjectMeta": names.check_metadata,
    "V1PodSpec": check_pod_spec,
}
# Parts that are not looked at: a status is the controllers', a schema has rules of its own.
_NOT_WALKED: Final = frozenset({"V1JSONSchemaProps", "V1CustomResourceSubresources"})


def check(resource: Resource, obj: Object) -> None:
    """Refuse an object that is incomplete, or contradicts itself.

    Raises:
        ApiError: 422 with every cause.
    """
    problems = Problems()
    problems.each("metadata.name", obj["metadata"].get("name"), _name_check(resource))
    declared = type_of(resource)
    if declared is None or resource.key == "events":
        names.check_metadata(obj["metadata"], "metadata", problems)
    else:
        if resource.key in kinds.CHECKS:
            kinds.CHECKS[resource.key](obj, problems)
        known = {name: part for name, part in obj.items() if name != "status"}
        _walk(known, declared, "", problems)
    if problems:
        name = obj["metadata"].get("name", "")
        raise errors.invalid(resource.kind, resource.group, name, problems)


def _name_check(resource: Resource) -> Callable[[str], list[str]]:
    if resource.group == RBAC:
        return lambda _: []
    of_key = {"services": names.dns_1035_problems, "namespaces": names.label_problems}
    return of_key.get(resource.key, names.subdomain_problems)


def _walk(value: Mapping[str, Any], declared: Type, path: str, problems: Problems) -> None:
    check_part = _PARTS.get(declared.name)
    if check_part is not None:
        check_part(value, path, problems)
    for name in declared.required:
        if value.get(name) in (None, "", []):
            where = f"{path}.{name}" if path else name
            if not any(field == where for field, _ in problems):
                problems.required(where)
    fields = declared.fields
    for name, item in value.items():
        inner = fields.get(name)
        if inner is None or item is None:
            continue
        where = f"{path}.{name}" if path else name
        if inner.form == "string":
            words = _WORDS.get(f"{declared.name}.{name}", "").split()
            if words and item and item not in words:
                problems.unsupported(where, item, words)
        elif inner.form in ("struct", "list", "map"):
            _walk_inner(item, inner, where, problems)


def _walk_inner(value: Any, declared: Type, path: str, problems: Problems) -> None:
    if declared.form == "struct":
        if declared.name not in _NOT_WALKED:
            _walk(value, declared, path, problems)
        return
    element = cast(Type, declared.element)
    if element.form != "struct":
        return
    pairs = value.items() if declared.form == "map" else enumerate(value)
    for key, item in pairs:
        _walk_inner(item, element, f"{path}[{key}]", problems)

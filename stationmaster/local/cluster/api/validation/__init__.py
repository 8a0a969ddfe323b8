"""Whether an object makes sense, as an API server checks it before it stores it. Pure.

Defaults are filled before. One walk over the object finds missing required fields and unknown
words; the modules beside this one hold the rules that relate fields to each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from stationmaster.local.cluster.api import errors
from stationmaster.local.cluster.api.resources import Object, Resource
from stationmaster.local.cluster.api.types import Type, type_of
from stationmaster.local.cluster.api.validation import names
from stationmaster.local.cluster.api.validation.extensions import check_definition, check_webhooks
from stationmaster.local.cluster.api.validation.pods import (
    check_node_term,
    check_pod_spec,
    check_selector,
)
from stationmaster.local.cluster.api.validation.problems import Problems
from stationmaster.local.cluster.api.validation.rights import check_binding, check_role
from stationmaster.local.cluster.api.validation.services import check_service
from stationmaster.local.cluster.api.validation.storage import check_claim, check_data, check_volume
from stationmaster.local.cluster.api.validation.workloads import check_job, check_workload

# Words that a field may hold, by struct and field. Source: kubernetes, pkg/apis/*/types.go.
_WORDS: Final[dict[tuple[str, str], frozenset[str]]] = {
    ("V1PodSpec", "restartPolicy"): frozenset({"Always", "OnFailure", "Never"}),
    ("V1PodSpec", "dnsPolicy"): frozenset(
        {"ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"}
    ),
    ("V1PodSpec", "preemptionPolicy"): frozenset({"Never", "PreemptLowerPriority"}),
    ("V1Container", "imagePullPolicy"): frozenset({"Always", "IfNotPresent", "Never"}),
    ("V1Container", "terminationMessagePolicy"): frozenset({"File", "FallbackToLogsOnError"}),
    ("V1ContainerPort", "protocol"): frozenset({"TCP", "UDP", "SCTP"}),
    ("V1VolumeMount", "mountPropagation"): frozenset({"None", "HostToContainer", "Bidirectional"}),
    ("V1EmptyDirVolumeSource", "medium"): frozenset({"", "Memory", "HugePages"}),
    ("V1HostPathVolumeSource", "type"): frozenset(
        {
            "",
            "BlockDevice",
            "CharDevice",
            "Directory",
            "DirectoryOrCreate",
            "File",
            "FileOrCreate",
            "Socket",
        }
    ),
    ("V1HTTPGetAction", "scheme"): frozenset({"HTTP", "HTTPS"}),
    ("V1SeccompProfile", "type"): frozenset({"Localhost", "RuntimeDefault", "Unconfined"}),
    ("V1Toleration", "operator"): frozenset({"Equal", "Exists"}),
    ("V1Toleration", "effect"): frozenset({"", "NoSchedule", "PreferNoSchedule", "NoExecute"}),
    ("V1Taint", "effect"): frozenset({"NoSchedule", "PreferNoSchedule", "NoExecute"}),
    ("V1TopologySpreadConstraint", "whenUnsatisfiable"): frozenset(
        {"DoNotSchedule", "ScheduleAnyway"}
    ),
    ("V1ServiceSpec", "type"): frozenset({"ClusterIP", "ExternalName", "LoadBalancer", "NodePort"}),
    ("V1ServiceSpec", "sessionAffinity"): frozenset({"ClientIP", "None"}),
    ("V1ServiceSpec", "ipFamilyPolicy"): frozenset(
        {"SingleStack", "PreferDualStack", "RequireDualStack"}
    ),
    ("V1ServicePort", "protocol"): frozenset({"TCP", "UDP", "SCTP"}),
    ("V1PersistentVolumeSpec", "persistentVolumeReclaimPolicy"): frozenset(
        {"Delete", "Recycle", "Retain"}
    ),
    ("V1PersistentVolumeSpec", "volumeMode"): frozenset({"Block", "Filesystem"}),
    ("V1PersistentVolumeClaimSpec", "volumeMode"): frozenset({"Block", "Filesystem"}),
    ("V1DeploymentStrategy", "type"): frozenset({"Recreate", "RollingUpdate"}),
    ("V1DaemonSetUpdateStrategy", "type"): frozenset({"OnDelete", "RollingUpdate"}),
    ("V1JobSpec", "completionMode"): frozenset({"Indexed", "NonIndexed"}),
    ("V1JobSpec", "podReplacementPolicy"): frozenset({"Failed", "TerminatingOrFailed"}),
    ("V1PodFailurePolicyRule", "action"): frozenset({"Count", "FailIndex", "FailJob", "Ignore"}),
    ("V1PodFailurePolicyOnExitCodesRequirement", "operator"): frozenset({"In", "NotIn"}),
    ("V1CustomResourceDefinitionSpec", "scope"): frozenset({"Cluster", "Namespaced"}),
    ("V1CustomResourceConversion", "strategy"): frozenset({"None", "Webhook"}),
    ("V1ValidatingWebhook", "failurePolicy"): frozenset({"Fail", "Ignore"}),
    ("V1ValidatingWebhook", "matchPolicy"): frozenset({"Equivalent", "Exact"}),
    ("V1StorageClass", "reclaimPolicy"): frozenset({"Delete", "Retain"}),
    ("V1StorageClass", "volumeBindingMode"): frozenset({"Immediate", "WaitForFirstConsumer"}),
    ("V1CSIDriverSpec", "fsGroupPolicy"): frozenset({"File", "None", "ReadWriteOnceWithFSType"}),
}
# Rules of a struct wherever it stands.
_PARTS: Final[dict[str, Callable[[Mapping[str, Any], str, Problems], None]]] = {
    "V1ObjectMeta": names.check_metadata,
    "V1PodSpec": check_pod_spec,
    "V1LabelSelector": check_selector,
    "V1NodeSelectorTerm": check_node_term,
}
# Rules of a whole object.
_WHOLES: Final[dict[str, Callable[[Object, Problems], None]]] = {
    "deployments.apps": check_workload,
    "replicasets.apps": check_workload,
    "daemonsets.apps": check_workload,
    "jobs.batch": check_job,
    "services": check_service,
    "persistentvolumes": check_volume,
    "persistentvolumeclaims": check_claim,
    "configmaps": check_data,
    "secrets": check_data,
    "roles.rbac.authorization.k8s.io": check_role,
    "clusterroles.rbac.authorization.k8s.io": check_role,
    "rolebindings.rbac.authorization.k8s.io": check_binding,
    "clusterrolebindings.rbac.authorization.k8s.io": check_binding,
    "customresourcedefinitions.apiextensions.k8s.io": check_definition,
    "validatingwebhookconfigurations.admissionregistration.k8s.io": check_webhooks,
}
# Parts that are not looked at: a status is the controllers', a schema has rules of its own.
_NOT_WALKED: Final = frozenset({"V1JSONSchemaProps", "V1CustomResourceSubresources"})


def check(resource: Resource, obj: Object) -> None:
    """Refuse an object that is incomplete, or contradicts itself.

    Raises:
        ApiError: 422 with every cause.
    """
    found = problems_of(resource, obj)
    if found:
        name = obj["metadata"].get("name", "")
        raise errors.invalid(resource.kind, resource.group, name, found)


def problems_of(resource: Resource, obj: Object) -> Problems:
    """Return all that is wrong; empty for an object that may be stored."""
    problems = Problems()
    for message in _name_problems(resource, obj["metadata"].get("name", "")):
        problems.invalid("metadata.name", obj["metadata"]["name"], message)
    declared = type_of(resource)
    if declared is None or resource.key == "events":
        names.check_metadata(obj["metadata"], "metadata", problems)
        return problems
    whole = _WHOLES.get(resource.key)
    if whole is not None:
        whole(obj, problems)
    _walk({name: part for name, part in obj.items() if name != "status"}, declared, "", problems)
    return problems


def _name_problems(resource: Resource, name: str) -> list[str]:
    if resource.group == "rbac.authorization.k8s.io":
        return names.path_problems(name)
    if resource.key == "services":
        return names.dns_1035_problems(name)
    if resource.key == "namespaces":
        return names.label_problems(name)
    return names.subdomain_problems(name)


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
            words = _WORDS.get((declared.name, name))
            if words is not None and item not in words:
                problems.unsupported(where, item, words - {""})
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

"""How server-side apply treats the lists and maps of built-in types: merged, or replaced whole.

Data, read by `types.py`; named by model and field. What is not here has the rule of most: a list is
replaced whole, a map or struct is merged field by field. Of most statuses, which controllers write,
and of fields that nothing here has, nothing is said.
Source: the x-kubernetes-list-type, -list-map-keys and -map-type of api/openapi-spec, as client-go
carries them in applyconfigurations/internal/internal.go; CustomResourceDefinitions: apiextensions.
"""

from __future__ import annotations

# Fields that together tell the elements of a list apart.
LIST_KEYS: dict[str, tuple[str, ...]] = {
    "V1Container.env": ("name",),
    "V1Container.ports": ("containerPort", "protocol"),
    "V1Container.volumeMounts": ("mountPath",),
    "V1DeploymentStatus.conditions": ("type",),
    "V1NodeStatus.addresses": ("type",),
    "V1NodeStatus.conditions": ("type",),
    "V1ObjectMeta.ownerReferences": ("uid",),
    "V1PodSpec.containers": ("name",),
    "V1PodSpec.imagePullSecrets": ("name",),
    "V1PodSpec.initContainers": ("name",),
    "V1PodSpec.topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
    "V1PodSpec.volumes": ("name",),
    "V1PodStatus.conditions": ("type",),
    "V1ServiceAccount.secrets": ("name",),
    "V1ServiceSpec.ports": ("port", "protocol"),
    "V1ValidatingWebhookConfiguration.webhooks": ("name",),
}
# Lists that strategic patches merge by a key, and server-side apply replaces. Source: k8s.io/api.
PATCH_KEYS = {"V1NodeSpec.taints": "key", "V1JobStatus.conditions": "type"}
# What an element has that names no such field.
KEY_DEFAULTS = {"protocol": "TCP"}
# Lists of scalars of which none comes twice.
SETS = frozenset(
    {
        "V1CSIDriverSpec.volumeLifecycleModes",
        "V1ObjectMeta.finalizers",
        "V1PodFailurePolicyOnExitCodesRequirement.values",
    }
)
# Structs, and maps in structs, that are replaced whole.
ATOMIC = frozenset(
    {
        "RbacV1Subject",
        "V1ConfigMapKeySelector",
        "V1LabelSelector",
        "V1LocalObjectReference",
        "V1NodeSelector",
        "V1NodeSelectorTerm",
        "V1ObjectFieldSelector",
        "V1ObjectReference",
        "V1OwnerReference",
        "V1PodSpec.nodeSelector",
        "V1ResourceFieldSelector",
        "V1RoleRef",
        "V1SecretKeySelector",
        "V1SecretReference",
        "V1ServiceSpec.selector",
        "V1TypedLocalObjectReference",
    }
)
# Fields that are merged although their struct is not.
GRANULAR = frozenset({"V1PersistentVolumeSpec.claimRef"})

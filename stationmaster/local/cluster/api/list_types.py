"""How server-side apply treats the lists and maps of built-in types: merged, or replaced whole.

Data, read by `types.py`; named by model and field. What is not here has the rule of
most: a list is replaced whole, a map or struct is merged field by field.
Source: the x-kubernetes-list-type, -list-map-keys and -map-type of api/openapi-spec, as client-go
carries them in applyconfigurations/internal/internal.go; CustomResourceDefinitions: apiextensions.
"""

from __future__ import annotations

# Fields that together tell the elements of a list apart.
LIST_KEYS: dict[str, tuple[str, ...]] = {
    "V1CSINodeSpec.drivers": ("name",),
    "V1CSINodeStatus.storageHealth": ("name",),
    "V1Container.env": ("name",),
    "V1Container.ports": ("containerPort", "protocol"),
    "V1Container.volumeDevices": ("devicePath",),
    "V1Container.volumeMounts": ("mountPath",),
    "V1ContainerStatus.allocatedResourcesStatus": ("name",),
    "V1ContainerStatus.volumeMounts": ("mountPath",),
    "V1CustomResourceDefinitionStatus.conditions": ("type",),
    "V1DaemonSetStatus.conditions": ("type",),
    "V1DeploymentStatus.conditions": ("type",),
    "V1EphemeralContainer.env": ("name",),
    "V1EphemeralContainer.ports": ("containerPort", "protocol"),
    "V1EphemeralContainer.volumeDevices": ("devicePath",),
    "V1EphemeralContainer.volumeMounts": ("mountPath",),
    "V1JobSchedulingConfiguration.resourceClaims": ("name",),
    "V1MutatingWebhook.matchConditions": ("name",),
    "V1MutatingWebhookConfiguration.webhooks": ("name",),
    "V1NamespaceStatus.conditions": ("type",),
    "V1NodeAllocatableResourceClaimStatus.mapping": ("name",),
    "V1NodeAllocatableResourceClaimStatus.overhead": ("name",),
    "V1NodeStatus.addresses": ("type",),
    "V1NodeStatus.conditions": ("type",),
    "V1ObjectMeta.ownerReferences": ("uid",),
    "V1PersistentVolumeClaimStatus.conditions": ("type",),
    "V1PodSpec.containers": ("name",),
    "V1PodSpec.ephemeralContainers": ("name",),
    "V1PodSpec.evictionResponders": ("name",),
    "V1PodSpec.hostAliases": ("ip",),
    "V1PodSpec.imagePullSecrets": ("name",),
    "V1PodSpec.initContainers": ("name",),
    "V1PodSpec.resourceClaims": ("name",),
    "V1PodSpec.schedulingGates": ("name",),
    "V1PodSpec.topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
    "V1PodSpec.volumes": ("name",),
    "V1PodStatus.conditions": ("type",),
    "V1PodStatus.nodeAllocatableResourceClaimStatuses": ("resourceClaimName",),
    "V1PodStatus.podIPs": ("ip",),
    "V1PodStatus.resourceClaimStatuses": ("name",),
    "V1PodStatus.volumeHealth": ("name",),
    "V1PodVolumeHealth.healthConditions": ("status", "reason"),
    "V1ReplicaSetStatus.conditions": ("type",),
    "V1ResourceRequirements.claims": ("name",),
    "V1ResourceStatus.resources": ("resourceID",),
    "V1ServiceAccount.secrets": ("name",),
    "V1ServiceSpec.ports": ("port", "protocol"),
    "V1ServiceStatus.conditions": ("type",),
    "V1ValidatingWebhook.matchConditions": ("name",),
    "V1ValidatingWebhookConfiguration.webhooks": ("name",),
    "V1VolumeHealthStatus.healthConditions": ("status", "reason"),
}
# What an element has that names no such field.
KEY_DEFAULTS = {"protocol": "TCP"}
# Lists of scalars of which none comes twice.
SETS = frozenset(
    {
        "V1CSIDriverSpec.volumeLifecycleModes",
        "V1ContainerRestartRuleOnExitCodes.values",
        "V1Endpoint.addresses",
        "V1NodeAllocatableResourceClaimStatus.containers",
        "V1NodePodPreemptionPolicy.disableResizePreemption",
        "V1NodeSpec.podCIDRs",
        "V1ObjectMeta.finalizers",
        "V1PodFailurePolicyOnExitCodesRequirement.values",
        "V1UncountedTerminatedPods.failed",
        "V1UncountedTerminatedPods.succeeded",
        "V1VolumeMount.bindMountOptions",
    }
)
# Structs, and maps in structs, that are replaced whole.
ATOMIC = frozenset(
    {
        "CoreV1EndpointPort",
        "DiscoveryV1EndpointPort",
        "RbacV1Subject",
        "V1ConfigMapKeySelector",
        "V1EndpointAddress",
        "V1EvictionResponder",
        "V1FileKeySelector",
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
        "V1ScopeSelector",
        "V1SecretKeySelector",
        "V1SecretReference",
        "V1ServiceSpec.selector",
        "V1TopologySelectorTerm",
        "V1TypedLocalObjectReference",
    }
)
# Fields that are merged although their struct is not.
GRANULAR = frozenset({"V1PersistentVolumeSpec.claimRef"})

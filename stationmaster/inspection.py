"""A cluster that is there, and what a look at it finds: what checks and plugins have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING

from stationmaster.domain.catalogue.instances import HYPERPOD
from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.cluster.spec import ClusterSpec
from stationmaster.domain.ids import ClusterId, RunId
from stationmaster.domain.job_kinds import JobKind
from stationmaster.domain.names import (
    LABEL_CLUSTER_ID,
    LABEL_ROLE,
    TRAINING_NODE_GROUP,
    TRAINING_TAINT,
    own_namespace,
)
from stationmaster.kubernetes.room import PodLoad, amounts_of, why_not
from stationmaster.rendering.metadata import GPU_TAINT, LABEL_INSTANCE_TYPE, LABEL_NODE_GROUP
from stationmaster.rendering.training_pod import pod_resources
from stationmaster.services import Services

if TYPE_CHECKING:
    from stationmaster.kubernetes.gateway import KubernetesGateway
    from stationmaster.kubernetes.views import NodeView


class Verdict(StrEnum):
    """What a look at the cluster says of one check or plugin."""

    MISSING = "missing"
    """Its objects are not in the cluster."""
    WAITING = "waiting"
    """Not good yet, and it may still become so."""
    GOOD = "good"
    BAD = "bad"
    """Final: looking again would not help."""


@dataclass(frozen=True)
class Finding:
    """What a look at the cluster found; the sentence names every figure.

    Figures are the measured numbers by name, with units in the names where they have any. Bad nodes
    are what is wrong with single nodes, by their names; empty where it is not about single ones.
    """

    verdict: Verdict
    sentence: str
    figures: Mapping[str, float] = field(default_factory=dict)
    bad_nodes: Mapping[str, str] = field(default_factory=dict)
    table: tuple[str, ...] = ()
    """Lines of equal columns, of more figures than a sentence can name."""


@dataclass(frozen=True)
class LiveCluster:
    """A cluster that is there: what it should be, and how to reach it."""

    services: Services
    cluster_id: ClusterId
    spec: ClusterSpec
    passes: int = 1
    """The number of this execution; what an earlier one has found does not count."""
    is_full: bool = False
    """Whether this execution runs every check, each as thoroughly as it can."""
    run_id: RunId | None = None
    """The run that caused it."""
    job_kind: JobKind | None = None
    """What jobs are there, where that was chosen before."""

    @property
    def kubernetes(self) -> KubernetesGateway:
        """Its Kubernetes API.

        Raises:
            TransientError: it has no endpoint yet.
        """
        return self.services.kubernetes(self.cluster_id)

    @cached_property
    def training_nodes(self) -> list[NodeView]:
        """Its training nodes, listed once: a shared cluster's other nodes do not count.

        In an existing EKS cluster these are the nodes that training pods fit on now.
        """
        if self.spec.eks_name:
            asked = amounts_of(self.asked)
            return [
                node
                for node in self.nodes_of_type
                if not why_not(node, self.loads_of_others, asked, tolerated=self.tolerated)
            ]
        labels = {LABEL_NODE_GROUP: TRAINING_NODE_GROUP, LABEL_CLUSTER_ID: self.cluster_id}
        return self.kubernetes.nodes(labels=labels)

    @cached_property
    def nodes_of_type(self) -> list[NodeView]:
        """Every node of the instance type, whoever made it: HyperPod's, where it has some."""
        names = (f"{HYPERPOD}{self.spec.instance_type}", self.spec.instance_type)
        listed = (self.kubernetes.nodes(labels={LABEL_INSTANCE_TYPE: name}) for name in names)
        return next((nodes for nodes in listed if nodes), [])

    @property
    def hyperpod_vcpus(self) -> int | None:
        """The CPUs of each node that training pods may ask for, where nodes are HyperPod's.

        Its instance groups have multithreading switched off unless they say otherwise.
        """
        if self.spec.hyperpod_vcpus is not None:
            return self.spec.hyperpod_vcpus
        nodes = self.nodes_of_type
        if not any(node.instance_type.startswith(HYPERPOD) for node in nodes):
            return None
        vcpus = self.spec.instance.vcpus
        is_halved = any(node.amount("cpu") <= vcpus // 2 for node in nodes)
        return vcpus // 2 if is_halved else vcpus

    @cached_property
    def loads_of_others(self) -> list[PodLoad]:
        """What pods hold that are not the cluster's own: by their namespace, or their label."""
        own, loads = own_namespace(self.cluster_id), self.kubernetes.loads()
        others = (load for load in loads if load.namespace != own)
        return [load for load in others if load.placed_for != self.cluster_id]

    @property
    def asked(self) -> dict[str, str]:
        """What a training pod asks of its node."""
        spec, vcpus = self.spec, self.hyperpod_vcpus if self.spec.eks_name else None
        instance = spec.instance if vcpus is None else spec.instance.on_hyperpod(vcpus)
        requests: dict[str, str] = pod_resources(
            instance, num_gpus=spec.num_gpus, num_efa=spec.num_efa
        )["requests"]
        return requests

    @property
    def tolerated(self) -> list[str]:
        """Keys of the taints that training pods tolerate."""
        return [TRAINING_TAINT, *([GPU_TAINT] if self.spec.num_gpus else [])]

    @cached_property
    def idle_nodes(self) -> list[NodeView]:
        """Its training nodes that no job is on: what runs train on is proven by them."""
        pods = self.kubernetes.pods(labels={LABEL_ROLE: "training"})
        busy = {pod.node for pod in pods if pod.phase not in ("Succeeded", "Failed")}
        return [node for node in self.training_nodes if node.name not in busy]


def live_cluster(services: Services, cluster: Cluster) -> LiveCluster:
    """Combine the cluster, what it should be, and how to reach it."""
    return LiveCluster(
        services,
        cluster.cluster_id,
        cluster.spec,
        cluster.passes,
        is_full=cluster.is_full,
        run_id=cluster.run_id,
        job_kind=cluster.job_kind,
    )

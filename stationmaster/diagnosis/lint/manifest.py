"""A Kubernetes object as rules look at it: its pods, and the machines that these need. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from stationmaster.diagnosis.lint.containers import Container
from stationmaster.diagnosis.lint.placeholders import is_unresolved
from stationmaster.diagnosis.lint.reading import Document, Path
from stationmaster.diagnosis.lint.values import mapping, sequence, text, whole
from stationmaster.domain.catalogue.instances import CATALOGUE, InstanceType
from stationmaster.domain.catalogue.places import Machine

GPU: Final = "nvidia.com/gpu"
EFA: Final = "vpc.amazonaws.com/efa"
HUGE_PAGES: Final = "hugepages-2Mi"
INSTANCE_LABELS: Final = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")
_PATCH: Final = re.compile(r"(?:^|[/._-])patch(?:es)?(?:[/._-]|$)")
_REPLICAS: Final = (("spec", "pytorchReplicaSpecs"), ("spec", "mpiReplicaSpecs"))
TRAINING_KINDS: Final = ("PyTorchJob", "MPIJob", "TrainJob", "HyperPodPyTorchJob", "ElasticJob")


@dataclass(frozen=True)
class Pod:
    """The specification of the pods of one role."""

    path: Path
    """The path of the pod's spec."""
    spec: Mapping[str, Any]
    role: str
    replicas: int | None
    """The number of them; None where the manifest does not say."""
    named_instance: InstanceType | None = None
    made_claims: frozenset[str] = frozenset()
    """Volumes that its JobSet makes for it."""

    @cached_property
    def containers(self) -> list[Container]:
        """Its containers, init containers last."""
        return [
            Container((*self.path, field, index), mapping(body), is_init=field != "containers")
            for field in ("containers", "initContainers")
            for index, body in enumerate(sequence(self.spec.get(field)))
        ]

    @property
    def workers(self) -> list[Container]:
        """The containers that stay."""
        return [container for container in self.containers if not container.is_init]

    def count(self, resource: str) -> int:
        """Count the devices that the whole pod asks for."""
        return sum(container.count(resource) for container in self.workers)

    def asks(self, resource: str) -> bool:
        """Say whether any container asks for a device."""
        return any(container.asks(resource) for container in self.workers)

    @cached_property
    def selected(self) -> tuple[Path, str] | None:
        """The instance type that its node must have, by selector or affinity."""
        for label in INSTANCE_LABELS:
            chosen = mapping(self.spec.get("nodeSelector")).get(label)
            if isinstance(chosen, str):
                return (*self.path, "nodeSelector", label), chosen
        required = ("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
        at: Any = self.spec
        for key in required:
            at = mapping(at).get(key)
        for index, term in enumerate(sequence(mapping(at).get("nodeSelectorTerms"))):
            for place, each in enumerate(sequence(mapping(term).get("matchExpressions"))):
                values = sequence(mapping(each).get("values"))
                if mapping(each).get("key") in INSTANCE_LABELS and len(values) == 1:
                    where = ("nodeSelectorTerms", index, "matchExpressions", place, "values", 0)
                    return (*self.path, *required, *where), str(values[0])
        return None

    @cached_property
    def instance(self) -> InstanceType | None:
        """The instance type of its nodes, where selector or command line name a known one."""
        if self.selected is not None:
            known = CATALOGUE.get(self.selected[1].removeprefix("ml."))
            if known is not None:
                return known
        return self.named_instance

    @property
    def is_unresolved(self) -> bool:
        """Whether its number or its devices are known only when a template is filled in."""
        return any(
            is_unresolved(container.requests.get(resource))
            for container in self.workers
            for resource in (GPU, EFA)
        )

    def machine(self, container: Container) -> Machine:
        """Describe the place where a container runs, for the environment policy."""
        words = container.words
        return Machine(
            instance=self.instance,
            num_gpus=container.count(GPU) or int(container.asks(GPU)),
            num_efa=container.count(EFA) or int(container.asks(EFA)),
            on_host_network=self.spec.get("hostNetwork") is True,
            measures_nccl=any("_perf" in word for word in words),
            runs_megatron=any(
                "megatron" in word.lower() or "pretrain_gpt" in word for word in words
            )
            or any("tensor-model-parallel" in word for word in words),
        )


@dataclass(frozen=True)
class Manifest:
    """A document that is a Kubernetes object."""

    document: Document
    named_instance: InstanceType | None = None
    file: str = ""

    @property
    def data(self) -> Mapping[str, Any]:
        return mapping(self.document.data)

    @property
    def kind(self) -> str:
        return text(self.data.get("kind"))

    @property
    def group(self) -> str:
        """The API group; "" for core."""
        before, slash, _ = text(self.data.get("apiVersion")).partition("/")
        return before if slash else ""

    @property
    def version(self) -> str:
        return text(self.data.get("apiVersion")).rpartition("/")[2]

    @property
    def name(self) -> str:
        metadata = mapping(self.data.get("metadata"))
        return text(metadata.get("name")) or text(metadata.get("generateName"))

    @property
    def spec(self) -> Mapping[str, Any]:
        return mapping(self.data.get("spec"))

    @property
    def trains(self) -> bool:
        """Whether it is a job of a training operator."""
        return self.kind in TRAINING_KINDS

    @property
    def replica_field(self) -> str:
        """The field of its replica types; "" for kinds that have none."""
        fields = ("pytorchReplicaSpecs", "mpiReplicaSpecs", "replicaSpecs")
        return next((field for field in fields if field in self.spec), "")

    @cached_property
    def pods(self) -> list[Pod]:
        """The pods that are made of it."""
        if self.kind == "Pod":
            return [Pod(("spec",), self.spec, "Pod", 1, self.named_instance)]
        if self.kind == "TrainJob":
            return [self._trainer()] if "trainer" in self.spec else []
        found = []
        for path, holder in _templates(self.data, ()):
            role = str(path[-1]) if path[:-1] and path[-2] == self.replica_field else self.kind
            replicas = whole(holder.get("replicas", holder.get("parallelism", 1)))
            spec = mapping(mapping(holder.get("template")).get("spec"))
            at = (*path, "template", "spec")
            found.append(Pod(at, spec, role, replicas, self.named_instance, self._made_claims))
        return found

    @cached_property
    def _made_claims(self) -> frozenset[str]:
        """The claims of a JobSet's volumeClaimPolicies, which its pods mount by their names."""
        job_set = (
            self.spec
            if self.kind == "JobSet"
            else mapping(mapping(self.spec.get("template")).get("spec"))
        )
        return frozenset(
            text(mapping(mapping(claim).get("metadata")).get("name"))
            for policy in sequence(job_set.get("volumeClaimPolicies"))
            for claim in sequence(mapping(policy).get("templates"))
        )

    @property
    def is_patch(self) -> bool:
        """Whether it only changes another object: Kustomize's patches have parts of one."""
        return _PATCH.search(self.file) is not None or (
            self.kind in ("Deployment", "StatefulSet", "DaemonSet") and "selector" not in self.spec
        )

    def _trainer(self) -> Pod:
        """Return a TrainJob's trainer as a pod; its volumes are the runtime's."""
        trainer = mapping(self.spec.get("trainer"))
        body = {**trainer, "name": "node", "resources": trainer.get("resourcesPerNode") or {}}
        nodes = whole(trainer.get("numNodes", 1))
        pod = Pod(("spec", "trainer"), {}, "Trainer", nodes, self.named_instance)
        # Its container stands where the trainer does, not below `containers`.
        pod.__dict__["containers"] = [Container(("spec", "trainer"), body)]
        return pod

    @property
    def num_pods(self) -> int | None:
        """The number of all pods that train; None where a template leaves it open."""
        counts = [pod.replicas for pod in self.pods if pod.role != "Launcher"]
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(counts) else None

    @property
    def has_many_pods(self) -> bool:
        """Whether it trains on more than one node, as far as can be seen."""
        count = self.num_pods
        return count is None or count > 1


def _templates(value: Any, path: Path) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Yield every mapping that has a pod template, by its path."""
    if isinstance(value, Mapping):
        template = mapping(mapping(value.get("template")).get("spec"))
        if path[:-1] in _REPLICAS or isinstance(template.get("containers"), list):
            yield path, value
            return
        for key, item in value.items():
            if key not in ("status", "metadata"):
                yield from _templates(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _templates(item, (*path, index))

"""What steps need to know of Kubernetes objects, parsed once from the API's JSON.

Each `parse_*` takes an object as the API server sends it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, Final

from stationmaster.domain.frozen import Frozen
from stationmaster.domain.job_kinds import ConditionName, JobCondition, JobKind
from stationmaster.domain.names import LABEL_GUESTS, LABEL_RUN_ID
from stationmaster.rendering.job_backends import JobBackend
from stationmaster.rendering.metadata import (
    ANNOTATION_CORDONED,
    HEALTHY,
    LABEL_DEEP_CHECK,
    LABEL_HEALTH,
    LABEL_HOSTNAME,
    LABEL_INSTANCE_TYPE,
    LABEL_NODE_GROUP,
)

# Waiting reasons that do not heal: the pod's own definition is at fault. A failing image pull is
# not among them, registries and node roles get their time.
_PERMANENT_REASONS: Final = frozenset(
    {
        "CreateContainerError",
        "CreateContainerConfigError",
        "InvalidImageName",
        "ErrImageNeverPull",
        "RunContainerError",
    }
)
LABEL_ZONE: Final = "topology.kubernetes.io/zone"

Json = Mapping[str, Any]


class NodeView(Frozen):
    """A node and what pods may be given of it in total."""

    name: str
    hostname: str
    ready: bool
    instance_type: str = ""
    zone: str = ""
    node_group: str = ""
    eks_group: str = ""
    """The managed node group that EKS made it for; "" for others."""
    karpenter_pool: str = ""
    """The NodePool for which Karpenter made it; "" for others."""
    instance_id: str = ""
    """The id of the EC2 instance; "" where the node does not say."""
    allocatable: dict[str, str] = {}
    schedulable: bool = True
    """False while somebody has cordoned it."""
    cordoned: str = ""
    """Why Stationmaster has; it stays where others uncordon the node."""
    unfit: str = ""
    """What SageMaker HyperPod's labels say against pods on it; "" for nothing."""
    taints: tuple[str, ...] = ()
    """The keys of the taints that keep pods away which do not tolerate them."""
    capacity: dict[str, str] = {}
    """What it has of each resource, whether pods may use it or not."""
    problems: tuple[str, ...] = ()
    """Conditions that are true and name no readiness, or name one and are not true."""

    def count(self, resource: str) -> int:
        """Return the allocatable devices of a resource; 0 while no plugin advertises it."""
        return int(self.allocatable.get(resource, "0"))

    def amount(self, resource: str) -> Decimal:
        """Return allocatable CPUs, or bytes of memory; 0 where the node does not say."""
        # The recorder knows these views too, and must not load the client for them.
        from kubernetes.utils.quantity import parse_quantity

        quantity: Decimal = parse_quantity(self.allocatable.get(resource, "0"))
        return quantity


class PodView(Frozen):
    """A pod; `waiting_*` is of the first waiting container, `unschedulable` the scheduler's."""

    name: str
    phase: str
    node: str = ""
    ready: bool = False
    waiting_reason: str = ""
    waiting_message: str = ""
    terminated_reason: str = ""
    exit_code: int | None = None
    image_digest: str = ""
    """The digest of its first container's image, `sha256:...`; empty where the node says none."""
    restarts: int = 0
    unschedulable: str = ""
    run_id: str = ""
    """The run that it is of; empty for none."""
    ending: bool = False
    """Whether its deletion was requested, and its node has not confirmed the end yet."""

    @property
    def cannot_start(self) -> bool:
        """Whether it waits for what does not come by itself."""
        return self.waiting_reason in _PERMANENT_REASONS

    @property
    def waits_for(self) -> str:
        """Why the pod does not run, in the cluster's own words."""
        if self.unschedulable:
            return f"pod {self.name} is not scheduled: {self.unschedulable}"
        if self.waiting_reason:
            detail = f": {self.waiting_message}" if self.waiting_message else ""
            return f"pod {self.name} waits with {self.waiting_reason}{detail}"
        return f"pod {self.name} is {self.phase}"


class JobView(Frozen):
    """A training job by the conditions that are true."""

    kind: JobKind
    name: str
    uid: str = ""
    conditions: list[JobCondition] = []
    created_at: datetime | None = None
    suspended: bool = False
    """Whether it is to have no pods: nobody has admitted it yet, or somebody has stopped it."""

    def condition(self, name: ConditionName) -> JobCondition | None:
        """Return the condition of that name if it is true."""
        return next((c for c in self.conditions if c.name == name), None)


class BatchJobView(Frozen):
    """A batch/v1 Job, or an MPIJob: at most one of the two is true."""

    name: str
    succeeded: bool = False
    failed: bool = False
    message: str = ""
    """Why it failed, in the cluster's words."""
    failures: int = 0
    """The number of its pods that have failed, also those that are gone with their nodes."""


class DeploymentView(Frozen):
    """A Deployment, by one image that it runs."""

    namespace: str
    name: str
    image: str
    is_ready: bool
    """Whether all replicas of its newest revision are available."""


class ClaimView(Frozen):
    """A PersistentVolumeClaim."""

    phase: str
    access_modes: tuple[str, ...] = ()
    volume: str = ""
    """The volume that it is bound to."""
    lets_guests_in: bool = False


class WarningView(Frozen):
    """A Kubernetes event of type Warning."""

    object_name: str
    reason: str
    message: str


def parse_node(item: Json) -> NodeView:
    metadata, status = item["metadata"], item.get("status") or {}
    labels, spec = metadata.get("labels") or {}, item.get("spec") or {}
    return NodeView(
        name=metadata["name"],
        hostname=labels.get(LABEL_HOSTNAME, metadata["name"]),
        ready="Ready" in _holding(status),
        instance_type=labels.get(LABEL_INSTANCE_TYPE, ""),
        zone=labels.get(LABEL_ZONE, ""),
        node_group=labels.get(LABEL_NODE_GROUP, ""),
        eks_group=labels.get("eks.amazonaws.com/nodegroup", ""),
        karpenter_pool=labels.get("karpenter.sh/nodepool", ""),
        # aws:///us-west-2a/i-0123456789abcdef0
        instance_id=str(spec.get("providerID") or "").rpartition("/")[2],
        allocatable=status.get("allocatable") or {},
        schedulable=not spec.get("unschedulable", False),
        cordoned=(metadata.get("annotations") or {}).get(ANNOTATION_CORDONED, ""),
        unfit=_why_unfit(labels),
        taints=tuple(
            taint["key"]
            for taint in spec.get("taints") or []
            if taint.get("effect") in ("NoSchedule", "NoExecute")
        ),
        capacity=status.get("capacity") or {},
        problems=tuple(
            f"{each['type']} is {each.get('status')} ({each.get('reason') or 'no reason given'})"
            for each in status.get("conditions") or []
            if (each.get("status") == "True") != each["type"].endswith("Ready")
        ),
    )


def _why_unfit(labels: Json) -> str:
    for label, fit in ((LABEL_HEALTH, HEALTHY), (LABEL_DEEP_CHECK, "Passed")):
        if labels.get(label, fit) != fit:
            return f"is {labels[label]} by HyperPod's label {label}"
    return ""


def _image_digest(status: Json) -> str:
    """Return the registry's name of the image: an id without a name is the node's own."""
    for container in status.get("containerStatuses") or []:
        name, _, digest = str(container.get("imageID") or "").rpartition("@")
        if name and digest.startswith("sha256:"):
            return digest
    return ""


def parse_pod(item: Json) -> PodView:
    status = item.get("status") or {}
    containers = [
        *(status.get("initContainerStatuses") or []),
        *(status.get("containerStatuses") or []),
    ]
    states = [container.get("state") or {} for container in containers]
    waiting: Json = next((state["waiting"] for state in states if state.get("waiting")), {})
    # Of a container that restarts, the end before says more than the present wait; of many ends,
    # the bad one says more than an init container's good one.
    ends = states + [container.get("lastState") or {} for container in containers]
    ended: list[Json] = [end["terminated"] for end in ends if end.get("terminated")]
    terminated: Json = next(
        (end for end in ended if end.get("exitCode")), ended[-1] if ended else {}
    )
    return PodView(
        name=item["metadata"]["name"],
        phase=status.get("phase", "Unknown"),
        node=(item.get("spec") or {}).get("nodeName", ""),
        ready="Ready" in _holding(status),
        waiting_reason=waiting.get("reason", ""),
        waiting_message=waiting.get("message", ""),
        terminated_reason=terminated.get("reason", ""),
        exit_code=terminated.get("exitCode"),
        image_digest=_image_digest(status),
        restarts=sum(container.get("restartCount", 0) for container in containers),
        unschedulable=next(
            (
                condition.get("message", "")
                for condition in status.get("conditions") or []
                if condition["type"] == "PodScheduled" and condition["status"] == "False"
            ),
            "",
        ),
        run_id=(item["metadata"].get("labels") or {}).get(LABEL_RUN_ID, ""),
        ending="deletionTimestamp" in item["metadata"],
    )


def parse_job(item: Json, backend: JobBackend) -> JobView:
    return JobView(
        kind=backend.KIND,
        name=item["metadata"]["name"],
        uid=item["metadata"].get("uid", ""),
        created_at=item["metadata"].get("creationTimestamp"),
        conditions=backend.conditions(item),
        suspended=backend.is_suspended(item),
    )


def parse_batch_job(item: Json) -> BatchJobView:
    status = item.get("status") or {}
    holding = _holding(status)
    failed = holding.get("Failed")
    return BatchJobView(
        name=item["metadata"]["name"],
        succeeded="Complete" in holding or "Succeeded" in holding,
        failed=failed is not None,
        message=(failed.get("message") or failed.get("reason") or "") if failed is not None else "",
        failures=status.get("failed") or 0,
    )


def parse_deployment(item: Json, of: str) -> list[DeploymentView]:
    """Parse a Deployment, once for each image that it runs with `of` in its name."""
    return [
        DeploymentView(
            namespace=item["metadata"]["namespace"],
            name=item["metadata"]["name"],
            image=container["image"],
            is_ready=is_rolled_out(item),
        )
        for container in item["spec"]["template"]["spec"].get("containers") or []
        if of in container.get("image", "").partition("@")[0]
    ]


def parse_claim(item: Json) -> ClaimView:
    spec = item.get("spec") or {}
    return ClaimView(
        phase=(item.get("status") or {}).get("phase") or "Pending",
        access_modes=spec.get("accessModes") or (),
        volume=spec.get("volumeName") or "",
        lets_guests_in=lets_guests_in(item["metadata"]),
    )


def lets_guests_in(metadata: Json) -> bool:
    """Say whether the owner of a claim, or of a namespace, has opened it to runs."""
    return (metadata.get("labels") or {}).get(LABEL_GUESTS) == "allowed"


def parse_warning(item: Json) -> WarningView:
    return WarningView(
        object_name=(item.get("involvedObject") or {}).get("name", ""),
        reason=item.get("reason") or "",
        message=item.get("message") or "",
    )


def _holding(status: Json) -> dict[str, Json]:
    """Return the conditions that are true, by their types."""
    conditions = status.get("conditions") or []
    return {each["type"]: each for each in conditions if each.get("status") == "True"}


def is_rolled_out(item: Json, at_least: int | None = None) -> bool:
    """Say whether replicas of a Deployment's newest revision are available."""
    if not is_observed(item):
        return False
    wanted, status = item["spec"].get("replicas", 1), item["status"]
    if at_least is not None:
        wanted = min(wanted, at_least)
    counts = (status.get("updatedReplicas", 0), status.get("availableReplicas", 0))
    return all(count >= wanted for count in counts)


def is_observed(item: Json) -> bool:
    """Say whether the status is about the present spec."""
    generation = item["metadata"].get("generation", 0)
    return bool((item.get("status") or {}).get("observedGeneration", 0) >= generation)


def last_seen(event: Json) -> str:
    """Say when an Event was seen last, in a form that can be compared."""
    return str(
        event.get("lastTimestamp")
        or event.get("eventTime")
        or event["metadata"].get("creationTimestamp")
        or ""
    )


def last_line(text: str) -> str:
    """Return the last line of a log that is not empty; "" when there is none."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""

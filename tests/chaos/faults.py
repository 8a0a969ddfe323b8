"""The matrix of faults: every call of the three workflows' happy path goes wrong in each way.

A fault that passes must not be noticed: the run succeeds. One that lasts ends the run with one
clear sentence; once it is over, nothing is left.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from stationmaster.domain.cluster.aggregate import TeardownStatus
from stationmaster.domain.cluster.events import ClusterPhase
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import RunPhase
from tests.chaos.points import Point, Verdict
from tests.chaos.rules import FOR_GOOD, ApiFault, Fault, Way
from tests.chaos.scene import Place, Scene
from tests.chaos.watched import AnId

# Every call that the functions of a run make from its request to its receipt; a test compares this
# list with the calls of a run that nothing disturbed.
_AWS_CALLS: Final = {
    "dynamodb": "GetItem PutItem TransactWriteItems",
    "ec2": "AuthorizeSecurityGroupEgress AuthorizeSecurityGroupIngress CreateLaunchTemplate "
    "CreateSecurityGroup DeleteLaunchTemplate DeleteSecurityGroup DescribeInstances "
    "DescribeInstanceTypeOfferings DescribeLaunchTemplates DescribeNetworkInterfaces "
    "DescribePlacementGroups DescribeSecurityGroups DescribeSubnets DescribeVolumes",
    "eks": "AssociateAccessPolicy CreateAccessEntry CreateAddon CreateCluster CreateNodegroup "
    "CreatePodIdentityAssociation DeleteCluster DeleteNodegroup DescribeAddon "
    "DescribeCluster DescribeClusterVersions DescribeNodegroup ListNodegroups",
    "events": "PutEvents",
    "fsx": "CreateFileSystem DeleteFileSystem DescribeDataRepositoryAssociations "
    "DescribeFileSystems",
    "logs": "DescribeLogGroups",
    "s3": "GetObject",
    "secretsmanager": "GetSecretValue",
    "stepfunctions": "DescribeExecution SendTaskSuccess StartExecution",
}
_KUBERNETES_CALLS: Final = {
    "DELETE": "deployments jobs leases persistentvolumeclaims persistentvolumes pytorchjobs "
    "rolebindings secrets serviceaccounts services",
    "GET": "clusterrolebindings clusterroles csidrivers customresourcedefinitions deployments "
    "events jobs mpijobs nodes persistentvolumes pods pytorchjobs rolebindings roles "
    "serviceaccounts version",
    "PATCH": "clusterrolebindings clusterroles customresourcedefinitions deployments jobs "
    "namespaces persistentvolumeclaims persistentvolumes pytorchjobs rolebindings roles "
    "secrets serviceaccounts services validatingwebhookconfigurations",
    "POST": "selfsubjectaccessreviews subjectaccessreviews",
}
OPERATIONS: Final[dict[str, tuple[str, ...]]] = {
    **{service: tuple(calls.split()) for service, calls in _AWS_CALLS.items()},
    "kubernetes": tuple(
        f"{verb} {kind}" for verb, kinds in _KUBERNETES_CALLS.items() for kind in kinds.split()
    ),
}
# A workflow that was just told the end of its wait may take so long to go on.
_IN_VAIN_S: Final = 2.0
# Only where the relay sends a batch that no wait is for, where a node group is looked at while
# it is made (most are not, at the speed of the sweeps), and where pods are not ready then.
OCCASIONAL: Final = frozenset(
    {
        ("stepfunctions", "SendTaskHeartbeat"),
        ("autoscaling", "DescribeScalingActivities"),
        ("kubernetes", "GET events"),
    }
)


@dataclass(frozen=True)
class Kind:
    """A way in which a call goes wrong, with the codes of AWS and of Kubernetes."""

    words: str
    aws: str
    kubernetes: str
    times: int = 1
    way: Way = Way.REFUSED
    of_service: tuple[tuple[str, str], ...] = ()

    @property
    def passes(self) -> bool:
        """Whether it happens once only."""
        return self.times == 1

    def fault(self, service: str, operation: str) -> ApiFault:
        """The rule for the calls of one operation."""
        code = dict(self.of_service).get(service, self.aws)
        return ApiFault(
            service,
            operation,
            self.kubernetes if service == "kubernetes" else code,
            times=self.times,
            way=self.way,
        )


_THROTTLES: Final = (
    ("ec2", "RequestLimitExceeded"),
    ("s3", "SlowDown"),
    ("dynamodb", "ProvisionedThroughputExceededException"),
)
_ONCE: Final = Kind("is throttled once", "ThrottlingException", "429", of_service=_THROTTLES)
KINDS: Final = (
    _ONCE,
    replace(_ONCE, words="is throttled always", times=FOR_GOOD),
    Kind("takes effect and answers 5xx", "InternalServerError", "500", way=Way.ANSWERED_BADLY),
    Kind("is sent again as its answer is lost", "", "", way=Way.RESENT),
    Kind("is refused for good", "ValidationException", "422", times=FOR_GOOD),
    Kind(
        "is denied",
        "AccessDeniedException",
        "403",
        times=FOR_GOOD,
        of_service=(("ec2", "UnauthorizedOperation"), ("s3", "AccessDenied")),
    ),
)
# One of each that creates, deletes or records: a lost answer makes two of them, or none is told.
_CORE: Final = frozenset(
    {
        "eks CreateNodegroup takes effect and answers 5xx",
        "fsx DeleteFileSystem is denied",
        "dynamodb TransactWriteItems is sent again as its answer is lost",
    }
)


def faults() -> list[Point]:
    """Every point, in the order in which a whole sweep plays them."""
    return [
        Point(
            f"{service} {operation}",
            f"{service} {operation} {kind.words}",
            Place.OWN,
            partial(_play, service, operation, kind),
            is_core=f"{service} {operation} {kind.words}" in _CORE,
        )
        for service, operations in OPERATIONS.items()
        for operation in operations
        for kind in KINDS
    ]


def _play(service: str, operation: str, kind: Kind, scene: Scene, name: str) -> Verdict:
    world, verdict = scene.world, Verdict()
    if service == "kubernetes":
        scene.empty_cluster()
    fault = kind.fault(service, operation)
    # What a deletion that fails for good meets needs no training before it.
    early = operation.upper().startswith("DELETE") and not kind.passes
    run_id = world.request(name, fault, *([Fault("install-plugin")] if early else []))
    if kind.passes:
        world.until_still(run_id)
        _help(scene, run_id)
        run = world.until_rested(run_id, torn_down=True)
        verdict.expect(run.phase is RunPhase.SUCCEEDED, f"the run ended {run.phase}: {run.reason}")
    else:
        _until_given_up(scene, run_id)
        scene.mend(run_id)
        _help(scene, run_id)
        run = world.until_rested(run_id, torn_down=True)
        verdict.wrong += unclear(run)
    cluster = world.services.cluster_states.find(run_id)
    if cluster is not None:
        left = cluster.billable_left
        verdict.expect(left == [], f"its record says that {left} is left")
    verdict.orphans += scene.left_of(run_id)
    verdict.expect(fault.times < kind.times, "no call of the run met the fault")
    return verdict


def _until_given_up(scene: Scene, run_id: AnId) -> None:
    """Until nothing moves, or the wait that nobody ends any more is all that is left."""
    world = scene.world
    services = world.services

    def waits_in_vain() -> bool:
        match world.waits_in(run_id):
            case "AwaitJob":
                return bool(services.runs.load(run_id).job_condition)
            case "AcquireCluster":
                cluster = services.cluster_states.find(run_id)
                over = (ClusterPhase.READY, ClusterPhase.FAILED)
                return cluster is not None and cluster.phase in over
            case _:
                return False

    began: list[float] = []

    def has_given_up() -> bool:
        if world.is_still(run_id):
            return True
        if not waits_in_vain():
            began.clear()
            return False
        began.append(time.monotonic())
        return began[-1] - began[0] > _IN_VAIN_S

    world.until(has_given_up, f"{run_id} gives up")


def _help(scene: Scene, run_id: AnId) -> None:
    """What people and the reaper do where a run does not end by itself."""
    world = scene.world
    run = world.services.runs.load(run_id)
    if run.unsaved_reason and not run.phase.is_terminal:
        world.save_again(run_id)
    cluster = world.services.cluster_states.find(run_id)
    torn_down = cluster is not None and cluster.teardown is TeardownStatus.COMPLETED
    if not (torn_down and run.phase.is_terminal):
        world.reap()


def unclear(run: Run) -> list[str]:
    """What is wrong with how a run says that it failed."""
    if run.phase is not RunPhase.FAILED:
        return []
    reason = run.reason
    if not reason:
        return ["it failed and says nothing"]
    bad = [each for each in ("Traceback", "internal error", "\n") if each in reason]
    if bad or len(reason) > 600:
        return [f'its reason is no clear sentence: "{reason}"']
    return []

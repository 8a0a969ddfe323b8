"""Which edges and retries each scenario is there for: together, all that the machines have.

Each play is held against its own route, so a scenario that no longer goes its way fails its own
test; that the routes leave nothing out is a test without any run.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from workflow_graph import Graph, defined, visited
from workflow_scenarios import state_scenarios

from lambdas import registry
from tests.chaos.outcomes import Outcome
from tests.chaos.states import (
    CLUSTER_TASKS,
    ENDING_TASKS,
    LATE_PUSH_TASKS,
    LATE_SAVING_TASKS,
    PUSH_TASKS,
    SAVING_TASKS,
    TEARDOWN_TASKS,
    TRAIN_TASKS,
)

_REPOSITORY = Path(__file__).parents[3]
DEFINED = {
    name: defined(json.loads((_REPOSITORY / path).read_text()))
    for name, path in registry.MACHINES.items()
}
SCENARIOS = {each.name: each for each in state_scenarios()}

# States inside a Parallel or a Map have no Catch of their own.
CAUGHT_AT = {
    "EnsureSystemNodes": "ProvisionCapacity",
    "EnsureTrainingNodes": "ProvisionCapacity",
    "EnsureFileSystem": "ProvisionCapacity",
    "InstallPlugin": "InstallPlugins",
    "RunCheck": "Validate",
}


@dataclass(frozen=True)
class Route:
    """Ways through a machine, written `State > State > State`, and states that are tried again."""

    train: tuple[str, ...] = ()
    cluster: tuple[str, ...] = ()
    teardown: tuple[str, ...] = ()
    retries: frozenset[str] = field(default=frozenset())

    def edges(self, machine: str) -> set[tuple[str, str]]:
        """The pairs of states that follow each other on these ways."""
        ways: tuple[str, ...] = getattr(self, machine)
        return {pair for way in ways for pair in pairwise(way.split(" > "))}

    def retries_in(self, machine: str) -> set[str]:
        """Those of the states that the machine has."""
        return {state for state in self.retries if state in DEFINED[machine].states}


_VERIFIED_LATE = "SaveAfterFailure > LateSavingDone? > VerifyAfterFailure"
_CONCLUDED_LATE = "ConcludeFailure > TrainedMeanwhile"
_LATE_PUSH = f"PushesModelLate > PushAfterFailure > LatePushOver? > {_CONCLUDED_LATE}"
_SAVED_LATE = f"{_VERIFIED_LATE} > {_LATE_PUSH}"
_LATE_LEAVE = "LeavesClusterLate > ReleaseRunAfterFailure > RunReleasedAfterFailure?"
_LEAVING = f"{_SAVED_LATE} > {_LATE_LEAVE}"
_LEFT = f"{_LEAVING} > ReleaseAfterFailure > RunOutcome"
_FAILED = f"{_LEFT} > RunFailed"
# Of a run that nothing is done to before its job runs.
_SPARED = f"{_VERIFIED_LATE} > PushesModelLate > {_CONCLUDED_LATE} > LeavesClusterLate"
_ENDED = f"AwaitJob > {_SPARED} > ReleaseAfterFailure > RunOutcome"
_UNSAVED = "LeaveUnsaved > RunNotSaved"
_CLUSTER_FAILED = "ConcludeFailure > ClusterOutcome > ClusterFailed"
_CLUSTER_LEFT = "ConcludeFailure > ClusterOutcome > ClusterConcludedBefore"
_STOPPED = f"{_LEFT} > RunStopped"
_RELEASED_LATE = f"{_LEFT} > RunReleasedLate"


def _failing_teardown(state: str, goes_on: str) -> Route:
    return Route(teardown=(f"{state} > {goes_on}",))


ROUTES: dict[str, Route] = {
    "plain": Route(
        train=(
            "PrepareRun > AcquireCluster > BringsData > SubmitJob",
            "SubmitJob > EnsureJobStarted > JobStarted? > AwaitJob",
            "AwaitJob > SaveResults > SavingDone? > WaitForSaving > SaveResults",
            "SavingDone? > VerifyResults > PushesModel > ConcludeRun",
            "ConcludeRun > LeavesCluster > ReleaseLease > RunSucceeded",
        ),
        cluster=(
            "PrepareCluster > EnsureCluster > ClusterReady? > WaitForCluster > EnsureCluster",
            "ClusterReady? > ProvisionCapacity > InstallPlugins > Validate > ConcludeCluster",
            "ConcludeCluster > ClusterConcluded",
            "EnsureSystemNodes > SystemNodesReady? > WaitForSystemNodes > EnsureSystemNodes",
            "SystemNodesReady? > SystemNodesProvisioned",
            "EnsureTrainingNodes > TrainingNodesReady? > WaitForTrainingNodes"
            " > EnsureTrainingNodes",
            "TrainingNodesReady? > TrainingNodesProvisioned",
            "EnsureFileSystem > FileSystemReady? > WaitForFileSystem > EnsureFileSystem",
            "FileSystemReady? > FileSystemProvisioned",
            "InstallPlugin > PluginReady? > WaitForPlugin > InstallPlugin",
            "PluginReady? > PluginInstalled",
            "RunCheck > CheckPassed? > WaitForCheck > RunCheck",
            "CheckPassed? > CheckDone",
        ),
        teardown=(
            "BeginTeardown > ClusterWorkflowOver? > ReleaseNodesAndFileSystem",
            "ReleaseNodesAndFileSystem > ReleaseSystemNodes",
            "ReleaseJob > JobReleased? > WaitForJobRelease > ReleaseJob",
            "JobReleased? > ReleaseFileSystem",
            "ReleaseFileSystem > FileSystemReleased? > WaitForFileSystemRelease"
            " > ReleaseFileSystem",
            "FileSystemReleased? > FileSystemGone",
            "ReleaseSystemNodes > SystemNodesReleased? > WaitForSystemNodesRelease"
            " > ReleaseSystemNodes",
            "SystemNodesReleased? > ReleaseCluster",
            "ReleaseTrainingNodes > TrainingNodesReleased? > WaitForTrainingNodesRelease"
            " > ReleaseTrainingNodes",
            "TrainingNodesReleased? > TrainingNodesGone",
            "ReleaseCluster > ClusterReleased? > WaitForClusterRelease > ReleaseCluster",
            "ClusterReleased? > ReleaseNetwork > NetworkReleased? > VerifyReleased > Released?"
            " > ConcludeTeardown > TornDown",
        ),
    ),
    "every call fails once": Route(
        train=(
            "AcquireCluster > BringsData > StageData > DataStaged? > SubmitJob",
            "VerifyResults > PushesModel > PushResults > PushOver? > ConcludeRun",
            "ConcludeRun > LeavesCluster > ReleaseRun > RunReleased? > ReleaseLease",
        ),
        retries=frozenset(
            {
                *(*TRAIN_TASKS, *SAVING_TASKS, *PUSH_TASKS, *ENDING_TASKS),
                *(*CLUSTER_TASKS, *TEARDOWN_TASKS),
            }
        ),
    ),
    "last resorts fail at first": Route(
        # The zone is changed once, before the last resorts are needed.
        cluster=("ProvisionCapacity > WaitForNextZone > ProvisionCapacity > InstallPlugins",),
        retries=frozenset(
            {
                "ConcludeFailure",
                "ReleaseRunAfterFailure",
                "ReleaseAfterFailure",
                "ConcludeTeardownFailed",
            }
        ),
    ),
    **{f"train: {state} fails": Route(train=(f"{state} > {_FAILED}",)) for state in TRAIN_TASKS},
    **{
        f"train: {state} fails": Route(train=(f"{state} > {_RELEASED_LATE}",))
        for state in ("ConcludeRun", "ReleaseLease")
    },
    **{
        f"train: {state} fails": Route(
            train=(f"{state} > {_UNSAVED}",),
            teardown=("ReleaseSystemNodes > ConcludeTeardownFailed > TeardownFailed",),
        )
        for state in (*SAVING_TASKS, *LATE_SAVING_TASKS)
    },
    "late saving fails at first": Route(retries=frozenset({*LATE_SAVING_TASKS, *LATE_PUSH_TASKS})),
    "train: PushResults fails": Route(train=("PushResults > ConcludeRun",)),
    "train: PushAfterFailure fails": Route(train=("PushAfterFailure > ConcludeFailure",)),
    "pushes its model": Route(train=("PushOver? > WaitForPush > PushResults",)),
    "pushes late": Route(train=("LatePushOver? > WaitForLatePush > PushAfterFailure",)),
    "unsaved is recorded late": Route(retries=frozenset({"LeaveUnsaved"})),
    **{
        f"cluster: {state} fails": Route(
            cluster=(f"{CAUGHT_AT.get(state, state)} > {_CLUSTER_FAILED}",),
            train=(f"AcquireCluster > {_FAILED}",),
        )
        for state in CLUSTER_TASKS
    },
    "killed while provisioning": Route(
        cluster=(f"EnsureCluster > {_CLUSTER_LEFT}",),
        teardown=("ClusterWorkflowOver? > WaitForClusterWorkflow > BeginTeardown",),
    ),
    "train: ReleaseRun fails": Route(
        train=(
            f"ReleaseRun > {_SAVED_LATE} > LeavesClusterLate > ReleaseRunAfterFailure",
            "ReleaseRunAfterFailure > ReleaseAfterFailure",
            "ReleaseAfterFailure > RunOutcome > RunReleasedLate",
        )
    ),
    "kept: succeeds": Route(train=("RunReleased? > WaitForRunRelease > ReleaseRun",)),
    "kept: fails": Route(
        train=("RunReleasedAfterFailure? > WaitForRunReleaseAfterFailure > ReleaseRunAfterFailure",)
    ),
    "stopped at ensure-cluster": Route(
        train=(f"AcquireCluster > {_STOPPED}",), cluster=(f"EnsureCluster > {_CLUSTER_LEFT}",)
    ),
    "stopped while awaiting": Route(train=(f"{_ENDED} > RunStopped",)),
    **{
        name: Route(train=(f"{_ENDED} > RunFailed",))
        for name in (
            "heartbeat stops",
            "job is deleted",
            "training nodes are deleted",
        )
    },
    "brings data": Route(train=("DataStaged? > WaitForData > StageData",)),
    "training fails": Route(
        train=(
            f"{_ENDED} > RunFailed",
            "LateSavingDone? > WaitForLateSaving > SaveAfterFailure",
        )
    ),
    "two nodes are bad": Route(
        cluster=(
            "Validate > ReplaceNodes > NodesReplaced? > WaitForOtherNodes > ReplaceNodes",
            "NodesReplaced? > Validate",
            f"ReplaceNodes > {_CLUSTER_FAILED}",
        ),
        retries=frozenset({"ReplaceNodes"}),
    ),
    "trains late": Route(train=(f"{_CONCLUDED_LATE} > {_VERIFIED_LATE}",)),
    "job starts late": Route(train=("JobStarted? > WaitForJobStart > EnsureJobStarted",)),
    "teardown: ReleaseFileSystem fails": Route(
        teardown=(
            "ReleaseFileSystem > FileSystemLeftToVerification",
            "NetworkReleased? > WaitForNetworkRelease > ReleaseNetwork",
        )
    ),
    "teardown: ReleaseCluster fails": Route(
        teardown=("ReleaseCluster > ReleaseNetwork", "Released? > WaitForRelease > VerifyReleased")
    ),
    **{
        f"teardown: {state} fails": _failing_teardown(state, goes_on)
        for state, goes_on in {
            "BeginTeardown": "ConcludeTeardownFailed > TeardownFailed",
            "ReleaseJob": "ReleaseFileSystem",
            "ReleaseSystemNodes": "ReleaseCluster",
            "ReleaseTrainingNodes": "TrainingNodesLeftToVerification",
            "ReleaseNetwork": "VerifyReleased",
            "VerifyReleased": "ConcludeTeardownFailed > TeardownFailed",
            "ConcludeTeardown": "ConcludeTeardownFailed > TeardownFailed",
        }.items()
    },
}


def assert_goes_its_route(name: str, outcome: Outcome) -> None:
    """A play went where its scenario is to go, and nowhere that the definitions do not know."""
    route = ROUTES.get(name, Route())
    for machine, whole in DEFINED.items():
        seen = seen_of(outcome, machine)
        assert route.edges(machine) - seen.edges == set(), f"{name} does not go its way"
        assert route.retries_in(machine) - seen.retries == set(), f"{name} does not try again"
        # What the histories tell beyond the definition would be a misreading of them.
        assert seen.states - whole.states == set()
        assert seen.edges - whole.edges == set()


def seen_of(outcome: Outcome, machine: str) -> Graph:
    """What the executions of one machine went through."""
    return visited(each.history for each in outcome.executions if each.machine == machine)

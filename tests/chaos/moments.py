"""The states of the train workflow, and how a run is brought into each of them and held there.

Used by the tests that kill a workflow, stop a run or delete a cluster in every state.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from stationmaster.domain.run.events import RunPhase
from tests.chaos.rules import Fault, Hold
from tests.chaos.watched import AnId
from tests.chaos.world import World, run_id_of


@dataclass(frozen=True)
class Moment:
    """A state whose call is held, and how the run ends when its workflow is killed then."""

    state: str
    function: str
    ends: RunPhase = RunPhase.FAILED
    plan: str = "waits"
    has_trained: bool = False
    """Its results are saved, whatever happens."""
    having: str = ""
    without: str = ""
    fault: Fault | None = None
    after: bool = False
    """Its call is held before its answer, not before its begin."""


_DONE: dict[str, Any] = {"ends": RunPhase.SUCCEEDED, "plan": "", "has_trained": True}
_FAILS: dict[str, Any] = {"plan": "fails", "has_trained": True}

BEFORE_THE_END = (
    Moment("PrepareRun", "prepare-run"),
    Moment("AcquireCluster", "acquire-cluster"),
    Moment("StageData", "stage-data"),
    Moment("SubmitJob", "submit-job"),
    Moment("EnsureJobStarted", "ensure-job-started", has_trained=True),
    Moment("AwaitJob", "await-job", has_trained=True),
)
AT_THE_END = (
    Moment("SaveResults", "save-results", without="error", **_DONE),
    Moment("VerifyResults", "verify-results", **_DONE),
    Moment("PushResults", "push", **_DONE),
    Moment("ConcludeRun", "conclude-run", without="error", **_DONE),
    Moment("ReleaseRun", "release-run", **_DONE),
    Moment("ReleaseLease", "release-lease", **_DONE),
)
AFTER_A_FAILURE = (
    Moment("SaveAfterFailure", "save-results", having="error", **_FAILS),
    Moment("VerifyAfterFailure", "verify-results", **_FAILS),
    Moment("PushAfterFailure", "push", **_FAILS),
    Moment("ConcludeFailure", "conclude-run", having="error", **_FAILS),
    Moment("ReleaseRunAfterFailure", "release-run", **_FAILS),
    Moment("ReleaseAfterFailure", "release-lease", **_FAILS),
    Moment("LeaveUnsaved", "leave-unsaved", fault=Fault("save-results", times=1), **_DONE),
)
MOMENTS = (*BEFORE_THE_END, *AT_THE_END, *AFTER_A_FAILURE)


def reach(world: World, name: str, moment: Moment, **shared: Any) -> tuple[AnId, Hold]:
    """A run whose workflow is held in the moment's state; `shared` as `World.request` has it."""
    asked = {"having": moment.having, "without": moment.without, "after": moment.after}
    held = world.runtime.hold(run_id_of(name), moment.function, **asked)
    faults = [replace(moment.fault)] if moment.fault is not None else []
    run_id = world.request(name, *faults, plan=moment.plan, **shared)
    world.until(held.reached.is_set, f"{moment.state} is called")
    if moment.has_trained:
        runs = world.services.runs
        world.until(lambda: runs.load(run_id).progress, f"{run_id} trains")
    return run_id, held

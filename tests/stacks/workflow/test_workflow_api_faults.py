"""What becomes of a run when AWS refuses a call; the runs are in workflow_api_faults."""

from __future__ import annotations

from workflow_api_faults import (
    KINDS,
    NUM_THROTTLED_RUNS,
    OCCASIONAL,
    OPERATIONS,
    REFUSED,
    UNDISTURBED,
    operations,
    refused_name,
    throttled_name,
)
from workflow_scenarios import finish, plays

from bench.sweeps.outcomes import Outcome
from bench.sweeps.world import World
from stationmaster.domain.cluster.aggregate import TeardownStatus
from stationmaster.domain.run.events import RunPhase


@plays(UNDISTURBED)
def test_operations_of_an_undisturbed_run_are_all_among_those_that_are_refused(
    world: World, outcome: Outcome
) -> None:
    calls = world.runtime.api_calls[outcome.run.run_id] - OCCASIONAL

    only_listed = [kind for kind in KINDS if not operations(kind.create) & calls]
    not_met = operations(a for k in only_listed for a in (*k.create, *k.change, *k.delete))
    assert calls == set(OPERATIONS) - not_met
    created = {"CreateFileSystem", "CreateLaunchTemplate", "CreateSecurityGroup"}
    assert created <= {operation for _, operation in calls}


@plays(*(throttled_name(part) for part in range(NUM_THROTTLED_RUNS)))
def test_run_whose_calls_are_each_throttled_once_succeeds_and_leaves_nothing(
    outcome: Outcome,
) -> None:
    assert outcome.run.phase is RunPhase.SUCCEEDED
    assert outcome.teardown is TeardownStatus.COMPLETED
    assert outcome.left == []


@plays(*(refused_name(*refused) for refused in REFUSED), refused=REFUSED)
def test_run_whose_call_is_refused_for_good_ends_reported_or_reaped_and_leaves_nothing(
    world: World, outcome: Outcome, refused: tuple[str, str]
) -> None:
    _, finished = finish(world, outcome)

    # By itself: gone, or reported as left; silent only where the table or the workflows
    # themselves refuse, which is what the reaper is for.
    failed = bool(outcome.events_of("teardown.failed"))
    silent = refused in (
        ("dynamodb", "TransactWriteItems"),
        ("events", "PutEvents"),
        ("stepfunctions", "StartExecution"),
    )
    assert outcome.left == [] or failed or silent
    assert finished.run.phase.is_terminal
    assert finished.teardown is TeardownStatus.COMPLETED
    assert finished.left == []

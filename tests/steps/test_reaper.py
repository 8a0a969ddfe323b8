"""The reaper and the start of a teardown: who is helped, and how often; and what is counted."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest

from lambdas import reaper
from stationmaster.aws.file_system_room import FileSystemRoom
from stationmaster.domain.census import LONGEST_TEARDOWN, NAMESPACE, Census
from stationmaster.domain.cluster import events as cluster_events
from stationmaster.domain.cluster.aggregate import TeardownStatus
from stationmaster.domain.cluster.events import ClusterPhase
from stationmaster.domain.errors import ResultsHeld
from stationmaster.domain.ids import RunId
from stationmaster.domain.resources import ResourceKind
from stationmaster.domain.run.events import RunPhase
from stationmaster.invocations import logger
from stationmaster.steps.begin_teardown import begin_teardown
from stationmaster.steps.conclude_teardown import conclude_teardown
from stationmaster.steps.reap import Open, list_open, reap, take_census
from stationmaster.steps.release_cluster import release_cluster
from stationmaster.steps.release_file_system import release_file_system
from stationmaster.steps.release_lease import release_lease
from stationmaster.steps.release_node_group import release_node_group
from stationmaster.steps.start_teardown import start_teardown
from stationmaster.steps.verify_released import verify_released
from tests.support.aws_steps import Account
from tests.support.factories import make_cluster, make_cluster_event
from tests.support.kill_acts import finish, killed, later, of_cluster
from tests.support.kill_givens import (
    asked,
    dead_cluster,
    dead_train,
    drained,
    forgotten_cluster,
    forgotten_lease,
    forgotten_teardown,
    torn_down_in_vain,
    waiting_for_cluster,
)

BY_REAPER = "the workflow was stopped from outside: found by the reaper"


def running(account: Account) -> set[str]:
    """The workflows of the run, the cluster, and the teardown's attempts that run."""
    workflows, cluster_id = account.services.workflows, account.cluster_id
    statuses = {
        "train": workflows.train_status(account.run_id),
        "cluster": workflows.cluster_status(cluster_id),
        "teardown 1": workflows.teardown_status(cluster_id, attempt=1),
        "teardown 2": workflows.teardown_status(cluster_id, attempt=2),
    }
    return {name for name, status in statuses.items() if status == "RUNNING"}


@pytest.mark.parametrize(
    ("given", "started"),
    [
        (asked, {"train"}),
        (forgotten_cluster, {"train", "cluster"}),
        (forgotten_teardown, {"teardown 1"}),
    ],
)
def test_workflow_that_nobody_started_is_started_once(alone: Account, given, started):
    given(alone)
    later(alone)

    first = reap(alone.services)
    reap(alone.services)

    assert len(first) == 1
    assert running(alone) == started


@pytest.mark.parametrize("given", [asked, drained])
def test_what_has_just_been_requested_or_has_just_ended_is_left_alone(alone: Account, given):
    given(alone)

    assert reap(alone.services) == []
    assert running(alone) == set()


def test_lease_of_a_run_that_has_ended_is_released_after_a_grace(alone: Account):
    forgotten_lease(alone)

    assert reap(alone.services) == [alone.cluster_id]
    assert alone.cluster.phase is ClusterPhase.DRAINING
    assert alone.cluster.open_leases == []


@pytest.mark.parametrize("is_lost", [False, True])
def test_place_of_a_run_that_its_study_never_wrote_is_given_up(alone: Account, is_lost):
    other = alone.guest("other") if is_lost else replace(alone, run_id=RunId("never-0000aaaa"))
    about = {"cluster_id": alone.cluster_id, "at": alone.now(), "spec": make_cluster().spec}
    made = make_cluster_event(cluster_events.ClusterRequested, study_until=alone.now(), **about)
    alone.services.cluster_states.create(made)
    alone.ask(cluster_id=alone.cluster_id)
    for run_id in (other.run_id, alone.run_id):
        alone.happen_to_cluster(cluster_events.LeaseRequested, run_id=run_id, nodes=1)
    if is_lost:
        other.lose("RUN")
    later(alone)
    reap(alone.services)

    assert (other.run_id in alone.cluster.waiting_runs) == is_lost
    alone.enter(RunPhase.FAILED, reason="it came to no cluster")
    release_lease(alone.services, alone.run_id)
    assert (alone.cluster.phase is ClusterPhase.DRAINING) != is_lost


def test_run_whose_workflow_is_dead_fails_and_leaves_its_cluster(alone: Account):
    dead_train(alone)

    assert reap(alone.services) == [alone.run_id]
    assert (alone.run.phase, alone.run.reason) == (RunPhase.FAILED, BY_REAPER)
    assert alone.cluster.phase is ClusterPhase.DRAINING


def test_cluster_whose_workflow_is_dead_fails_and_the_run_that_waits_hears_of_it(alone: Account):
    dead_cluster(alone)
    alone.aws.forget_calls()

    assert reap(alone.services) == [alone.cluster_id]
    assert (alone.cluster.phase, alone.cluster.reason) == (ClusterPhase.FAILED, BY_REAPER)
    assert ("states", "SendTaskFailure") in alone.aws.calls


@pytest.mark.parametrize(
    ("phase", "answer"),
    [(ClusterPhase.READY, "SendTaskSuccess"), (ClusterPhase.FAILED, "SendTaskFailure")],
)
def test_run_that_was_not_told_the_end_of_its_wait_is_told_by_the_reaper(
    alone: Account, phase, answer
):
    waiting_for_cluster(alone)
    alone.services.workflows.start_train(alone.run_id)
    alone.happen_to_cluster(cluster_events.ClusterPhaseChanged, phase=phase)
    alone.aws.forget_calls()

    assert reap(alone.services) == []
    assert ("states", answer) in alone.aws.calls


def test_teardown_that_is_started_again_is_one_execution_until_it_has_failed(alone: Account):
    torn_down_in_vain(alone)
    start_teardown(alone.services, alone.cluster_id)
    start_teardown(alone.services, alone.cluster_id)
    once = running(alone)
    killed(alone, "teardown", f"{alone.cluster_id}-teardown-1")
    start_teardown(alone.services, alone.cluster_id)

    assert once == {"teardown 1"}
    assert running(alone) == {"teardown 2"}


def test_cluster_that_is_released_gets_no_teardown(alone: Account):
    drained(alone)
    finish(alone, of_cluster(begin_teardown))
    conclude_teardown(alone.services, alone.cluster_id)

    start_teardown(alone.services, alone.cluster_id)

    assert running(alone) == set()


@pytest.mark.parametrize("spoil", [Account.damage, Account.lose])
def test_run_that_cannot_be_read_is_reported_once_and_its_cluster_helped(alone: Account, spoil):
    """The cluster's workflow crashed; nobody can say whether its run has ended."""
    dead_cluster(alone)
    spoil(alone, "RUN")
    later(alone)

    helped = [alone.cluster_id in reap(alone.services) for _ in range(2)]

    assert helped[0], "its crash is recorded all the same"
    assert alone.cluster.phase is ClusterPhase.FAILED
    assert [lease.run_id for lease in alone.cluster.open_leases] == [alone.run_id], (
        "its lease stays"
    )
    (entry,) = alone.services.set_aside.list()
    assert (entry.function, entry.is_cut) == ("reaper", False)
    assert entry.what == f"run {alone.run_id}, which keeps its nodes of cluster {alone.cluster_id}"
    assert "repair the item, or end the cluster" in entry.reason


def test_teardown_with_a_run_that_cannot_be_read_keeps_its_file_system(alone: Account):
    dead_cluster(alone)
    alone.damage("RUN")

    finish(alone, of_cluster(begin_teardown))

    assert alone.cluster.teardown is TeardownStatus.RUNNING
    for step, arguments in (
        (release_file_system, {}),
        (release_node_group, {"node_group": "system"}),
        (release_cluster, {}),
        (verify_released, {}),
    ):
        with pytest.raises(ResultsHeld, match=f"results of run {alone.run_id} may not be saved"):
            alone.call(step, **arguments)
    assert alone.call(release_node_group, node_group="training")


@pytest.mark.parametrize("spoil", [Account.damage, Account.lose])
@pytest.mark.parametrize("kind", ["RUN", "CLUSTER"])
def test_one_bad_item_does_not_keep_the_reaper_from_the_others(alone: Account, spoil, kind):
    """A cluster is helped whatever became of the items of another one and of its run."""
    bad = replace(alone, run_id=RunId(f"a-{alone.run_id}"))
    forgotten_lease(bad)
    spoil(bad, kind)
    forgotten_teardown(alone)
    later(alone)

    assert alone.cluster_id in reap(alone.services)
    assert running(alone) == {"teardown 1"}


def census(account: Account, *, helped: int = 0) -> Census:
    nothing_listed = Open(runs=None, clusters=None)
    return take_census(account.services, nothing_listed, num_helped=helped, num_orphans=0)


def test_what_was_requested_and_not_seen_gone_is_in_the_spend(alone: Account):
    alone.request()
    before = census(alone)
    node_group = {"kind": ResourceKind.NODE_GROUP, "name": "training"}
    alone.happen_to_cluster(
        cluster_events.ResourceRequested, **node_group, price_per_hour_usd=98.319
    )

    during = census(alone, helped=2)
    alone.happen_to_cluster(cluster_events.ResourceDeleted, **node_group)
    after = census(alone)

    assert (during.OpenClusters, during.Helped, during.StuckTeardowns) == (1, 2, 0)
    assert during.UsdPerHour == pytest.approx(before.UsdPerHour + 98.32)
    assert after.UsdPerHour == before.UsdPerHour


def test_teardown_that_gave_up_is_stuck(alone: Account):
    torn_down_in_vain(alone)

    assert census(alone).StuckTeardowns == 1


def test_teardown_that_takes_too_long_is_stuck(alone: Account):
    drained(alone)
    finish(alone, of_cluster(begin_teardown))
    assert census(alone).StuckTeardowns == 0

    alone.late += LONGEST_TEARDOWN * 1.1

    assert census(alone).StuckTeardowns == 1


def test_census_counts_what_the_reaper_has_listed_and_lists_what_it_could_not(alone: Account):
    alone.train()
    listed = list_open(alone.services)
    alone.aws.forget_calls()

    counted = take_census(alone.services, listed, num_helped=0, num_orphans=0)
    assert ("dynamodb", "Query") not in alone.aws.calls
    missing = census(alone)

    assert ("dynamodb", "Query") in alone.aws.calls
    assert missing == counted
    assert (counted.OpenRuns, counted.OpenClusters) == (1, 1)


def test_reaper_logs_figures_as_cloudwatch_reads_them(
    alone: Account, monkeypatch: pytest.MonkeyPatch
):
    drained(alone)
    for name, value in alone.services.settings.to_environment().items():
        monkeypatch.setenv(name, value)
    written = io.StringIO()
    handler = logger.registered_handler
    before = handler.setStream(written)
    try:
        reaper.handler({}, None)
    finally:
        handler.setStream(before)

    (line,) = [each for each in map(json.loads, written.getvalue().splitlines()) if "_aws" in each]
    (described,) = line["_aws"]["CloudWatchMetrics"]
    assert (described["Namespace"], described["Dimensions"]) == (NAMESPACE, [["service"]])
    assert [each["Name"] for each in described["Metrics"]] == list(Census.model_fields)
    assert line["service"] == alone.services.settings.deployment
    assert line["OpenClusters"] == [1.0]


@pytest.mark.parametrize("is_kept", [True, False])
def test_cluster_with_little_room_is_warned_of_once_a_day(
    alone: Account, monkeypatch: pytest.MonkeyPatch, is_kept: bool
):
    phases = (ClusterPhase.PROVISIONING, ClusterPhase.VALIDATING, ClusterPhase.READY)
    if is_kept:
        alone.keep(*phases)
    else:
        alone.lease()
        for phase in phases:
            alone.happen_to_cluster(cluster_events.ClusterPhaseChanged, phase=phase)
    made = {"kind": ResourceKind.FILE_SYSTEM, "name": "lustre"}
    alone.happen_to_cluster(cluster_events.ResourceRequested, **made)
    alone.happen_to_cluster(cluster_events.ResourceCreated, **made, resource_id="fs-1")
    size = alone.cluster.spec.file_system.storage_gib
    told = []
    for free in (None, size // 10, size // 10 - 1, 3):
        monkeypatch.setattr(FileSystemRoom, "free_gib", lambda _, file_system, free=free: free)
        reap(alone.services)
        told.append([event.free_gib for event in alone.events("cluster.room_low")])

    assert told == [[], [], [size // 10 - 1], [size // 10 - 1]]

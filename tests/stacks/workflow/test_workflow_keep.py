"""What a run leaves warm with `keep=`: used by the next one as it is, and gone by itself."""

from __future__ import annotations

from datetime import datetime

from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.cluster.events import ClusterPhase
from stationmaster.domain.run.events import RunPhase
from tests.chaos.foreign import in_account
from tests.chaos.world import World

# Real seconds: people's time is not emulated.
KEEP_S = 3
# What a run on a ready cluster may cause to be written of it.
OF_LEASES = {"lease.requested", "lease.granted", "lease.released"}
OF_TIME = {"cluster.keep_ending", "cluster.keep_ended", "cluster.phase_changed"}


def run_with_keep(world: World, name: str) -> tuple[str, Cluster]:
    """A run that has ended, and its cluster, which stays."""
    run_id = world.request(name, keep_s=KEEP_S)
    assert world.until_out(run_id).phase is RunPhase.SUCCEEDED
    return run_id, world.services.cluster_states.load(run_id)


def until_over(world: World, cluster: Cluster) -> datetime:
    """Wait until the cluster's time is over."""
    until = cluster.keep_until
    assert until is not None
    world.until(lambda: world.services.now() > until, "its time is over")
    return until


def clocks(world: World) -> list[str]:
    return [each["Name"] for each in world.aws.client("scheduler").list_schedules()["Schedules"]]


def test_two_runs_keep_their_own_clusters_and_both_go_by_themselves(world: World) -> None:
    before = in_account(world.aws)
    first, second = (world.request(f"keeps its own {each}", keep_s=KEEP_S) for each in "ab")

    for run_id in (first, second):
        assert world.until_out(run_id).phase is RunPhase.SUCCEEDED
        gone = world.until_gone(run_id)
        (lease,) = gone.leases.values()
        assert lease.run_id == run_id
        assert lease.released_at is not None
        assert gone.keep_until is not None
        drained = gone.entered(ClusterPhase.DRAINING)
        assert drained is not None
        assert drained >= gone.keep_until
        assert (gone.deleted_by, gone.billable_left) == ("", [])
    assert in_account(world.aws) == before


def test_run_on_a_warm_cluster_makes_and_checks_nothing_and_keeps_it_past_its_time(
    world: World,
) -> None:
    run_id, cluster = run_with_keep(world, "warms")
    guest = world.request("uses what is warm", plan="waits", cluster_id=run_id)
    world.until_awaiting(guest)
    until_over(world, cluster)
    clusters = world.services.cluster_states
    world.until(lambda: not clocks(world), "the clock has rung")
    assert clusters.load(run_id).phase is ClusterPhase.READY
    assert world.services.runs.load(guest).phase is RunPhase.RUNNING

    world.let_end(guest)
    gone = world.until_gone(run_id)

    run = world.until_out(guest)
    assert run.phase_names == ["requested", "submitting", "running", "saving", "succeeded"]
    of_guest = [event for event in clusters.events(run_id) if event.at >= run.requested_at]
    left = gone.leases[guest].released_at
    assert left is not None
    assert {event.type for event in of_guest if event.at < left} <= OF_LEASES | OF_TIME
    assert (gone.passes, gone.billable_left) == (1, [])

"""A run on a capacity block: it waits for its start, is stopped before its end, leaves it alone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from stationmaster.domain.cluster.spec import Reservation
from stationmaster.domain.run.events import RunPhase
from stationmaster.services import Services
from stationmaster.steps.keep_clock import keep_clock
from tests.chaos.foreign import in_account
from tests.chaos.world import World

# Real seconds: a block's time is not emulated.
SOON_S, LATER_S = 2, 1800


def book(world: World, *, starts_in_s: int) -> Reservation:
    """Two machines for an hour."""
    ec2, starts_at = world.aws.client("ec2"), datetime.now(UTC) + timedelta(seconds=starts_in_s)
    (offered,) = ec2.describe_capacity_block_offerings(
        InstanceType="m5.2xlarge",
        InstanceCount=2,
        CapacityDurationHours=1,
        StartDateRange=starts_at,
    )["CapacityBlockOfferings"]
    bought = ec2.purchase_capacity_block(
        CapacityBlockOfferingId=offered["CapacityBlockOfferingId"], InstancePlatform="Linux/UNIX"
    )["CapacityReservation"]
    return world.services.reservations.look_up(bought["CapacityReservationId"]).reservation


def standing(world: World, block: Reservation) -> tuple[str, int]:
    """The state of the block, and how many of its instances are free."""
    (found,) = world.aws.client("ec2").describe_capacity_reservations(
        CapacityReservationIds=[block.reservation_id]
    )["CapacityReservations"]
    return found["State"], found["AvailableInstanceCount"]


def test_run_waits_for_its_block_is_saved_before_its_end_and_leaves_it_as_it_was(
    world: World,
) -> None:
    before = in_account(world.aws)
    block = book(world, starts_in_s=SOON_S)
    window, settings = block.window, world.mode.settings
    assert window is not None
    assert settings is not None

    run_id = world.request("waits for its block", plan="waits", reservation=block)
    world.until_awaiting(run_id)
    keep_clock(Services(settings, now=lambda: window.leave_at), run_id)

    run = world.until_out(run_id)
    assert run.phase is RunPhase.STOPPED
    assert run.results is not None
    assert f"capacity block {block.reservation_id} ends at" in run.stop_why
    # On a busy machine the block may have begun before the workflow looks at it.
    phases = [name for name in run.phase_names if name != "queued"]
    assert phases[:2] == ["requested", "provisioning"]
    gone = world.until_gone(run_id)
    assert gone.billable_left == []
    assert min(each.requested_at for each in gone.resources.values()) >= window.starts_at
    assert standing(world, block) == ("active", 2)
    assert in_account(world.aws) == before

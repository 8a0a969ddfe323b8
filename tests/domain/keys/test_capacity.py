"""capacity= as it is typed: what is read, refused, corrected, and said in the plan."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from stationmaster.domain.cluster.spec import Reservation, Window
from stationmaster.domain.commands.grammar import parse_command
from stationmaster.domain.commands.start import StartRun
from stationmaster.domain.errors import UserError
from stationmaster.domain.keys.questions import FoundReservation
from stationmaster.preflight.machines import needed_vcpus
from stationmaster.preflight.subject import of_start
from tests.support import typed
from tests.support.typed import FILE_SYSTEM

ID = "cr-0123456789abcdef0"
FOUND = FoundReservation(
    reservation=Reservation(reservation_id=ID, zone="us-west-2b"),
    instance_type="p5.48xlarge",
    available=4,
    total=8,
)


class Ec2:
    """Knows one reservation, and what was asked."""

    def __init__(self, found: FoundReservation = FOUND) -> None:
        self.found = found
        self.asked: list[str] = []

    def __call__(self, reservation_id: str) -> FoundReservation:
        self.asked.append(reservation_id)
        return self.found


def start_of(text: str, ec2: Ec2 | None = None) -> StartRun:
    return typed.start_of(text, find_reservation=ec2 or Ec2())


def refused(text: str, ec2: Ec2 | None = None) -> UserError:
    return typed.refused(text, find_reservation=ec2 or Ec2())


def test_reservation_decides_type_and_zone_and_is_typed_again():
    ec2 = Ec2()

    start = start_of(f"llama2-7b nodes=2 capacity=odcr:{ID}", ec2)

    assert start.plan.instance_type == "p5.48xlarge"
    assert start.options.reservation == FOUND.reservation
    assert ec2.asked == [ID]
    assert f"capacity=odcr:{ID}" in start.words
    assert start_of(start.words) == start
    note = f"nodes are of capacity reservation {ID} in zone us-west-2b, which has 4 of 8 free; it"
    assert note in " ".join(start.plan.warnings)


@pytest.mark.parametrize(
    ("typed", "suggestion"),
    [
        (f"capacity={ID}", f"/train llama2-7b nodes=2 capacity=odcr:{ID}"),
        (f"reservation={ID}", f"/train llama2-7b capacity=odcr:{ID} nodes=2"),
        ("capacity=on_demand", "/train llama2-7b nodes=2 capacity=on-demand"),
        ("capacity=SPOT", "/train llama2-7b nodes=2 capacity=spot"),
        ("capacity=cheap", "/train plan llama2-7b nodes=2"),
    ],
)
def test_correction_spends_nothing_else_than_what_was_typed(typed, suggestion):
    found = refused(f"llama2-7b {typed} nodes=2").suggestion

    assert sorted(found.split()) == sorted(suggestion.split())


def test_command_line_does_not_ask_about_a_reservation():
    with pytest.raises(UserError, match="type the command in the channel"):
        parse_command(f"llama2-7b nodes=2 capacity=odcr:{ID}")


STARTS = datetime(2026, 12, 1, 11, 30, tzinfo=UTC)
BLOCK = replace(
    FOUND,
    reservation=Reservation(
        reservation_id=ID,
        zone="us-west-2b",
        window=Window(starts_at=STARTS, ends_at=STARTS + timedelta(days=2)),
    ),
    seen_at=STARTS - timedelta(days=3),
)


def test_nodes_of_a_block_are_not_in_the_price_because_they_are_paid_for():
    block = start_of(f"llama2-7b nodes=2 capacity=block:{ID}", Ec2(BLOCK))
    plain = start_of("llama2-7b nodes=2 instance=p5.48xlarge")

    saved = plain.plan.price_per_hour_usd - block.plan.price_per_hour_usd
    assert saved == pytest.approx(2 * 55.04)
    assert block.plan.estimated_cost_usd < plain.plan.estimated_cost_usd / 10
    notes = " ".join(block.plan.warnings)
    assert "paid for when it was bought, so price and cost here are without its nodes" in notes
    assert f"capacity=block:{ID}" in block.words
    assert start_of(block.words, Ec2(BLOCK)) == block


def test_plan_says_until_when_a_run_waits_for_its_block_and_when_it_leaves_it():
    notes = " ".join(start_of(f"llama2-7b nodes=2 capacity=block:{ID}", Ec2(BLOCK)).plan.warnings)

    assert "the run waits until 2026-12-01 11:30 UTC; nothing is made or paid before" in notes
    assert "AWS takes the nodes back from 2026-12-03 11:00 UTC on" in notes


def test_run_leaves_its_block_in_time_to_write_a_last_checkpoint():
    small = start_of(f"llama2-7b nodes=2 capacity=block:{ID}", Ec2(BLOCK)).options.reservation
    large = start_of(f"llama2-70b nodes=4 capacity=block:{ID}", Ec2(BLOCK)).options.reservation

    assert small.window.taken_back_at - small.window.leave_at >= timedelta(minutes=10)
    assert large.window.leave_at < small.window.leave_at


@pytest.mark.parametrize(("steps", "is_hinted"), [(10, False), (1_000_000, True)])
def test_run_that_a_block_is_too_short_for_is_told_so(steps, is_hinted):
    words = f"llama2-7b nodes=2 steps={steps} capacity=block:{ID}"

    hint = start_of(words, Ec2(BLOCK)).plan.warnings[0]

    assert ("it will be stopped before its end" in hint) is is_hinted


def test_spot_nodes_are_planned_at_the_most_that_they_can_cost():
    spot = start_of("llama2-7b nodes=2 capacity=spot")

    assert spot.options.is_spot
    assert spot.plan.price_per_hour_usd == start_of("llama2-7b nodes=2").plan.price_per_hour_usd
    assert "the most that it can be" in spot.plan.warnings[0]
    assert "capacity=spot" in spot.words
    assert start_of(spot.words) == spot


def test_machines_without_a_price_on_demand_can_be_had_in_a_block():
    p5e = replace(BLOCK, instance_type="p5e.48xlarge")

    plan = start_of(f"llama2-7b nodes=2 capacity=block:{ID}", Ec2(p5e)).plan

    assert plan.instance_type == "p5e.48xlarge"
    assert 0 < plan.price_per_hour_usd < 5
    assert "no on-demand price" in str(refused("llama2-7b nodes=2 instance=p5e.48xlarge"))


@pytest.mark.parametrize(
    ("capacity", "nodes", "has_group"),
    [
        ("on-demand", "2 x p5.48xlarge, 32 EFA each", True),
        ("spot", "2 x p5.48xlarge spot instances, 32 EFA each", True),
        (f"odcr:{ID}", f"2 x p5.48xlarge of capacity reservation {ID}, 32 EFA each", False),
        (f"block:{ID}", f"2 x p5.48xlarge of capacity block {ID}, 32 EFA each", False),
    ],
)
def test_plan_lists_what_is_created_of_each_capacity(capacity, nodes, has_group):
    ec2 = Ec2(BLOCK if capacity.startswith("block") else FOUND)

    plan = start_of(f"llama2-7b nodes=2 instance=p5.48xlarge capacity={capacity}", ec2).plan

    assert f"1 node group of {nodes}" in plan.will_create
    assert ("1 placement group" in plan.will_create[-1]) is has_group


def test_range_of_nodes_is_of_a_reservation_or_block_at_both_ends():
    ends = replace(FOUND, ends_at=datetime(2026, 12, 1, 11, 30, tzinfo=UTC))
    reserved = start_of(f"llama2-7b nodes=2:8 capacity=odcr:{ID}", Ec2(ends)).plan
    block = start_of(f"llama2-7b nodes=2:4 capacity=block:{ID}", Ec2(BLOCK)).plan

    assert reserved.min_nodes == 2
    assert "it ends at 2026-12-01 11:30 UTC" in " ".join(reserved.warnings)
    assert block.fewest.price_per_hour_usd == block.price_per_hour_usd


ELSEWHERE = replace(FOUND, reservation=Reservation(reservation_id=ID, zone="us-west-2a"))
EXPECTED = "expected on-demand, spot, or odcr: or block: and the id of a capacity reservation"


@pytest.mark.parametrize(
    ("words", "said", "found"),
    [
        (f"capacity=odcr:{ID} instance=p4d.24xlarge", "p5.48xlarge and instance=p4d.24xl", FOUND),
        (f"capacity=odcr:{ID} nodes=8", "has 4 of 8 p5.48xlarge free, and 8 are needed", FOUND),
        ("capacity=block:cr-1", EXPECTED, FOUND),
        ("capacity=cheap", EXPECTED, FOUND),
        (f"capacity={ID}", EXPECTED, FOUND),
        (f"capacity=block:{ID}", f"not what it says; type capacity=odcr:{ID}", FOUND),
        (f"capacity=odcr:{ID}", "names a capacity block, not what it says; type capaci", BLOCK),
        (f"keep=2h capacity=block:{ID}", "cannot be used with keep=", BLOCK),
        (
            f"file_system={FILE_SYSTEM} capacity=odcr:{ID}",
            "is in zone us-west-2a and the file system in us-west-2b",
            ELSEWHERE,
        ),
        (
            f"capacity=spot cluster=eks:theirs file_system={FILE_SYSTEM}",
            "capacity=spot cannot be used with cluster=eks:theirs",
            FOUND,
        ),
    ],
)
def test_capacity_that_cannot_be_used_is_refused_with_the_reason(words, said, found):
    assert said in str(refused(f"llama2-7b {words}", Ec2(found)))


@pytest.mark.parametrize(
    ("capacity", "codes"),
    [(f"odcr:{ID}", []), ("spot", ["L-C4BD4855"]), ("on-demand", ["L-417A185B"])],
)
def test_only_machines_of_no_reservation_count_towards_the_quota_of_their_family(capacity, codes):
    start = start_of(f"llama2-7b nodes=2 instance=p5.48xlarge capacity={capacity}")

    of_family = [quota.code for quota in needed_vcpus(of_start(start).machines) if quota]

    assert of_family == ["L-1216C47A", *codes]
    plain = start_of("llama2-7b nodes=2 instance=p5.48xlarge")
    assert (start == plain) is (capacity == "on-demand")

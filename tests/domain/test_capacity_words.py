"""capacity= as it is typed: what is read, refused, corrected, and said in the plan."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from stationmaster.domain.cluster.spec import FileSystemSpec, Reservation
from stationmaster.domain.commands.capacity import FoundReservation
from stationmaster.domain.commands.grammar import parse_command
from stationmaster.domain.commands.start import StartRun
from stationmaster.domain.commands.storing import FoundFileSystem
from stationmaster.domain.errors import UserError
from stationmaster.preflight.subject import of_start
from stationmaster.preflight.vcpu_quota import needed_vcpus

ID = "cr-0123456789abcdef0"
FS = "fs-0123456789abcdef0"
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
    command = parse_command(text, find_reservation=ec2 or Ec2())
    assert isinstance(command, StartRun)
    return command


def refused(text: str, ec2: Ec2 | None = None, **finders: object) -> UserError:
    with pytest.raises(UserError) as caught:
        parse_command(text, find_reservation=ec2 or Ec2(), **finders)
    return caught.value


def test_reservation_decides_type_and_zone_and_is_typed_again():
    ec2 = Ec2()

    start = start_of(f"llama2-7b nodes=2 capacity=odcr:{ID}", ec2)

    assert start.plan.instance_type == "p5.48xlarge"
    assert start.reservation == FOUND.reservation
    assert ec2.asked == [ID]
    assert f"capacity=odcr:{ID}" in start.words
    assert start_of(start.words) == start
    note = f"nodes are of capacity reservation {ID} in zone us-west-2b, which has 4 of 8 free; it"
    assert note in " ".join(start.plan.warnings)


def test_reserved_machines_take_nothing_of_the_quota_of_their_family():
    start = start_of(f"llama2-7b nodes=2 capacity=odcr:{ID}")

    machines = of_start(start).machines

    assert machines is not None
    assert machines.reservation_id == ID
    assert [quota.code for quota in needed_vcpus(machines) if quota] == ["L-1216C47A"]


def test_on_demand_is_what_is_without_the_word():
    ec2 = Ec2()

    assert start_of("tiny-llama nodes=2 capacity=on-demand", ec2) == start_of("tiny-llama nodes=2")
    assert ec2.asked == []


def test_end_of_a_reservation_is_in_the_plan():
    ends = replace(FOUND, ends_at=datetime(2026, 12, 1, 11, 30, tzinfo=UTC))

    start = start_of(f"llama2-7b nodes=2 capacity=odcr:{ID}", Ec2(ends))

    assert "it ends at 2026-12-01 11:30 UTC" in " ".join(start.plan.warnings)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (f"capacity=odcr:{ID} instance=p4d.24xlarge", "is for p5.48xlarge and instance=p4d.24xl"),
        (f"capacity=odcr:{ID} nodes=8", "has 4 of 8 p5.48xlarge free, and 8 are needed"),
        ("capacity=spot", "capacity=spot is not available in this version"),
        ("capacity=block:cr-1", "capacity=block:cr-1 is not available in this version"),
        ("capacity=cheap", "expected on-demand, or odcr: and the id of a capacity reservation"),
        (f"capacity={ID}", "expected on-demand, or odcr:"),
    ],
)
def test_capacity_that_cannot_be_used_is_refused_with_the_reason(words, said):
    assert said in str(refused(f"llama2-7b {words}"))


def test_range_of_nodes_needs_its_least_only():
    assert start_of(f"llama2-7b nodes=2:8 capacity=odcr:{ID}").plan.min_nodes == 2


def test_reservation_is_refused_in_another_zone_than_the_file_system():
    exists = FoundFileSystem(
        spec=FileSystemSpec(storage_gib=2400, mbps_per_tib=250, existing_id=FS), zone="us-west-2a"
    )

    error = refused(
        f"llama2-7b nodes=2 file_system={FS} capacity=odcr:{ID}",
        find_file_system=lambda _id: exists,
    )

    assert "is in zone us-west-2b and the file system in us-west-2a" in str(error)


@pytest.mark.parametrize(
    ("typed", "suggestion"),
    [
        (f"capacity={ID}", f"/train llama2-7b capacity=odcr:{ID} nodes=2"),
        (f"reservation={ID}", f"/train llama2-7b capacity=odcr:{ID} nodes=2"),
        ("capacity=on_demand", "/train llama2-7b capacity=on-demand nodes=2"),
        ("capacity=spot", "/train plan llama2-7b nodes=2"),
    ],
)
def test_correction_spends_nothing_else_than_what_was_typed(typed, suggestion):
    assert refused(f"llama2-7b {typed} nodes=2").suggestion in (
        suggestion,
        suggestion.replace(f" {typed}", ""),
        _reordered(suggestion),
    )


def _reordered(suggestion: str) -> str:
    *head, first, second = suggestion.split(" ")
    return " ".join([*head, second, first])


def test_command_line_does_not_ask_about_a_reservation():
    with pytest.raises(UserError, match="type the command in the channel"):
        parse_command(f"llama2-7b nodes=2 capacity=odcr:{ID}")

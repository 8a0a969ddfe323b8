"""Data in plans, in commands and in the life of a run."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from stationmaster.domain.commands.grammar import parse_command, parse_request
from stationmaster.domain.datasets import (
    C4,
    HubSource,
    Listing,
    PackedSource,
    Preparation,
    S3Source,
    read_dataset,
)
from stationmaster.domain.errors import BadParameter, NotPossibleNow
from stationmaster.domain.ids import ClusterId, RunId
from stationmaster.domain.planning.arrival import LARGEST_GIB, legal_size_gib
from stationmaster.domain.planning.cost import Shared
from stationmaster.domain.planning.plan import Plan, plan_recipe
from stationmaster.domain.planning.recipe_lookup import get_recipe
from stationmaster.domain.run.events import DataReported, DataStaged, DataUnlinked
from stationmaster.domain.run.staging import Staging, staging_after
from tests.support.plans import make_plan

GB = 10**9
GIB = 2**30
ADDRESS = "s3://research-data/imagenet/"
IMAGES = "image-classification"
CLUSTER = ClusterId("warm")
ABOUT: dict[str, Any] = {
    "run_id": RunId("run-1"),
    "at": datetime(2026, 1, 1, tzinfo=UTC),
    "cluster_id": CLUSTER,
}


def listing(num_bytes: int, **more: Any) -> Listing:
    return Listing(
        **{
            "source": ADDRESS,
            "num_bytes": num_bytes,
            "num_objects": 3,
            "preparation": Preparation.NONE,
            "prepared_bytes": 0,
            "is_complete": True,
            **more,
        }
    )


def plan(found: Listing, **more: Any) -> Plan:
    recipe = get_recipe("resnet50").with_overrides({"dataset": ADDRESS})
    return plan_recipe(recipe, listing=found, **more)


@pytest.mark.parametrize(
    ("needed", "size"),
    [(1, 1200), (1200, 1200), (1201, 2400), (2400, 2400), (2401, 4800), (9000, 9600)],
)
def test_file_systems_have_the_sizes_that_fsx_offers(needed: float, size: int) -> None:
    assert legal_size_gib(needed) == size


def test_plan_takes_a_file_system_that_holds_data_and_checkpoints() -> None:
    small = plan(listing(100 * GB))
    large = plan(listing(2600 * GIB))

    made = {"preparation": Preparation.IMAGES, "prepared_bytes": 1400 * GIB}

    assert small.data is not None
    assert plan(listing(1400 * GIB, **made)).file_system_gib == 4800
    assert small.file_system_gib == get_recipe("resnet50").file_system_gib
    assert large.file_system_gib == 4800
    assert 2600 * 1.1 <= large.data.needed_gib < 4800
    assert large.price_per_hour_usd > small.price_per_hour_usd
    assert any("4800 GiB" in line for line in large.will_create)


def test_time_until_the_data_is_there_is_part_of_the_plan() -> None:
    without = make_plan("resnet50")
    with_data = plan(listing(300 * GB))

    # 2.5 Gbit/s of the system node, or what the file system takes.
    assert 960 <= with_data.data.stage_s < 4000
    assert with_data.time_to_first_step_s - without.time_to_first_step_s == with_data.data.stage_s
    assert with_data.estimated_cost_usd > without.estimated_cost_usd
    many = plan(listing(300 * GB, num_objects=1_000_000))
    assert many.data.stage_s > with_data.data.stage_s + 1000


def test_packing_takes_longer_on_fewer_cores_and_where_megatrons_parts_are_joined() -> None:
    recipe = get_recipe("llama2-7b").with_overrides({"dataset": ADDRESS})

    def stage_s(nodes: int, preparation: Preparation) -> float:
        found = listing(100 * GB, preparation=preparation, prepared_bytes=300 * GB)
        return plan_recipe(recipe, nodes=nodes, listing=found).data.stage_s

    assert stage_s(2, Preparation.TOKENS) > stage_s(4, Preparation.TOKENS)
    # 600 GB more are read or written, at 150 MB/s to 3 GB/s.
    joining_s = stage_s(2, Preparation.MEGATRON) - stage_s(2, Preparation.TOKENS)
    assert 200 < joining_s < 4000


def test_plan_says_what_is_brought() -> None:
    (sentence,) = [line for line in plan(listing(300 * GB)).warnings if line.startswith("data:")]
    assert sentence.startswith(f"data: 3 objects, 300.0 GB of {ADDRESS} are brought to the file")

    incomplete = plan(listing(300 * GB, is_complete=False))
    assert any("data: at least 3 objects" in line for line in incomplete.warnings)


@pytest.mark.parametrize(
    ("gib", "shared", "said"),
    [
        (200_000, None, f"the largest file system has {LARGEST_GIB:,} GiB"),
        (1100, Shared(label="warm", nodes=4), "the file system of cluster warm has 1,200 GiB"),
    ],
)
def test_data_that_the_file_system_cannot_hold_is_refused(gib, shared, said) -> None:
    with pytest.raises(BadParameter, match=said):
        plan(listing(gib * GIB), shared=shared)


@pytest.mark.parametrize(
    ("words", "asked", "found"),
    [
        (f"resnet50 dataset={ADDRESS}", (S3Source("research-data", "imagenet/"), IMAGES), 2600),
        ("llama2-7b dataset=packed:c4", (C4, "pretraining"), None),
    ],
)
def test_command_asks_once_how_much_there_is(words, asked, found) -> None:
    questions: list[object] = []

    def measure(*question: object) -> Listing | None:
        questions.append(question)
        return listing(found * GIB) if found else None

    planned = parse_command(f"plan {words}", measure=measure).request.plan

    assert questions == [asked]
    assert planned.file_system_gib == (4800 if found else 2400)
    is_open = any("is asked in the channel, where the hub answers" in w for w in planned.warnings)
    assert is_open is (found is None)


def test_what_s3_says_against_the_data_is_the_answer() -> None:
    def measure(*_: object) -> Listing:
        raise NotPossibleNow("the bucket does not exist")

    with pytest.raises(NotPossibleNow, match="the bucket does not exist") as refused:
        parse_command("resnet50 dataset=s3://nobody/such nodes=1", measure=measure)

    assert refused.value.suggestion is None


def test_plan_without_anybody_to_ask_says_where_it_is_asked() -> None:
    start = parse_request(["tiny-llama", f"dataset={ADDRESS}"])

    assert start.plan.data is None
    assert any("is asked in the channel" in line for line in start.plan.warnings)


def reported(done: int, work: Any = "copying", **more: Any) -> DataReported:
    about = ABOUT | more
    return DataReported(
        event_id=f"{work}-{done}", work=work, done_bytes=done, total_bytes=100, **about
    )


def staged(work: Any, preparation: Preparation, **more: Any) -> DataStaged:
    return DataStaged(
        event_id=work,
        work=work,
        data_id=work,
        root=f"{work}/files",
        preparation=preparation,
        num_files=1,
        num_bytes=100,
        was_there=False,
        seconds=1,
        **(ABOUT | more),
    )


def after(*events: DataReported | DataStaged) -> Staging:
    staging = None
    for event in events:
        staging = staging_after(staging, event)
    return staging


def test_data_is_ready_when_nothing_is_left_to_do_with_it() -> None:
    copied = staged("copying", Preparation.TOKENS)
    assert after(copied).root == ""
    assert after(copied).data_id == "copying"
    assert after(copied, staged("preparing", Preparation.NONE)).root == "preparing/files"
    assert after(staged("copying", Preparation.NONE)).root == "copying/files"


def test_weights_that_were_converted_are_beside_the_data() -> None:
    converted = after(staged("converting", Preparation.NONE))

    assert (converted.weights_root, converted.root) == ("converting/files", "")
    assert staging_after(converted, reported(50, "converting")) == converted
    ready = staging_after(converted, staged("copying", Preparation.NONE))
    assert (ready.weights_root, ready.root) == ("converting/files", "copying/files")


def test_results_that_came_back_are_not_taken_for_data_which_is_copied_next() -> None:
    restored = after(reported(45, "restoring"), staged("restoring", Preparation.NONE))

    assert after(reported(45, "restoring")).done_bytes == 45
    assert (restored.restored, restored.root, restored.data_id) == (True, "", "")
    assert staging_after(restored, reported(60, "restoring")) == restored
    copied = staging_after(restored, staged("copying", Preparation.NONE))
    assert (copied.restored, copied.root) == (True, "copying/files")


def test_older_reports_change_nothing() -> None:
    copied = staged("copying", Preparation.TOKENS)
    ready = after(copied, staged("preparing", Preparation.NONE))

    assert staging_after(after(copied), reported(50)) == after(copied)
    assert staging_after(ready, reported(50, "preparing")) == ready
    assert after(copied, reported(40, "preparing")).done_bytes == 40


def test_data_of_another_cluster_is_brought_anew() -> None:
    ready = after(staged("copying", Preparation.NONE))

    elsewhere = staging_after(ready, reported(10, cluster_id=ClusterId("other")))

    assert (elsewhere.cluster_id, elsewhere.root, elsewhere.done_bytes) == ("other", "", 10)


def test_data_that_could_not_be_linked_is_copied_next_and_late_reports_are_passed_over() -> None:
    report = DataReported(event_id="e1", work="linking", done_bytes=1, total_bytes=9, **ABOUT)
    unlinked = DataUnlinked(event_id="e2", reason="no access", **ABOUT)

    after = staging_after(staging_after(None, report), unlinked)

    assert (after.work, after.unlinked_reason, after.done_bytes) == ("copying", "no access", 0)
    assert staging_after(after, report) == after
    assert staging_after(None, unlinked) == after


@pytest.mark.parametrize(
    ("dataset", "source"),
    [
        ("packed:c4", C4),
        ("packed:hub:org/texts", HubSource("org/texts")),
        ("packed:hub:org/texts/en/small", HubSource("org/texts", "en/small")),
        ("packed:python-code", None),
    ],
)
def test_data_of_the_hub_that_is_packed_is_named(dataset: str, source: HubSource | None) -> None:
    data = read_dataset(dataset)

    assert isinstance(data, PackedSource)
    assert data.hub == source


HUB = {
    "source": "hub:org/texts",
    "preparation": Preparation.TOKENS,
    "prepared_bytes": 1500 * GIB,
    "is_stored": False,
}


def test_data_that_is_packed_from_the_hub_has_its_time_and_its_room_in_the_plan() -> None:
    recipe = get_recipe("llama2-7b").with_overrides({"dataset": "packed:hub:org/texts"})

    one, four = (
        plan_recipe(recipe, nodes=nodes, listing=listing(500 * GIB, **HUB)) for nodes in (1, 4)
    )

    # 1,500 GiB of tokens and the checkpoints; the text itself is not kept.
    assert one.file_system_gib == 2400
    assert one.data.stage_s == pytest.approx(4 * four.data.stage_s, rel=0.01)
    assert one.data.sentence.startswith(
        "data: all nodes pack at most 3 files, 536.9 GB of hub:org/texts, on the file system before"
    )


def test_data_that_is_packed_is_not_refused_where_it_may_lie_already() -> None:
    recipe = get_recipe("llama2-7b").with_overrides({"dataset": "packed:hub:org/texts"})

    more = listing(500 * GIB, **(HUB | {"prepared_bytes": 90_000 * GIB}))
    found = plan_recipe(recipe, listing=more, shared=Shared(label="warm", nodes=8))

    assert found.file_system_gib == recipe.file_system_gib
    assert found.data is not None

"""Whether data is linked or copied, and what the plan says of it."""

from __future__ import annotations

from typing import Any

import pytest

from stationmaster.domain.datasets import Listing, Preparation
from stationmaster.domain.planning.arrival import samples_read
from stationmaster.domain.planning.cost import Shared
from stationmaster.domain.planning.plan import Plan, plan_recipe
from stationmaster.domain.planning.recipe_lookup import get_recipe

GB = 10**9
GIB = 2**30
ADDRESS = "s3://research-data/imagenet/"
IMAGENET: dict[str, Any] = {
    "num_bytes": 148 * GB,
    "num_objects": 1_331_167,
    "preparation": Preparation.IMAGES,
}
PACKED: dict[str, Any] = {"num_bytes": 9000 * GB, "num_objects": 400}


def listing(**more: Any) -> Listing:
    defaults: dict[str, Any] = {
        "source": ADDRESS,
        "preparation": Preparation.NONE,
        "prepared_bytes": 0,
        "is_complete": True,
        "may_link": True,
    }
    return Listing(**(defaults | more))


def plan(found: Listing, recipe: str = "resnet50", steps: int = 200, **more: Any) -> Plan:
    words = {"dataset": ADDRESS, "steps": str(steps)}
    return plan_recipe(get_recipe(recipe).with_overrides(words), listing=found, **more)


def test_images_of_which_a_run_reads_few_are_linked_and_the_plan_says_what_differs() -> None:
    found = plan(listing(**IMAGENET))

    data = found.data
    assert data.linked
    # 148 GB at 300 MB/s and 1.3 M objects at 3 ms each, against 5 min and their names.
    assert data.why.startswith("a copy takes about 75 min, a link 24 min, and the run reads about ")
    (sentence,) = [line for line in found.warnings if line.startswith("data:")]
    assert "1,331,167 objects, 148.0 GB" in sentence
    assert "are linked to the file system, not copied, in about 24 min, because a copy" in sentence
    assert (
        "names and sizes are compared with S3 before training, contents come at their" in sentence
    )


def test_packed_data_is_read_whole_and_linked_where_the_file_system_is_faster() -> None:
    recipe = get_recipe("llama2-7b").with_overrides({"dataset": ADDRESS, "steps": "200"})
    faster = recipe.model_copy(update={"file_system_mbps_per_tib": 1000})
    fast = plan_recipe(faster, listing=listing(**PACKED)).data
    small = plan(listing(num_bytes=30 * GB, num_objects=4), "llama2-7b").data

    assert fast.linked
    assert "the run reads all of it once (9,000.0 GB)" in fast.why
    assert not small.linked
    assert "only a link that saves 10 min is worth its unchecked first reads" in small.why


def test_file_system_of_linked_data_counts_what_is_read() -> None:
    many = listing(**(IMAGENET | {"num_bytes": 9000 * GIB}))

    linked, copied = plan(many), plan(many.model_copy(update={"may_link": False}))

    assert linked.data.linked
    assert linked.file_system_gib == 2400
    assert copied.file_system_gib == 12_000
    assert copied.data.why == ""


@pytest.mark.parametrize(
    ("changes", "steps", "why"),
    [
        ({"may_link": False}, 200, ""),
        ({"prepared_bytes": 148 * GB}, 200, "it has to be prepared, which reads all of it"),
        ({"preparation": Preparation.TOKENS}, 200, "it has to be prepared"),
        ({}, 450_000, "the run reads 100% of it: more than half is copied first"),
        ({"is_complete": False}, 200, "it has more objects than can be counted now"),
        ({"num_bytes": GB, "num_objects": 64}, 1, "the run reads 100% of it"),
        (
            {"link_saves_s": 3600.0},
            200,
            "a link takes about 24 min, and only a link that saves 60 min",
        ),
    ],
)
def test_other_data_is_copied_and_the_plan_says_why(
    changes: dict[str, Any], steps: int, why: str
) -> None:
    found = plan(listing(**(IMAGENET | changes)), steps=steps)

    data = found.data
    assert not data.linked
    assert data.why.startswith(why)
    (sentence,) = [line for line in found.warnings if line.startswith("data:")]
    assert "are brought to the file system before training" in sentence
    assert (f", and not linked, because {why}" in sentence) == bool(why)


def test_file_system_that_exists_or_that_others_use_gets_copies() -> None:
    shared = Shared(label="warm", nodes=4)
    recipe = get_recipe("resnet50").with_overrides({"dataset": ADDRESS, "steps": "200"})
    existing = recipe.model_copy(update={"file_system_id": "fs-0123456789abcdef0"})

    assert plan_recipe(recipe, listing=listing(**IMAGENET)).data.linked
    assert not plan_recipe(existing, listing=listing(**IMAGENET)).data.linked
    assert not plan(listing(**IMAGENET), shared=shared).data.linked


def test_images_judged_by_their_classes_are_linked_with_about_figures() -> None:
    cut = IMAGENET | {"num_bytes": GB, "num_objects": 10_000, "is_complete": False}
    found = plan(listing(**cut, likely_objects=1_300_000, likely_bytes=145 * GB))

    assert found.data.linked
    assert "data: about 1,300,000 objects, 145.0 GB of" in found.data.sentence


def test_samples_of_images_are_those_of_steps_and_of_evaluations() -> None:
    images = get_recipe("resnet50").with_overrides({"steps": "10", "eval_every": "0"})
    batch = images.training.global_batch_size

    assert samples_read(images) == 10 * batch
    evaluated = images.with_overrides({"eval_every": "5", "eval_samples": "16"})
    assert samples_read(evaluated) == 10 * batch + 16
    assert samples_read(get_recipe("tiny-llama")) is None


def test_results_that_come_back_have_room_on_the_file_system() -> None:
    recipe = get_recipe("tiny-llama")

    assert plan_recipe(recipe).file_system_gib == 1200
    assert plan_recipe(recipe, restored_bytes=1200 * GIB).file_system_gib == 2400
    packed = listing(num_bytes=1000 * GIB, num_objects=4, may_link=False)
    both = plan(packed, "tiny-llama", restored_bytes=1200 * GIB)
    assert both.file_system_gib == 4800

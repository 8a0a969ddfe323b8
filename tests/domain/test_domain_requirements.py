"""Data that a run's pods could not read is refused before anything is created."""

import pytest

from stationmaster.domain.catalogue.entries import CATALOGUE
from stationmaster.domain.datasets import SHARED_PREFIX
from stationmaster.domain.errors import BadParameter, NotPossibleNow
from stationmaster.domain.names import SHARED_MOUNT
from stationmaster.domain.planning.recipe_lookup import get_recipe
from stationmaster.domain.planning.requirements import check_data


@pytest.mark.parametrize("name", ["resnet50", "efficientnet-b7"])
def test_image_recipe_on_an_empty_file_system_is_refused_with_a_small_plan(name):
    with pytest.raises(NotPossibleNow, match="new and empty") as caught:
        check_data(get_recipe(name))

    assert '"/fsx/imagenet"' in str(caught.value)
    assert caught.value.suggestion == f"/train plan {name} preset=smoke"
    check_data(get_recipe(name).with_overrides({"preset": "smoke"}))


@pytest.mark.parametrize("dataset", ["/fsx/text", "stream:/fsx/a_b", "/fsx/a/b/"])
def test_paths_are_read_where_there_is_a_file_system_with_data(dataset):
    recipe = get_recipe("tiny-llama").with_overrides({"dataset": dataset})

    check_data(recipe, on_cluster=True)
    check_data(recipe.model_copy(update={"file_system_id": "fs-0123456789abcdef0"}))


@pytest.mark.parametrize("path", ["/fsx/../etc", "/fsx//a", "/fsx/", "/fsx/a b", "/fsx/$(HOME)"])
def test_path_that_leaves_the_file_system_or_needs_quotes_is_refused(path):
    for name, dataset in (
        ("tiny-llama", path),
        ("tiny-llama", f"stream:{path}"),
        ("megatron-llama3-8b", path),
    ):
        with pytest.raises(BadParameter, match="is not accepted: expected"):
            check_data(get_recipe(name).with_overrides({"dataset": dataset}), on_cluster=True)


def test_shared_paths_begin_where_pods_mount_the_file_system():
    assert f"{SHARED_MOUNT}/" == SHARED_PREFIX


@pytest.mark.parametrize(
    ("name", "overrides", "reason"),
    [
        ("tiny-llama", {"dataset": "gs://bucket/text"}, 'dataset="gs://bucket/text" is an address'),
        ("tiny-llama", {"dataset": "/fsx/text"}, "file_system=fs-... names one that exists"),
        ("tiny-llama", {"dataset": "stream:/fsx/text"}, "new and empty"),
        ("tiny-llama", {"dataset": "/home/me/text"}, "data is read below /fsx/ only"),
        ("tiny-llama", {"dataset": "wikitext"}, "is not known; use c4, python-code, hub:"),
        ("tiny-llama", {"tokenizer": "/fsx/tokenizer"}, "use bpe or ORG/MODEL"),
        ("tiny-llama", {"weights": "s3://bucket/weights"}, "use random or ORG/MODEL"),
        (
            "llama2-7b-finetune",
            {"dataset": "python-code"},
            "use python-docstrings, hub:ORG/NAME or s3:",
        ),
        ("llama2-7b", {"dataset": "packed:python-code"}, "is not known"),
        ("llama2-7b", {"dataset": "packed:s3://bucket/x"}, "is an address"),
        ("llama2-7b-finetune", {"dataset": "packed:c4"}, "packs text, which finetuning does not"),
        ("resnet50", {"dataset": "hub:o/images"}, "preset=smoke trains on generated images"),
        ("resnet50", {"dataset": "shapes"}, "has 4 classes and the model 1000"),
    ],
)
def test_data_that_pods_cannot_read_is_refused_naming_what_they_can(name, overrides, reason):
    with pytest.raises(NotPossibleNow) as caught:
        check_data(get_recipe(name).with_overrides(overrides))

    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("tiny-llama", {"dataset": "s3://bucket/text"}),
        ("resnet50", {"dataset": "s3://bucket"}),
        ("llama2-7b", {"dataset": "packed:c4"}),
        ("llama2-7b", {"dataset": "packed:hub:allenai/c4/en"}),
        ("tiny-llama", {"dataset": "c4"}),
        ("tiny-llama", {"dataset": "hub:org/name/config"}),
        ("tiny-llama", {"tokenizer": "org/model", "weights": "org/model"}),
    ],
)
def test_data_that_is_brought_packed_or_fetched_by_pods_is_accepted(name, overrides):
    check_data(get_recipe(name).with_overrides(overrides))


@pytest.mark.parametrize("name", sorted(set(CATALOGUE) - {"resnet50", "efficientnet-b7"}))
def test_every_other_recipe_and_every_preset_has_its_data(name):
    recipe = get_recipe(name)

    check_data(recipe)
    if recipe.uses_own_trainer:
        check_data(recipe.with_overrides({"preset": "smoke"}))

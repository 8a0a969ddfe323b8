"""The committed examples are what the code renders today."""

import pytest
import yaml

from stationmaster.domain.catalogue.entries import CATALOGUE
from stationmaster.rendering.examples import (
    DIRECTORY,
    NCCL,
    SAVING,
    TRAIN_JOB,
    all_examples,
    example,
    nccl_example,
    saving_example,
)


@pytest.mark.parametrize("name", CATALOGUE)
def test_example_of_each_recipe_is_fresh(name: str):
    committed = (DIRECTORY / f"{name}.yaml").read_text(encoding="utf-8")

    assert committed == example(CATALOGUE[name]), (
        "stale; run: python -m stationmaster.rendering.examples --write"
    )


def test_examples_have_no_file_without_a_recipe():
    assert {path.stem for path in DIRECTORY.glob("*.yaml")} == {*CATALOGUE, SAVING, NCCL, TRAIN_JOB}


def test_example_of_saving_is_fresh():
    committed = (DIRECTORY / f"{SAVING}.yaml").read_text(encoding="utf-8")

    assert committed == saving_example()


def test_example_of_a_trainjob_is_fresh_and_ends_with_the_job():
    committed = (DIRECTORY / f"{TRAIN_JOB}.yaml").read_text(encoding="utf-8")

    assert committed == all_examples()[TRAIN_JOB]
    kinds = [item["kind"] for item in yaml.safe_load_all(committed)]
    assert kinds[-2:] == ["TrainingRuntime", "TrainJob"]
    assert "PyTorchJob" not in committed
    assert "pytorchjobs" not in committed


def test_example_of_nccl_tests_is_fresh():
    assert (DIRECTORY / f"{NCCL}.yaml").read_text(encoding="utf-8") == nccl_example()

"""The committed examples are what the code renders today."""

import yaml

from stationmaster.domain.catalogue.entries import CATALOGUE
from stationmaster.rendering.examples import (
    DIRECTORY,
    NCCL,
    SAVING,
    TRAIN_JOB,
    all_examples,
)


def test_examples_are_fresh_and_none_is_left_over():
    committed = {path.stem: path.read_text(encoding="utf-8") for path in DIRECTORY.glob("*.yaml")}

    assert committed.keys() == {*CATALOGUE, SAVING, NCCL, TRAIN_JOB}
    stale = [name for name, text in all_examples().items() if committed[name] != text]
    assert stale == [], "run: python -m stationmaster.rendering.examples --write"


def test_example_of_a_trainjob_ends_with_the_job():
    committed = (DIRECTORY / f"{TRAIN_JOB}.yaml").read_text(encoding="utf-8")

    kinds = [item["kind"] for item in yaml.safe_load_all(committed)]
    assert kinds[-2:] == ["TrainingRuntime", "TrainJob"]
    assert "PyTorchJob" not in committed
    assert "pytorchjobs" not in committed

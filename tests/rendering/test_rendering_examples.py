"""The committed examples are what the code renders today."""

import re

import pytest
import yaml

from stationmaster.domain.catalogue.entries import CATALOGUE
from stationmaster.local.cluster.api.resources import Catalog
from stationmaster.local.cluster.api.typed import check_applied
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


@pytest.mark.parametrize("name", CATALOGUE)
def test_example_of_each_recipe_can_be_applied_in_its_order(name: str):
    objects = list(yaml.safe_load_all((DIRECTORY / f"{name}.yaml").read_text(encoding="utf-8")))

    kinds = [item["kind"] for item in objects]
    assert kinds[0] == "Namespace"
    assert kinds[-1] == "PyTorchJob"
    assert kinds.index("PersistentVolumeClaim") < kinds.index("PyTorchJob")


@pytest.mark.parametrize("name", CATALOGUE)
def test_example_of_each_recipe_has_names_that_a_cluster_takes(name: str):
    objects = list(yaml.safe_load_all((DIRECTORY / f"{name}.yaml").read_text(encoding="utf-8")))

    # DNS-1035, the narrowest of the API's rules; the operator appends "-worker-NN" to a job's.
    wrong = [
        item["metadata"]["name"]
        for item in objects
        if not re.fullmatch("[a-z]([-a-z0-9]{0,52}[a-z0-9])?", item["metadata"]["name"])
    ]
    assert wrong == []


@pytest.mark.parametrize("name", CATALOGUE)
def test_example_of_each_recipe_has_only_fields_that_kubernetes_declares(name: str):
    catalog = Catalog()
    objects = list(yaml.safe_load_all((DIRECTORY / f"{name}.yaml").read_text(encoding="utf-8")))
    job = objects.pop()
    template = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
    objects.append({"apiVersion": "v1", "kind": "Pod", **template})
    objects[-1]["metadata"]["name"] = "template"

    for item in objects:
        resource = catalog.by_kind(item["apiVersion"], item["kind"])
        check_applied(resource, item, namespace="")


def test_examples_have_no_file_without_a_recipe():
    assert {path.stem for path in DIRECTORY.glob("*.yaml")} == {*CATALOGUE, SAVING, NCCL, TRAIN_JOB}


def test_example_of_saving_is_fresh_and_has_only_declared_fields():
    committed = (DIRECTORY / f"{SAVING}.yaml").read_text(encoding="utf-8")

    assert committed == saving_example()
    for item in yaml.safe_load_all(committed):
        check_applied(Catalog().by_kind(item["apiVersion"], item["kind"]), item, namespace="")


def test_example_of_a_trainjob_is_fresh_and_ends_with_the_job():
    committed = (DIRECTORY / f"{TRAIN_JOB}.yaml").read_text(encoding="utf-8")

    assert committed == all_examples()[TRAIN_JOB]
    kinds = [item["kind"] for item in yaml.safe_load_all(committed)]
    assert kinds[-2:] == ["TrainingRuntime", "TrainJob"]
    assert "PyTorchJob" not in committed
    assert "pytorchjobs" not in committed


def test_example_of_nccl_tests_is_fresh():
    assert (DIRECTORY / f"{NCCL}.yaml").read_text(encoding="utf-8") == nccl_example()

"""Objects placed into another namespace: all follow, others' stay; and the examples are fresh."""

import copy
import json
from functools import cache

import pytest
import yaml
from pydantic import SecretStr

from stationmaster.domain.catalogue.entries import CATALOGUE
from stationmaster.domain.ids import ClusterId
from stationmaster.domain.names import NAMESPACE, RELAY, SAVER
from stationmaster.kubernetes.kinds import PLACED
from stationmaster.kubernetes.manifests import load_manifests
from stationmaster.rendering import pytorch_job
from stationmaster.rendering.environment import render_tokens
from stationmaster.rendering.examples import (
    DIRECTORY,
    NCCL,
    SAVING,
    TRAIN_JOB,
    all_examples,
    example,
    saving_example,
)
from stationmaster.rendering.placing import placed
from stationmaster.rendering.relay import render_relay_rights
from stationmaster.rendering.shared_volume import SharedStorage, render_storage

OTHER = "stationmaster-tiny-llama-0123abcd"
STORAGE = SharedStorage("fs-1", dns_name="fs-1.fsx", mount_name="m", storage_gib=1200)


@cache
def every_object() -> list[dict]:
    examples = [example(recipe) for recipe in CATALOGUE.values()] + [saving_example()]
    objects = [item for text in examples for item in yaml.safe_load_all(text)]
    return [*objects, *render_relay_rights(pytorch_job), *render_storage(ClusterId("c-1"), STORAGE)]


def test_in_the_usual_namespace_nothing_changes():
    for item in every_object():
        assert placed(item, NAMESPACE) == item


def test_in_another_namespace_nothing_names_the_usual_one_any_more():
    for item in every_object():
        before = copy.deepcopy(item)

        there = placed(item, OTHER)

        assert item == before, "the rendered object itself stays as it is"
        about = there["metadata"]
        if "namespace" in item["metadata"] and item["metadata"]["namespace"] == NAMESPACE:
            assert about["namespace"] == OTHER
        text = json.dumps(there)
        assert f'"namespace": "{NAMESPACE}"' not in text
        if there["kind"] == "Namespace":
            assert about["name"] == OTHER


def test_rights_of_two_namespaces_have_different_names_and_their_own_subjects():
    first, second = (
        [placed(item, f"stationmaster-{run}") for item in render_relay_rights(pytorch_job)]
        for run in ("a", "b")
    )

    names = {item["metadata"]["name"] for item in first if item["kind"].startswith("Cluster")}
    assert names == {"stationmaster-a-relay"}
    (binding,) = [item for item in second if item["kind"] == "ClusterRoleBinding"]
    assert binding["roleRef"]["name"] == "stationmaster-b-relay"
    assert binding["subjects"] == [
        {"kind": "ServiceAccount", "name": "stationmaster-relay", "namespace": "stationmaster-b"}
    ]


def test_in_the_namespace_of_a_team_each_guest_has_names_of_its_own_and_all_has_its_label():
    made = [*every_object(), render_tokens({"token": SecretStr("t")})]

    there = [placed(item, "a", "stationmaster-c-1") for item in made if item["kind"] != "Namespace"]
    text = json.dumps(there)

    own = {f"stationmaster-c-1-{each}" for each in ("relay", "saver", "huggingface")}
    assert own == {name for each in there if (name := each["metadata"]["name"]).startswith("sta")}
    for shared in (RELAY, SAVER, "huggingface"):
        assert f'"{shared}"' not in text
    kinds = {
        (each["apiVersion"], each["kind"]) for each in there if "namespace" in each["metadata"]
    }
    assert {*PLACED, ("kubeflow.org/v1", "PyTorchJob")} >= kinds, "the teardown looks for all"
    assert text.count('"labels"') == text.count('"stationmaster/placed-for": "c-1"')


def test_a_pod_that_asks_kubernetes_is_told_its_namespace_and_no_other_pod_is():
    told = {
        item["kind"]: item["spec"]["template"]["spec"]["containers"][0]["env"][-1]
        for item in (placed(each, OTHER) for each in every_object())
        if "serviceAccountName" in json.dumps(item)
    }

    variable = {"name": "STATIONMASTER_NAMESPACE", "value": OTHER}
    assert told == {"Deployment": variable, "Job": variable}
    jobs = [placed(each, OTHER) for each in every_object() if each["kind"] == "PyTorchJob"]
    assert "STATIONMASTER_NAMESPACE" not in json.dumps(jobs)


@pytest.mark.parametrize("plugin", ["training-operator", "nvidia-device-plugin"])
def test_objects_of_others_stay_as_they_are(plugin: str):
    for item in load_manifests(plugin):
        assert placed(item, OTHER) == item


def test_pods_go_to_nodes_of_others_by_what_these_are_and_not_by_our_labels():
    (job,) = [
        placed(each, OTHER)
        for each in every_object()
        if each["kind"] == "PyTorchJob" and each["metadata"]["name"].startswith("llama2-7b-f")
    ]

    pod = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    assert [*pod["nodeSelector"]] == ["node.kubernetes.io/instance-type"]


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

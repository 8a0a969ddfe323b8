"""Storage and relay objects, and the plugins' manifests: the fields that hurt when wrong."""

from typing import Any

import pytest

from relay.config import RelayConfig
from stationmaster.domain.errors import PermanentError
from stationmaster.kubernetes.manifests import load_manifests
from stationmaster.rendering.relay import render_relay, render_relay_rights
from stationmaster.rendering.storage import SharedStorage, render_storage

RUN_ID = "tiny-llama-0123abcd"
STORAGE = SharedStorage("fs-1", "fs-1.fsx.us-west-2.amazonaws.com", "abcdefgh", 1200)
PLUGINS = ["training-operator", "nvidia-device-plugin", "efa-device-plugin"]


def by_kind(objects: Any) -> dict[str, Any]:
    return {item["kind"]: item for item in objects}


def test_volume_is_static_retained_and_bound_to_its_claim_on_both_sides():
    objects = by_kind(render_storage(RUN_ID, STORAGE))

    volume = objects["PersistentVolume"]["spec"]
    claim = objects["PersistentVolumeClaim"]
    assert volume["persistentVolumeReclaimPolicy"] == "Retain"
    assert (volume["storageClassName"], claim["spec"]["storageClassName"]) == ("", "")
    assert claim["spec"]["volumeName"] == objects["PersistentVolume"]["metadata"]["name"]
    assert volume["claimRef"] == {
        "namespace": claim["metadata"]["namespace"],
        "name": claim["metadata"]["name"],
    }
    assert volume["accessModes"] == claim["spec"]["accessModes"] == ["ReadWriteMany"]


def test_volume_names_the_file_system_as_the_driver_reads_it():
    spec = by_kind(render_storage(RUN_ID, STORAGE))["PersistentVolume"]["spec"]

    assert spec["csi"] == {
        "driver": "fsx.csi.aws.com",
        "volumeHandle": "fs-1",
        "volumeAttributes": {
            "dnsname": "fs-1.fsx.us-west-2.amazonaws.com",
            "mountname": "abcdefgh",
        },
    }
    assert spec["mountOptions"] == ["flock"]
    assert spec["capacity"] == {"storage": "1200Gi"}


def test_relay_may_only_read():
    objects = render_relay_rights()

    rules = [rule for item in objects for rule in item.get("rules", [])]
    assert {verb for rule in rules for verb in rule["verbs"]} <= {"get", "list", "watch"}
    assert "secrets" not in {resource for rule in rules for resource in rule["resources"]}
    cluster_wide = by_kind(objects)["ClusterRole"]["rules"]
    assert [rule["resources"] for rule in cluster_wide] == [["nodes"]]


def test_relay_pod_has_its_four_variables_and_no_toleration_for_training_nodes():
    deployment = by_kind(
        render_relay(RUN_ID, job="job-1", image="relay:1", bus_name="bus", region="us-west-2")
    )["Deployment"]

    pod = deployment["spec"]["template"]["spec"]
    assert {item["name"]: item["value"] for item in pod["containers"][0]["env"]} == {
        "STATIONMASTER_RUN_ID": RUN_ID,
        "STATIONMASTER_JOB": "job-1",
        "STATIONMASTER_BUS_NAME": "bus",
        "AWS_REGION": "us-west-2",
    }
    assert "tolerations" not in pod
    selector = deployment["spec"]["selector"]["matchLabels"]
    assert selector.items() <= deployment["spec"]["template"]["metadata"]["labels"].items()


@pytest.mark.parametrize("plugin", PLUGINS)
def test_manifests_of_plugins_pin_their_images(plugin: str):
    workloads = [item for item in load_manifests(plugin) if "template" in item.get("spec", {})]

    images = [c["image"] for w in workloads for c in w["spec"]["template"]["spec"]["containers"]]
    assert images
    assert all(":v" in image for image in images)


@pytest.mark.parametrize("plugin", ["nvidia-device-plugin", "efa-device-plugin"])
def test_device_plugins_tolerate_the_taint_of_training_nodes(plugin: str):
    (daemon_set,) = load_manifests(plugin)

    keys = {item["key"] for item in daemon_set["spec"]["template"]["spec"]["tolerations"]}
    assert "stationmaster/training" in keys


def test_operator_is_restricted_to_pytorch_jobs_and_its_webhook_has_the_names_in_its_code():
    objects = {(item["kind"], item["metadata"]["name"]) for item in load_manifests(PLUGINS[0])}
    deployment = by_kind(load_manifests(PLUGINS[0]))["Deployment"]

    assert ("ValidatingWebhookConfiguration", "validator.training-operator.kubeflow.org") in objects
    assert ("Secret", "training-operator-webhook-cert") in objects
    assert ("Service", "training-operator") in objects
    (operator,) = deployment["spec"]["template"]["spec"]["containers"]
    assert operator["args"] == ["--enable-scheme=pytorchjob"]


def test_manifests_of_an_unknown_plugin_are_refused_with_the_folder():
    with pytest.raises(PermanentError, match=r'plugin "nope" has no manifests in .*manifests/nope'):
        load_manifests("nope")


def test_relay_understands_the_variables_that_its_deployment_sets():
    deployment = by_kind(
        render_relay(RUN_ID, job="job-1", image="relay:1", bus_name="bus", region="us-west-2")
    )["Deployment"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]

    config = RelayConfig.from_variables({item["name"]: item["value"] for item in container["env"]})

    assert (config.run_id, config.job) == (RUN_ID, "job-1")
    assert (config.bus_name, config.region) == ("bus", "us-west-2")
    assert config.namespace == deployment["metadata"]["namespace"]

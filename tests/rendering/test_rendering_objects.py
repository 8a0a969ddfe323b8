"""Storage, relay and check objects, and the plugins' manifests: the fields that hurt when wrong."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from relay.config import RelayConfig
from stationmaster.domain.errors import PermanentError
from stationmaster.kubernetes.manifests import load_manifests
from stationmaster.rendering.checks import (
    STORAGE_CHECK_SCRIPT,
    render_storage_checks,
    storage_check_name,
)
from stationmaster.rendering.relay import render_relay
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
    objects = render_relay(RUN_ID, image="relay:1", bus_name="bus", region="us-west-2")

    rules = [rule for item in objects for rule in item.get("rules", [])]
    assert {verb for rule in rules for verb in rule["verbs"]} <= {"get", "list", "watch"}
    assert "secrets" not in {resource for rule in rules for resource in rule["resources"]}
    cluster_wide = by_kind(objects)["ClusterRole"]["rules"]
    assert [rule["resources"] for rule in cluster_wide] == [["nodes"]]


def test_relay_pod_has_its_three_variables_and_no_toleration_for_training_nodes():
    deployment = by_kind(render_relay(RUN_ID, image="relay:1", bus_name="bus", region="us-west-2"))[
        "Deployment"
    ]

    pod = deployment["spec"]["template"]["spec"]
    assert {item["name"]: item["value"] for item in pod["containers"][0]["env"]} == {
        "STATIONMASTER_RUN_ID": RUN_ID,
        "STATIONMASTER_BUS_NAME": "bus",
        "AWS_REGION": "us-west-2",
    }
    assert "tolerations" not in pod
    selector = deployment["spec"]["selector"]["matchLabels"]
    assert selector.items() <= deployment["spec"]["template"]["metadata"]["labels"].items()


def test_storage_checks_are_one_for_each_node_and_know_each_other():
    jobs = render_storage_checks(RUN_ID, hostnames=["node-b", "node-a"], image="training:1")

    pods = [job["spec"]["template"]["spec"] for job in jobs]
    selectors = [pod["nodeSelector"]["kubernetes.io/hostname"] for pod in pods]
    assert selectors == ["node-a", "node-b"]
    assert all(pod["containers"][0]["command"][-2:] == ["node-a", "node-b"] for pod in pods)
    assert {job["spec"]["backoffLimit"] for job in jobs} == {0}


def test_storage_checks_open_directories_as_root_and_check_as_the_training_user(tmp_path: Path):
    (job,) = render_storage_checks(RUN_ID, hostnames=["node-a"], image="training:1")
    pod = job["spec"]["template"]["spec"]
    (opening,), (checking,) = pod["initContainers"], pod["containers"]
    directories = [str(tmp_path / path.lstrip("/")) for path in opening["command"][3:]]

    subprocess.run([sys.executable, "-I", "-c", opening["command"][2], *directories], check=True)

    assert opening["securityContext"]["runAsUser"] == 0
    assert opening["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert checking["securityContext"]["runAsNonRoot"] is True
    assert "runAsUser" not in checking["securityContext"]
    assert opening["command"][4] == "/fsx/runs"
    assert opening["command"][3] == checking["command"][3]
    assert [os.stat(path).st_mode & 0o7777 for path in directories] == [0o1777, 0o1777]


def test_storage_check_name_of_a_long_node_name_leaves_room_for_the_pod_suffix():
    run_id, nodes = "r" * 45, ["ip-10-0-0-1.us-west-2.compute.internal", "ip-10-0-0-2"]
    name = storage_check_name(run_id, nodes[0], nodes=nodes)

    assert len(name) + len("-abcde") <= 63
    assert name == storage_check_name(run_id, nodes[0], nodes=nodes[::-1])
    assert name != storage_check_name(run_id, nodes[1], nodes=nodes)


def test_storage_checks_of_other_nodes_write_to_another_directory():
    directories = [
        {
            job["spec"]["template"]["spec"]["containers"][0]["command"][3]
            for job in render_storage_checks(RUN_ID, hostnames=nodes, image="training:1")
        }
        for nodes in (["a", "b"], ["b", "a"], ["a", "c"])
    ]

    assert [len(found) for found in directories] == [1, 1, 1]
    assert directories[0] == directories[1] != directories[2]


def test_storage_check_name_changes_with_the_nodes_that_its_template_lists():
    names = {storage_check_name(RUN_ID, "a", nodes=nodes) for nodes in (["a"], ["a", "b"])}

    assert len(names) == 2


def run_script(directory: Path, own: str, wait_s: str, *nodes: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-I", "-c", STORAGE_CHECK_SCRIPT, str(directory), own, wait_s, *nodes],
        stdout=subprocess.PIPE,
        text=True,
    )


def test_storage_check_script_on_two_nodes_passes_on_both(tmp_path: Path):
    started = [run_script(tmp_path, own, "30", "a", "b") for own in ("a", "b")]

    outputs = [process.communicate(timeout=1800)[0] for process in started]

    assert [process.returncode for process in started] == [0, 0]
    assert all("saw 2 nodes" in output for output in outputs)


def test_storage_check_script_without_the_other_node_fails_and_names_it(tmp_path: Path):
    process = run_script(tmp_path, "a", "0", "a", "b")

    output = process.communicate(timeout=1800)[0]

    assert process.returncode == 1
    assert "no file of b after 0 s" in output


def test_storage_check_script_with_torn_data_of_another_node_fails(tmp_path: Path):
    (tmp_path / "b").write_bytes(os.urandom(64))

    process = run_script(tmp_path, "a", "5", "a", "b")
    output = process.communicate(timeout=1800)[0]

    assert process.returncode == 1
    assert "the file of b has other contents" in output


def test_storage_check_script_where_nothing_can_be_written_says_why(tmp_path: Path):
    blocked = tmp_path / "file"
    blocked.write_text("")

    process = run_script(blocked / "check", "a", "5", "a")
    output = process.communicate(timeout=1800)[0]

    assert process.returncode == 1
    assert "Not a directory" in output


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
    deployment = by_kind(render_relay(RUN_ID, image="relay:1", bus_name="bus", region="us-west-2"))[
        "Deployment"
    ]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]

    config = RelayConfig.from_variables({item["name"]: item["value"] for item in container["env"]})

    assert (config.run_id, config.bus_name, config.region) == (RUN_ID, "bus", "us-west-2")
    assert config.namespace == deployment["metadata"]["namespace"]

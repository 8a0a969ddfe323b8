"""Storage, relays, savers, rights and plugins, of one run and of two: what hurts when wrong."""

import json
from typing import Any

import pytest
from pydantic import SecretStr

from stationmaster.domain.errors import PermanentError
from stationmaster.domain.ids import RunId
from stationmaster.domain.names import NAMESPACE, PEOPLE
from stationmaster.domain.results import RunFacts
from stationmaster.kubernetes.manifests import load_manifests
from stationmaster.plugins.relay import render_people_rights
from stationmaster.relay.config import RelayConfig
from stationmaster.rendering import pytorch_job
from stationmaster.rendering.relay import render_relay_key, render_relay_rights
from stationmaster.rendering.run_objects import render_all
from stationmaster.rendering.saver_job import render_saving
from stationmaster.rendering.shared_volume import SharedStorage, render_storage
from tests.support.factories import CLUSTER_ID, make_request
from tests.support.rendered import relay_objects

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


def test_relay_may_only_read_but_for_its_lease():
    objects = render_relay_rights(pytorch_job)

    rules = [rule for item in objects for rule in item.get("rules", [])]
    leases = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"]}
    assert leases | {"verbs": ["get", "create", "update"]} in by_kind(objects)["Role"]["rules"]
    others = [rule for rule in rules if rule["resources"] != ["leases"]]
    assert len(others) == len(rules) - 1
    assert {verb for rule in others for verb in rule["verbs"]} <= {"get", "list", "watch"}
    assert "secrets" not in {resource for rule in rules for resource in rule["resources"]}
    cluster_wide = by_kind(objects)["ClusterRole"]["rules"]
    assert [rule["resources"] for rule in cluster_wide] == [["nodes"]]


def relay_of_run(**changes: Any) -> dict[str, Any]:
    return by_kind(relay_objects(RUN_ID, job="job-1", **changes))


VARIABLES = {
    "STATIONMASTER_JOB_KIND": "PyTorchJob",
    "STATIONMASTER_RUN_ID": RUN_ID,
    "STATIONMASTER_JOB": "job-1",
    "STATIONMASTER_BUS_NAME": "bus",
    "STATIONMASTER_ARTIFACTS_BUCKET": "results",
    "AWS_REGION": "us-west-2",
}


def test_relay_that_is_alone_has_its_variables_and_no_toleration_for_training_nodes():
    deployment = relay_of_run(replicas=1)["Deployment"]

    pod = deployment["spec"]["template"]["spec"]
    *values, _own_name, _own_address, key = pod["containers"][0]["env"]
    assert {item["name"]: item["value"] for item in values} == VARIABLES
    secret = render_relay_key(RUN_ID, SecretStr("secret"))
    reference = {"name": secret["metadata"]["name"], "key": next(iter(secret["data"]))}
    assert key["valueFrom"] == {"secretKeyRef": reference}
    assert "tolerations" not in pod
    assert deployment["spec"]["replicas"] == 1
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}
    selector = deployment["spec"]["selector"]["matchLabels"]
    assert RUN_ID in selector.values(), "relays of other runs are not taken for its own"
    assert selector.items() <= deployment["spec"]["template"]["metadata"]["labels"].items()


def test_two_relays_are_on_two_nodes_of_which_one_may_be_for_training():
    deployment = relay_of_run()["Deployment"]

    pod = deployment["spec"]["template"]["spec"]
    affinity = pod["affinity"]
    (apart,) = affinity["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert deployment["spec"]["replicas"] == 2
    assert apart["topologyKey"] == "kubernetes.io/hostname"
    assert apart["labelSelector"] == deployment["spec"]["selector"]
    tolerated = [each["key"] for each in pod["tolerations"]]
    assert tolerated == ["stationmaster/training", "nvidia.com/gpu"]
    assert "preferredDuringSchedulingIgnoredDuringExecution" in affinity["nodeAffinity"]
    # With one for each node, a new one can come only when an old one has gone.
    assert deployment["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}


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
    relay = relay_of_run()
    deployment, lease = relay["Deployment"], relay["Lease"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]

    own_name = {"fieldRef": {"fieldPath": "metadata.name"}}
    assert {"name": "STATIONMASTER_POD", "valueFrom": own_name} in container["env"]
    variables = {item["name"]: item.get("value", "secret") for item in container["env"]}
    own = {"STATIONMASTER_POD": "pod-1", "STATIONMASTER_POD_IP": "10.0.0.7"}
    config = RelayConfig.from_variables({**variables, **own})

    assert (config.run_id, config.job) == (RUN_ID, "job-1")
    assert (config.bus_name, config.region) == ("bus", "us-west-2")
    assert (config.lease, config.pod) == (lease["metadata"]["name"], "pod-1")
    assert "spec" not in lease, "nobody holds it yet"
    assert config.namespace == deployment["metadata"]["namespace"] == lease["metadata"]["namespace"]
    assert str(config.address) == "10.0.0.7"
    asked = deployment["spec"]["template"]["metadata"]["annotations"]
    (port,) = container["ports"]
    found_by = {"scrape": "true", "port": str(port["containerPort"])}
    assert asked == {f"prometheus.io/{name}": value for name, value in found_by.items()}


def test_people_exec_in_the_products_namespace_and_elsewhere_only_read() -> None:
    objects = {item["kind"]: item for item in render_people_rights()}

    assert objects["Role"]["metadata"]["namespace"] == NAMESPACE
    here = {each for rule in objects["Role"]["rules"] for each in rule["resources"]}
    assert here == {"pods/exec"}
    for rule in objects["ClusterRole"]["rules"]:
        assert set(rule["verbs"]) == {"get", "list", "watch"}
        assert not {"secrets", "*"} & {*rule["resources"], *rule["apiGroups"]}


def test_rights_are_those_of_the_group_that_access_entries_name() -> None:
    for item in render_people_rights():
        if item["kind"].endswith("Binding"):
            (subject,) = item["subjects"]
            assert (subject["kind"], subject["name"]) == ("Group", PEOPLE)
            assert item["roleRef"]["kind"] == item["kind"].removesuffix("Binding")
            assert not PEOPLE.startswith(("system:", "eks:", "aws:", "amazon:", "iam:"))


RUNS = (RunId("tiny-llama-aaaaaaaa"), RunId("tiny-llama-bbbbbbbb"))
# Of the cluster: the namespace, its file system, and what relays may read.
SHARED = {
    "Namespace",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "ServiceAccount",
    "Role",
    "RoleBinding",
    "ClusterRole",
    "ClusterRoleBinding",
}


def objects_of(run_id: RunId, rendezvous: str) -> dict[tuple[str, str], Any]:
    request = make_request(cluster_id=CLUSTER_ID, overrides={"rendezvous": rendezvous})
    rendered = render_all(request, run_id=run_id)
    return {(item["kind"], item["metadata"]["name"]): item for item in rendered}


@pytest.mark.parametrize("rendezvous", ["c10d", "etcd"])
def test_objects_of_two_runs_on_one_cluster_do_not_meet(rendezvous):
    first, second = (objects_of(run_id, rendezvous) for run_id in RUNS)

    common = first.keys() & second.keys()
    assert {kind for kind, _ in common} == SHARED
    assert [first[key] for key in common] == [second[key] for key in common]
    own = {key: item for key, item in first.items() if key not in common}
    assert {kind for kind, _ in own} >= {"Deployment", "PyTorchJob"}
    assert RUNS[1] not in json.dumps(list(own.values()))


def render(run_id: str = RUN_ID, **facts: Any) -> dict[str, Any]:
    objects = render_saving(
        RunFacts(
            run_id=run_id,
            recipe="tiny-llama",
            nodes=2,
            instance_type="c5.2xlarge",
            outcome="succeeded",
            **facts,
        ),
        cluster_id="warm-cluster",
        image="relay:1",
        bucket="artifacts",
        region="us-west-2",
    )
    return {item["kind"]: item for item in objects}


def pod(objects: dict[str, Any]) -> Any:
    return objects["Job"]["spec"]["template"]["spec"]


def test_savers_of_two_runs_have_accounts_of_their_own_and_the_same_rights() -> None:
    first, second = render(), render("tiny-llama-4567cdef")

    same = [kind for kind in first if first[kind] == second[kind]]
    assert same == ["Namespace", "Role"]
    assert first["Job"]["metadata"]["name"] == f"{RUN_ID}-save"
    assert first["RoleBinding"]["subjects"][0]["name"] == pod(first)["serviceAccountName"]
    # The AWS role of the account reaches what lies under its name: that of the run.
    assert pod(first)["serviceAccountName"] == RUN_ID
    assert first["ServiceAccount"]["metadata"]["name"] == RUN_ID


def test_saver_may_read_pods_and_logs_and_nothing_else() -> None:
    rules = render()["Role"]["rules"]

    granted = {(rule["resources"][0], *rule["verbs"]) for rule in rules}
    assert granted == {("pods", "list"), ("pods/log", "get")}


def test_saver_is_off_the_training_nodes_and_mounts_the_file_system_read_only() -> None:
    spec = pod(render())

    (mount,) = spec["containers"][0]["volumeMounts"]
    (volume,) = spec["volumes"]
    assert (mount["mountPath"], mount["readOnly"]) == ("/fsx", True)
    assert volume["persistentVolumeClaim"]["claimName"] == "warm-cluster-fsx"
    assert mount["name"] == volume["name"]
    assert "tolerations" not in spec
    wish = spec["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert wish[0]["preference"]["matchExpressions"][0]["values"] == ["training"]


def test_job_is_not_started_again_after_a_refusal_and_stays_readable() -> None:
    spec = render()["Job"]["spec"]

    (rule,) = spec["podFailurePolicy"]["rules"]
    assert (rule["action"], rule["onExitCodes"]["values"]) == ("FailJob", [2, 3])
    assert rule["onExitCodes"]["containerName"] == pod(render())["containers"][0]["name"]
    assert spec["template"]["spec"]["restartPolicy"] == "Never"  # which the policy demands
    assert "ttlSecondsAfterFinished" not in spec
    assert spec["backoffLimit"] > 0
    assert spec["activeDeadlineSeconds"] > 0


def test_text_of_a_person_in_the_facts_is_not_expanded_by_the_kubelet() -> None:
    (container,) = pod(render(overrides={"dataset": "$(AWS_REGION)"}))["containers"]

    variables = {item["name"]: item["value"] for item in container["env"]}
    said = variables["STATIONMASTER_RUN_FACTS"]
    assert "$" not in said
    assert json.loads(said)["overrides"] == {"dataset": "$(AWS_REGION)"}
    assert variables["STATIONMASTER_RUN_DIRECTORY"] == f"/fsx/runs/{RUN_ID}"

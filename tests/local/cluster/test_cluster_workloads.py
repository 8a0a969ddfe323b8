"""Deployments, DaemonSets, Jobs, nodes, devices, faults and the end of a cluster."""

from __future__ import annotations

from typing import Any

import pytest

from stationmaster.local.cluster import back_off
from stationmaster.local.cluster.api import resources
from stationmaster.local.cluster.api.errors import ApiError
from stationmaster.local.cluster.api.objects import Objects
from stationmaster.local.cluster.controllers.jobs import JobController
from stationmaster.local.cluster.controllers.owners import pod_from
from stationmaster.local.cluster.controllers.workloads import DeploymentController
from stationmaster.local.cluster.events import EventRecorder
from stationmaster.local.cluster_behind_eks import ClusterBehindEks
from tests.support.cluster_fixtures import (
    Cluster,
    eventually,
    shell_pod,
)

NVIDIA_IMAGE = "nvcr.io/nvidia/k8s-device-plugin:v0.19.0"
EFA_IMAGE = "602401143452.dkr.ecr.us-west-2.amazonaws.com/eks/aws-efa-k8s-device-plugin:v0.5.20"


def batch_job(name: str, script: str, **spec: Any) -> dict[str, Any]:
    container = {"name": "main", "image": "trial:1", "command": ["sh", "-c", script]}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    return {"metadata": {"name": name}, "spec": {"template": template, **spec}}


def only_node(cluster: Cluster) -> Any:
    (node,) = cluster.core.list_node().items
    return node


def test_taints_and_affinity_keep_pods_off_with_the_schedulers_words(
    empty_cluster: Cluster,
) -> None:
    own = empty_cluster
    taint = {"key": "nvidia.com/gpu", "value": "true", "effect": "NoSchedule"}
    own.add_nodes(node_group="tainted", taints=[taint])
    own.add_nodes(node_group="other", instance_type="m5.large")
    kind = {"node.kubernetes.io/instance-type": "p4d.24xlarge"}

    own.run_pod("picky", "true", nodeSelector=kind)
    event = own.event("picky", "FailedScheduling")
    toleration = {"key": "nvidia.com/gpu", "operator": "Exists"}
    own.run_pod("tolerant", "true", nodeSelector=kind, tolerations=[toleration])

    assert event.message.startswith(
        "0/2 nodes are available: 1 node(s) didn't match Pod's node affinity/selector, "
        "1 node(s) had untolerated taint {nvidia.com/gpu: true}."
    )
    own.pod_phase("tolerant", "Succeeded")


def join(own: Cluster, *instance_ids: str) -> list[Any]:
    """The training nodes, once EKS has said on which instances they are."""
    ClusterBehindEks(own.local, own.state_dir).node_group_active(
        cluster="trial",
        name="training",
        instance_type="m5.2xlarge",
        instance_ids=instance_ids,
        zone="us-east-1a",
        labels={"pool": "training"},
        taints=[{"key": "training", "value": "true", "effect": "NO_SCHEDULE"}],
    )
    return own.core.list_node(label_selector="pool=training").items


TOLERANT = {"tolerations": [{"key": "training", "operator": "Exists"}]}


def test_taint_of_a_node_group_of_eks_keeps_pods_off_its_nodes(empty_cluster: Cluster) -> None:
    own = empty_cluster
    join(own, "i-1")

    own.run_pod("stranger", "true")
    event = own.event("stranger", "FailedScheduling")
    own.run_pod("trainer", "true", **TOLERANT)

    assert "1 node(s) had untolerated taint {training: true}" in event.message
    own.pod_phase("trainer", "Succeeded")


def test_one_node_that_takes_jobs_has_a_slow_link_and_the_one_in_its_place_has_not(
    empty_cluster: Cluster,
) -> None:
    own = empty_cluster
    own.local.faults.add("slow-node")

    def links(*instance_ids: str) -> list[str]:
        """What pods on these instances are given, by the order of their nodes."""
        found = []
        for node in join(own, *instance_ids):
            name = f"on-{node.spec.provider_id.rpartition('/')[2]}-of-{'-'.join(instance_ids)}"
            script = "echo link=$STATIONMASTER_LOCAL_LINK_MBPS"
            own.run_pod(name, script, nodeName=node.metadata.name, **TOLERANT)
            own.pod_phase(name, "Succeeded")
            found.append(own.log(name).strip())
        return found

    assert links("i-1", "i-2") == ["link=20", "link="]
    assert links("i-2", "i-3") == ["link=", "link="]


PAIR = {"matchLabels": {"app": "pair"}}
TERM = {"labelSelector": PAIR, "topologyKey": "kubernetes.io/hostname"}
APART = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [TERM]}}


def test_pods_that_avoid_each_other_share_no_node(empty_cluster: Cluster) -> None:
    own = empty_cluster
    own.add_nodes(node_group="one")

    def run(name: str, script: str, **spec: Any) -> None:
        body = shell_pod(name, script, **spec)
        body["metadata"]["labels"] = {"app": "pair"}
        own.core.create_namespaced_pod("default", body)

    run("first", "sleep 60", affinity=APART)
    own.pod_phase("first", "Running")

    run("second", "true", affinity=APART)
    run("without-terms", "true")

    sentences = {
        "second": "node(s) didn't match pod anti-affinity rules",
        "without-terms": "node(s) didn't satisfy existing pods anti-affinity rules",
    }
    for name, sentence in sentences.items():
        event = own.event(name, "FailedScheduling")
        assert event.message.startswith(f"0/1 nodes are available: 1 {sentence}.")
    own.add_nodes(node_group="two")
    own.pod_phase("second", "Succeeded")


def test_node_that_goes_takes_no_pod_that_tolerates_everything(
    empty_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty_cluster.add_nodes()
    empty_cluster.run_pod("first", "sleep 60")
    node = empty_cluster.pod_phase("first", "Running").spec.node_name
    objects = empty_cluster.local._objects
    remove_now, seen = objects.remove_now, list[str]()

    def in_the_middle(resource: Any, *identity: str) -> None:
        if "first" in identity:
            empty_cluster.run_pod("second", "sleep 60", tolerations=[{"operator": "Exists"}])
            seen.append(empty_cluster.event("second", "FailedScheduling").message)
        remove_now(resource, *identity)

    monkeypatch.setattr(objects, "remove_now", in_the_middle)
    empty_cluster.local.lose_node(node)

    (message,) = seen
    assert message.startswith("0/1 nodes are available: 1 node(s) were unschedulable.")


def test_job_with_a_failure_policy_fails_at_the_exit_code_that_it_names(cluster: Cluster) -> None:
    codes = {"containerName": "main", "operator": "In", "values": [3]}
    refuses = {"rules": [{"action": "FailJob", "onExitCodes": codes}]}
    for name, script in (("refused", "exit 3"), ("retried", "exit 1")):
        job = batch_job(name, script)
        job["spec"] |= {"backoffLimit": 1, "podFailurePolicy": refuses}
        cluster.batch.create_namespaced_job("default", job)

    def end(name: str) -> Any:
        job = cluster.batch.read_namespaced_job(name, "default")
        return job if job.status.conditions else None

    refused, retried = (eventually(lambda n=n: end(n), "an end") for n in ("refused", "retried"))
    assert (refused.status.conditions[-1].reason, refused.status.failed) == ("PodFailurePolicy", 1)
    assert "exit code 3 matching FailJob rule at index 0" in refused.status.conditions[-1].message
    assert retried.status.conditions[-1].reason == "BackoffLimitExceeded"
    assert retried.status.failed == 2


def test_pods_that_fill_their_nodes_are_replaced(empty_cluster: Cluster) -> None:
    own = empty_cluster
    own.add_nodes(count=2)
    container = {"name": "main", "image": "trial:1", "command": ["sleep", "300"]}
    pod = {"containers": [container], "terminationGracePeriodSeconds": 1, "affinity": APART}
    template = {"metadata": {"labels": {"app": "pair"}}, "spec": pod}
    spec = {"replicas": 2, "selector": PAIR, "template": template}
    own.apps.create_namespaced_deployment("default", {"metadata": {"name": "pair"}, "spec": spec})

    def status() -> Any:
        return own.apps.read_namespaced_deployment("pair", "default").status

    eventually(lambda: status().available_replicas == 2, "two pods")
    changed = {"spec": {"template": {"metadata": {"annotations": {"revision": "2"}}}}}

    own.apps.patch_namespaced_deployment("pair", "default", changed)

    def is_replaced() -> bool:
        now = status()
        counts = (now.replicas, now.updated_replicas, now.available_replicas)
        return now.observed_generation == 2 and counts == (2, 2, 2)

    eventually(is_replaced, "two pods of the new template alone")
    own.apps.delete_namespaced_deployment("pair", "default")


def test_no_new_pod_comes_before_the_last_old_one_is_gone() -> None:
    objects = Objects()
    objects.create(resources.NAMESPACES, {"metadata": {"name": "default"}})
    controller = DeploymentController(objects, EventRecorder(objects, "deployment-controller"))
    container = {"name": "main", "image": "trial:1"}
    template = {"metadata": {"labels": {"app": "pair"}}, "spec": {"containers": [container]}}
    body = {"metadata": {"name": "pair"}, "spec": {"selector": PAIR, "template": template}}
    objects.create(resources.DEPLOYMENTS, body, namespace="default")

    def sizes() -> list[int]:
        controller.reconcile(("default", "pair"))
        return [each["spec"]["replicas"] for each in objects.list(resources.REPLICA_SETS)]

    assert sizes() == [1]
    (old,) = objects.list(resources.REPLICA_SETS)
    pod = pod_from(template, old, labels={})
    pod["metadata"]["name"] = "old"
    uid = objects.create(resources.PODS, pod, namespace="default")["metadata"]["uid"]
    changed = {"annotations": {"revision": "2"}, "labels": {"app": "pair"}}
    change = lambda stored: stored["spec"]["template"].update(metadata=changed)  # noqa: E731
    objects.modify(resources.DEPLOYMENTS, "default", "pair", change)

    assert [sizes(), sizes()] == [[0], [0]]
    objects.remove_now(resources.PODS, "default", "old", uid)
    assert sorted(sizes()) == [0, 1]


def test_status_that_another_wrote_since_it_was_looked_at_is_not_overwritten() -> None:
    objects = Objects()
    objects.create(resources.NAMESPACES, {"metadata": {"name": "default"}})
    objects.create(resources.JOBS, batch_job("one", "true"), namespace="default")
    recorder = EventRecorder(objects, "job-controller")
    controller = JobController(objects, recorder, back_off.of_jobs(speed=60.0))
    seen = objects.get(resources.JOBS, "default", "one")
    failed = {"conditions": [{"type": "Failed", "status": "True"}]}
    objects.modify(resources.JOBS, "default", "one", lambda job: job.update(status=failed))

    with pytest.raises(ApiError, match="the object has been modified"):
        controller.set_status(seen, {"active": 1})

    assert objects.get(resources.JOBS, "default", "one")["status"] == failed

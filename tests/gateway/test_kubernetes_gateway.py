"""The gateway against a real API server on this machine: apply, views, logs, deletion."""

from typing import Any

import pytest

from stationmaster.domain.errors import PermanentError, TransientError
from stationmaster.domain.run.attempts import first_assignment
from stationmaster.kubernetes.gateway import KubernetesGateway
from stationmaster.kubernetes.manifests import load_manifests
from stationmaster.kubernetes.rights import needed_rights
from stationmaster.local.cluster import LocalCluster
from stationmaster.rendering import job_spec, pytorch_job, render_all
from stationmaster.rendering.pytorch_job import render_pytorch_job
from tests.support.aws_fixtures import until as eventually
from tests.support.kubernetes_gateway_fixtures import (
    REQUEST,
    RUN_ID,
    add_nodes,
)


def test_apply_of_a_job_before_its_type_is_served_is_transient(gateway: KubernetesGateway):
    job = render_pytorch_job(
        job_spec(REQUEST, first_assignment(RUN_ID, REQUEST), run_id=RUN_ID, image="i")
    )

    with pytest.raises(TransientError, match="applying PyTorchJob tiny-llama-0123abcd"):
        gateway.apply([job])


def test_apply_of_a_job_before_the_webhook_answers_is_transient(gateway: KubernetesGateway):
    gateway.apply(load_manifests("training-operator"))  # no node, so the operator never runs
    eventually(lambda: gateway.crd_established("pytorchjobs.kubeflow.org"))

    with pytest.raises(TransientError, match="failed calling webhook"):
        gateway.apply(render_all(REQUEST, run_id=RUN_ID))


def test_apply_of_a_job_that_admission_refuses_is_permanent_with_its_reason(
    cluster: LocalCluster, gateway: KubernetesGateway
):
    with_operator(cluster, gateway)
    objects = render_all(REQUEST, run_id=RUN_ID)
    template = objects[-1]["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
    template["spec"]["containers"][0]["name"] = "trainer"

    with pytest.raises(PermanentError, match=r"denied the request.*pytorch"):
        gateway.apply(objects)


def test_apply_of_everything_a_run_renders_is_repeatable_and_bound(
    cluster: LocalCluster, gateway: KubernetesGateway
):
    with_operator(cluster, gateway)
    objects = render_all(REQUEST, run_id=RUN_ID)

    gateway.apply(objects)
    gateway.apply(objects)

    pods = eventually(
        lambda: [
            pod
            for pod in gateway.pods(labels={"stationmaster/role": "training"})
            if pod.unschedulable
        ][1:]
    )
    assert "nodes are available" in pods[0].unschedulable
    assert gateway.job(RUN_ID).condition("Created") is not None
    explained = gateway.explain([*pods, *pods])
    assert explained.startswith(f"pod {pods[0].name} is not scheduled")
    assert explained.endswith("; 1 more like it")


def test_log_and_exit_code_of_a_finished_pod_are_read(
    cluster: LocalCluster, gateway: KubernetesGateway
):
    add_nodes(cluster, group="system")
    gateway.apply([batch_job("print('first'); print('last'); raise SystemExit(7)")])
    gateway.namespace = "default"  # it names none

    labels = {"test": "job"}
    (pod,) = eventually(lambda: [p for p in gateway.pods(labels=labels) if p.phase == "Failed"])
    eventually(lambda: gateway.batch_jobs(labels=labels)[0].failed)

    assert pod.exit_code == 7
    assert gateway.last_log_line(pod.name) == "last"


def test_what_others_hold_and_run_is_seen_in_all_namespaces(
    cluster: LocalCluster, gateway: KubernetesGateway
):
    with_operator(cluster, gateway)
    job = batch_job("import time; time.sleep(600)")
    container = job["spec"]["template"]["spec"]["containers"][0]
    container["resources"] = {"requests": {"cpu": "1500m"}, "limits": {"memory": "1Gi"}}
    gateway.apply([job])

    (load,) = eventually(
        lambda: [each for each in gateway.loads() if each.requests.get("memory") == 1 << 30]
    )
    (operator,) = gateway.deployments(of="training-operator")

    assert (load.namespace, float(load.requests["cpu"])) == ("default", 1.5)
    assert load.node in {node.name for node in gateway.nodes()}
    assert (operator.namespace, operator.name) == ("kubeflow", "training-operator")
    assert operator.is_ready
    assert all(gateway.may(right) for right in needed_rights("stationmaster-c-1", pytorch_job))


def test_reading_what_is_not_there_finds_nothing(gateway: KubernetesGateway):
    assert gateway.job("nothing") is None
    assert gateway.pods(labels={"a": "b"}) == []
    assert gateway.pods_of("DaemonSet", "nothing", namespace="kube-system") == []
    assert gateway.explain([]) == "no pods were created"
    assert not gateway.deployment_ready("nothing", namespace="kubeflow")
    assert not gateway.daemon_set_ready("nothing", nodes=0, namespace="kube-system")
    assert gateway.last_log_line("nothing") == ""


def test_applying_a_kind_that_is_not_handled_is_refused(gateway: KubernetesGateway):
    item = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "x"}}

    with pytest.raises(PermanentError, match="objects of v1 Binding are not handled"):
        gateway.apply([item])


def test_api_server_that_went_away_is_seen_and_transient(
    cluster: LocalCluster, gateway: KubernetesGateway
):
    assert gateway.is_answering()
    gateway.close()
    cluster.stop(grace_s=0.1)

    assert not gateway.is_answering()
    with pytest.raises(TransientError, match="listing Nodes: the cluster's API cannot be reached"):
        gateway.nodes()


def with_operator(cluster: LocalCluster, gateway: KubernetesGateway) -> None:
    add_nodes(cluster, group="system")
    gateway.apply(load_manifests("training-operator"))
    eventually(lambda: gateway.deployment_ready("training-operator", namespace="kubeflow"))


def batch_job(script: str) -> dict[str, Any]:
    labels = {"test": "job"}
    container = {"name": "c", "image": "python", "command": ["python", "-uc", script]}
    pod = {"restartPolicy": "Never", "containers": [container]}
    template = {"metadata": {"labels": labels}, "spec": pod}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "job", "namespace": "default", "labels": labels},
        "spec": {"backoffLimit": 0, "template": template},
    }

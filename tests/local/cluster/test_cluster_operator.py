"""PyTorchJobs as the Training Operator runs them: environment, conditions, events, limits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client
from kubernetes.client.exceptions import ApiException

from tests.support.cluster_fixtures import (
    Cluster,
    eventually,
    operator_deployment,
    operator_webhook,
    pytorchjob,
    pytorchjob_crd,
)

JOB_LABEL = "training.kubeflow.org/job-name"


def environment(cluster: Cluster, pod: str) -> list[tuple[str, str]]:
    container = eventually(lambda: cluster.pod(pod), f"pod {pod}").spec.containers[0]
    return [(variable.name, variable.value or "") for variable in container.env or []]


def delete_job(cluster: Cluster, name: str) -> None:
    cluster.custom.delete_namespaced_custom_object(
        "kubeflow.org", "v1", "default", "pytorchjobs", name
    )


def conditions(cluster: Cluster, name: str) -> list[tuple[str, str, str]]:
    listed = cluster.job(name)["status"]["conditions"]
    return [(c["type"], c["status"], c["reason"]) for c in listed]


def pods_of(cluster: Cluster, name: str) -> list[Any]:
    return cluster.core.list_namespaced_pod("default", label_selector=f"{JOB_LABEL}={name}").items


def test_job_with_master_gets_the_operators_environment_in_order(cluster: Cluster) -> None:
    cluster.submit(pytorchjob("envs", workers=2, nprocPerNode="4"))

    assert environment(cluster, "envs-worker-1") == [
        ("PYTHONUNBUFFERED", "1"),
        ("MASTER_PORT", "23456"),
        ("PET_MASTER_PORT", "23456"),
        ("MASTER_ADDR", "envs-master-0"),
        ("PET_MASTER_ADDR", "envs-master-0"),
        ("WORLD_SIZE", "12"),
        ("RANK", "2"),
        ("PET_NODE_RANK", "2"),
        ("PET_NPROC_PER_NODE", "4"),
        ("PET_NNODES", "3"),
    ]
    assert ("RANK", "0") in environment(cluster, "envs-master-0")
    delete_job(cluster, "envs")


def test_elastic_job_gets_rendezvous_and_no_ranks(cluster: Cluster) -> None:
    elastic = {"rdzvBackend": "c10d", "minReplicas": 1, "maxReplicas": 3, "maxRestarts": 5}
    elastic["rdzvConf"] = [{"key": "timeout", "value": "900"}]
    cluster.submit(pytorchjob("elastic", master=False, workers=2, elasticPolicy=elastic))

    assert environment(cluster, "elastic-worker-0") == [
        ("PYTHONUNBUFFERED", "1"),
        ("PET_NPROC_PER_NODE", "auto"),
        ("PET_RDZV_ENDPOINT", "elastic-worker-0:23456"),
        ("PET_RDZV_BACKEND", "c10d"),
        ("PET_NNODES", "1:3"),
        ("PET_MAX_RESTARTS", "5"),
        ("PET_RDZV_CONF", "timeout=900"),
    ]
    delete_job(cluster, "elastic")


def test_successful_job_ends_with_its_conditions_counts_and_events(
    cluster: Cluster, tmp_path: Path
) -> None:
    # The master ends after the worker, which begins when the master's name resolves.
    worked = tmp_path / "worked"
    script = f'[ "$RANK" = 1 ] && touch {worked}; until [ -e {worked} ]; do sleep 0.05; done'
    cluster.submit(pytorchjob("good", script=script))

    cluster.job_condition("good", "Succeeded")

    assert conditions(cluster, "good") == [
        ("Created", "True", "PyTorchJobCreated"),
        ("Running", "False", "PyTorchJobRunning"),
        ("Succeeded", "True", "PyTorchJobSucceeded"),
    ]
    status = cluster.job("good")["status"]
    assert status["conditions"][-1]["message"] == "PyTorchJob good is successfully completed."
    assert status["completionTime"] >= status["startTime"]
    eventually(
        lambda: cluster.job("good")["status"]["replicaStatuses"]["Worker"].get("succeeded") == 1,
        "the worker counted as succeeded",
    )
    reasons = {event.reason for event in cluster.events("good")}
    assert {"SuccessfulCreatePod", "SuccessfulCreateService", "PyTorchJobSucceeded"} <= reasons
    # cleanPodPolicy is None: finished pods stay.
    assert len(pods_of(cluster, "good")) == 2


@pytest.mark.parametrize(("policy", "left"), [("All", []), ("Running", ["clean-running-master-0"])])
def test_clean_pod_policy_decides_what_stays(
    cluster: Cluster, policy: str, left: list[str]
) -> None:
    name = f"clean-{policy.lower()}"
    job = pytorchjob(name, script="sleep 60", runPolicy={"cleanPodPolicy": policy})
    master = job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"][0]
    master["command"] = ["true"]
    cluster.submit(job)

    cluster.job_condition(name, "Succeeded")

    eventually(
        lambda: [p.metadata.name for p in pods_of(cluster, name)] == left, f"only {left} left"
    )


def without_master_replicas() -> dict[str, Any]:
    job = pytorchjob("denied")
    del job["spec"]["pytorchReplicaSpecs"]["Master"]["replicas"]
    return job


def with_container_name(name: str) -> dict[str, Any]:
    job = pytorchjob("denied")
    template = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
    template["spec"]["containers"][0]["name"] = name
    return job


def with_role(role: str) -> dict[str, Any]:
    job = pytorchjob("denied")
    specs = job["spec"]["pytorchReplicaSpecs"]
    specs[role] = specs.pop("Worker")
    return job


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        (
            without_master_replicas(),
            "spec.pytorchReplicaSpecs[Master].replicas: Forbidden: must be 1",
        ),
        (with_container_name("train"), "must have at least one container with name pytorch"),
        (with_role("Chief"), 'supported values: "Master", "Worker"'),
        (pytorchjob("0-digit"), 'metadata.name: Invalid value: "0-digit": should match: '),
        (
            pytorchjob("denied", workers=0, elasticPolicy={"minReplicas": 1}),
            "must be configured if elastic policy is used",
        ),
        (
            pytorchjob("denied", nprocPerNode="2", elasticPolicy={"nProcPerNode": 2}),
            "spec.elasticPolicy.nProcPerNode: Forbidden: must not be used with spec.nprocPerNode",
        ),
        (
            pytorchjob("denied", runPolicy={"managedBy": "someone"}),
            'spec.runPolicy.managedBy: Unsupported value: "someone"',
        ),
    ],
)
def test_admission_denies_what_the_webhook_denies(
    cluster: Cluster, job: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ApiException) as caught:
        cluster.submit(job)

    message = json.loads(caught.value.body)["message"]
    assert caught.value.status == 403
    webhook = "validator.pytorchjob.training-operator.kubeflow.org"
    assert message.startswith(f'admission webhook "{webhook}" denied the request: ')
    assert reason in message


def test_webhook_fails_until_the_operator_is_available(empty_cluster: Cluster) -> None:
    own = empty_cluster
    client.ApiextensionsV1Api(own.api).create_custom_resource_definition(pytorchjob_crd())
    own.core.create_namespace({"metadata": {"name": "kubeflow"}})
    client.AdmissionregistrationV1Api(own.api).create_validating_webhook_configuration(
        operator_webhook()
    )
    own.apps.create_namespaced_deployment("kubeflow", operator_deployment())

    with pytest.raises(ApiException) as caught:
        own.submit(pytorchjob("early"))
    own.add_nodes()
    eventually(own.operator_is_available, "an available operator")
    own.submit(pytorchjob("later"))

    assert caught.value.status == 500
    assert "failed calling webhook" in json.loads(caught.value.body)["message"]
    own.job_condition("later", "Running")

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


def test_job_objects_carry_the_operators_labels_and_owner(cluster: Cluster) -> None:
    cluster.submit(pytorchjob("objects"))
    worker = eventually(lambda: cluster.pod("objects-worker-0"), "the worker")
    master = cluster.pod("objects-master-0")

    service = eventually(
        lambda: cluster.core.read_namespaced_service("objects-master-0", "default"), "the service"
    )

    assert worker.metadata.labels == {
        JOB_LABEL: "objects",
        "training.kubeflow.org/operator-name": "pytorchjob-controller",
        "training.kubeflow.org/replica-type": "worker",
        "training.kubeflow.org/replica-index": "0",
    }
    assert master.metadata.labels["training.kubeflow.org/job-role"] == "master"
    assert [c.name for c in worker.spec.init_containers] == ["init-pytorch"]
    assert master.spec.init_containers is None
    owner = worker.metadata.owner_references[0]
    assert (owner.kind, owner.name, owner.controller) == ("PyTorchJob", "objects", True)
    assert service.spec.cluster_ip == "None"
    assert [(p.name, p.port) for p in service.spec.ports] == [("pytorchjob-port", 23456)]
    delete_job(cluster, "objects")


def test_pods_of_a_job_meet_at_one_local_address(cluster: Cluster) -> None:
    script = """
import os, socket
address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if os.environ["RANK"] == "0":
    with socket.create_server(address) as server:
        peer, _ = server.accept()
        print(peer.recv(100).decode())
else:
    import time
    while True:
        try:
            with socket.create_connection(address) as peer:
                peer.sendall(b"met")
            break
        except ConnectionRefusedError:
            time.sleep(0.02)
"""
    job = pytorchjob("meet")
    for replica in job["spec"]["pytorchReplicaSpecs"].values():
        replica["template"]["spec"]["containers"][0]["command"] = ["python", "-c", script]
    other = json.loads(json.dumps(job))
    other["metadata"]["name"] = "meet-too"

    cluster.submit(job)
    cluster.submit(other)

    for name in ("meet", "meet-too"):
        cluster.job_condition(name, "Succeeded")
        assert cluster.log(f"{name}-master-0") == "met\n"


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


def test_job_without_master_succeeds_with_all_workers(cluster: Cluster) -> None:
    cluster.submit(pytorchjob("workers", master=False, workers=2, script="sleep 0.2"))

    done = cluster.job_condition("workers", "Succeeded")

    assert done["message"] == "PyTorchJob default/workers successfully completed."


def test_failed_replica_with_policy_never_fails_the_job(cluster: Cluster) -> None:
    cluster.submit(pytorchjob("never", workers=0, script="exit 3", restart_policy="Never"))

    failed = cluster.job_condition("never", "Failed")

    assert failed["message"] == "PyTorchJob never is failed because 1 Master replica(s) failed."
    assert cluster.event("never", "PyTorchJobFailed").type == "Normal"
    exited = cluster.event("never", "ExitedWithCode")
    assert exited.message == "Pod: default.never-master-0 exited with code 3"


def test_permanent_exit_code_fails_and_retryable_one_recreates(cluster: Cluster) -> None:
    cluster.submit(pytorchjob("permanent", workers=0, script="exit 1", restart_policy="ExitCode"))
    cluster.submit(pytorchjob("retryable", workers=0, script="exit 130", restart_policy="ExitCode"))
    first = eventually(lambda: cluster.pod("retryable-master-0"), "the pod").metadata.uid

    cluster.job_condition("permanent", "Failed")
    cluster.event("retryable", "PyTorchJobRestarting")

    assert cluster.event("permanent", "PyTorchJobFailed").type == "Warning"
    assert "completionTime" not in cluster.job("permanent")["status"]
    eventually(
        lambda: (pod := cluster.pod("retryable-master-0")) and pod.metadata.uid != first,
        "another pod of the same name",
    )
    delete_job(cluster, "retryable")


def test_on_failure_restarts_in_place_until_the_backoff_limit(cluster: Cluster) -> None:
    cluster.submit(pytorchjob("backs", workers=0, script="exit 1", runPolicy={"backoffLimit": 2}))

    failed = cluster.job_condition("backs", "Failed")

    assert failed["message"] == (
        "Job backs has failed because it has reached the specified backoff limit"
    )
    assert cluster.pod("backs-master-0").status.container_statuses[0].restart_count == 2
    crash = cluster.event("backs", "CrashLoopBackOff")
    assert crash.message.startswith("Error pod backs-master-0 container pytorch waiting message: ")
    delete_job(cluster, "backs")


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


def test_finished_job_goes_after_its_time_to_live(cluster: Cluster) -> None:
    cluster.submit(pytorchjob("short-lived", workers=0, script="true"))
    cluster.job_condition("short-lived", "Succeeded")
    # Only now: with it from the start, the job may be gone before it is seen to have succeeded.
    cluster.custom.patch_namespaced_custom_object(
        "kubeflow.org", "v1", "default", "pytorchjobs", "short-lived",
        {"spec": {"runPolicy": {"ttlSecondsAfterFinished": 1}}},
    )  # fmt: skip

    def gone() -> bool:
        try:
            cluster.job("short-lived")
        except ApiException as exc:
            return exc.status == 404
        return False

    eventually(gone, "the job gone")
    eventually(lambda: not pods_of(cluster, "short-lived"), "its pods gone")


def test_suspended_job_has_no_pods_and_resumes(cluster: Cluster) -> None:
    cluster.submit(pytorchjob("pauses", runPolicy={"suspend": True}))
    cluster.job_condition("pauses", "Suspended")
    before = pods_of(cluster, "pauses")

    def suspend(value: bool) -> None:
        cluster.custom.patch_namespaced_custom_object(
            "kubeflow.org", "v1", "default", "pytorchjobs", "pauses",
            {"spec": {"runPolicy": {"suspend": value}}},
        )  # fmt: skip

    suspend(False)
    cluster.job_condition("pauses", "Running")
    resumed = [c for c in conditions(cluster, "pauses") if c[0] == "Suspended"]
    suspend(True)
    cluster.job_condition("pauses", "Suspended")

    assert not before
    assert resumed == [("Suspended", "False", "PyTorchJobResumed")]
    eventually(lambda: not pods_of(cluster, "pauses"), "no pods")
    assert cluster.job_condition("pauses", "Running", "False")["reason"] == "PyTorchJobSuspended"
    delete_job(cluster, "pauses")


def test_deleted_job_takes_pods_and_services_along(cluster: Cluster) -> None:
    cluster.submit(pytorchjob("deleted"))
    cluster.job_condition("deleted", "Running")

    delete_job(cluster, "deleted")

    eventually(lambda: not pods_of(cluster, "deleted"), "no pods")
    services = cluster.core.list_namespaced_service(
        "default", label_selector=f"{JOB_LABEL}=deleted"
    )
    assert not services.items


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


def test_job_waits_while_there_is_no_operator(empty_cluster: Cluster) -> None:
    own = empty_cluster
    own.add_nodes()
    own.install_operator()
    scale = {"spec": {"replicas": 0}}
    own.apps.patch_namespaced_deployment_scale("training-operator", "kubeflow", scale)
    eventually(lambda: not own.operator_is_available(), "no operator")
    client.AdmissionregistrationV1Api(own.api).delete_validating_webhook_configuration(
        "validator.training-operator.kubeflow.org"
    )

    submitted = own.submit(pytorchjob("waits"))
    own.run_pod("marker", "true")
    own.pod_phase("marker", "Succeeded")
    status_before = own.job("waits").get("status")
    own.apps.patch_namespaced_deployment_scale(
        "training-operator", "kubeflow", {"spec": {"replicas": 1}}
    )
    own.job_condition("waits", "Running")

    assert submitted["metadata"]["name"] == "waits"
    assert status_before is None

"""PyTorchJobs as the Training Operator runs them: environment, conditions, events, limits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kubernetes.client.exceptions import ApiException

from tests.support.cluster_fixtures import Cluster, eventually, pytorchjob

JOB_LABEL = "training.kubeflow.org/job-name"


def pods_of(cluster: Cluster, name: str) -> list[Any]:
    return cluster.core.list_namespaced_pod("default", label_selector=f"{JOB_LABEL}={name}").items


def test_successful_job_ends_with_its_conditions_counts_and_events(
    cluster: Cluster, tmp_path: Path
) -> None:
    # The master ends after the worker, which begins when the master's name resolves.
    worked = tmp_path / "worked"
    script = f'[ "$RANK" = 1 ] && touch {worked}; until [ -e {worked} ]; do sleep 0.05; done'
    job = pytorchjob("good", script=script)
    master = job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"][0]
    master["env"] = [{"name": "K", "valueFrom": {"secretKeyRef": {"name": "late", "key": "k"}}}]
    cluster.submit(job)
    cluster.event("good-master-0", "Failed")
    secret = {"metadata": {"name": "late"}, "data": {"k": "eA=="}}
    cluster.core.create_namespaced_secret("default", secret)

    cluster.job_condition("good", "Succeeded")

    began = cluster.pod("good-master-0").status.container_statuses[0].state.terminated.started_at
    (waited,) = cluster.pod("good-worker-0").status.init_container_statuses
    assert waited.state.terminated.finished_at >= began

    status = cluster.job("good")["status"]
    assert [(each["type"], each["status"], each["reason"]) for each in status["conditions"]] == [
        ("Created", "True", "PyTorchJobCreated"),
        ("Running", "False", "PyTorchJobRunning"),
        ("Succeeded", "True", "PyTorchJobSucceeded"),
    ]
    assert status["conditions"][-1]["message"] == "PyTorchJob good is successfully completed."
    assert status["completionTime"] >= status["startTime"]
    eventually(
        lambda: cluster.job("good")["status"]["replicaStatuses"]["Worker"].get("succeeded") == 1,
        "the worker counted as succeeded",
    )
    reasons = {event.reason for event in cluster.events("good")}
    assert {"SuccessfulCreatePod", "SuccessfulCreateService", "PyTorchJobSucceeded"} <= reasons
    # Finished pods stay.
    assert len(pods_of(cluster, "good")) == 2


def test_admission_denies_what_the_webhook_denies(cluster: Cluster) -> None:
    job = pytorchjob("denied", runPolicy={"managedBy": "someone"})
    del job["spec"]["pytorchReplicaSpecs"]["Master"]["replicas"]

    with pytest.raises(ApiException) as caught:
        cluster.submit(job)

    webhook = "validator.pytorchjob.training-operator.kubeflow.org"
    assert caught.value.status == 403
    message = json.loads(caught.value.body)["message"]
    assert message.startswith(f'admission webhook "{webhook}" denied the request: [')
    assert "spec.pytorchReplicaSpecs[Master].replicas: Forbidden: must be 1" in message
    assert 'spec.runPolicy.managedBy: Unsupported value: "someone"' in message

"""PyTorchJobs as the Training Operator runs them: environment, conditions, events, limits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kubernetes.client.exceptions import ApiException

from tests.support.cluster_fixtures import (
    Cluster,
    eventually,
    pytorchjob,
)

JOB_LABEL = "training.kubeflow.org/job-name"


def pods_of(cluster: Cluster, name: str) -> list[Any]:
    return cluster.core.list_namespaced_pod("default", label_selector=f"{JOB_LABEL}={name}").items


def test_successful_job_ends_with_its_conditions_counts_and_events(
    cluster: Cluster, tmp_path: Path
) -> None:
    # The master ends after the worker, which begins when the master's name resolves.
    worked = tmp_path / "worked"
    script = f'[ "$RANK" = 1 ] && touch {worked}; until [ -e {worked} ]; do sleep 0.05; done'
    cluster.submit(pytorchjob("good", script=script))

    cluster.job_condition("good", "Succeeded")

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

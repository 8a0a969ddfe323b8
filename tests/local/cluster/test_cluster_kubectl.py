"""The real kubectl against the local Kubernetes API."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.support.cluster_fixtures import Cluster, Kubectl, eventually, pytorchjob

DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, labels: {tier: front}}
spec:
  replicas: REPLICAS
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: web
        image: web:1
        command: [sh, -c, "echo serving; sleep 300"]
        env: [{name: A, value: "1"}]
"""


def columns(table: str) -> list[list[str]]:
    return [line.split() for line in table.strip().splitlines()]


def test_kubectl_applies_scales_and_follows_a_rollout(cluster: Cluster, kubectl: Kubectl) -> None:
    first = kubectl("apply", "-f", "-", stdin=DEPLOYMENT.replace("REPLICAS", "1"))
    rolled = kubectl("rollout", "status", "deployment/web", "--timeout=1800s")
    again = kubectl("apply", "-f", "-", stdin=DEPLOYMENT.replace("REPLICAS", "2"))
    kubectl("rollout", "status", "deployment/web", "--timeout=1800s")
    unchanged = kubectl("apply", "-f", "-", stdin=DEPLOYMENT.replace("REPLICAS", "2"))

    assert first.strip() == "deployment.apps/web created"
    assert 'deployment "web" successfully rolled out' in rolled
    assert again.strip() == "deployment.apps/web configured"
    assert unchanged.strip() == "deployment.apps/web unchanged"
    assert columns(kubectl("get", "deploy", "web"))[1][:4] == ["web", "2/2", "2", "2"]
    kubectl("scale", "deployment/web", "--replicas=1")
    kubectl("wait", "deployment/web", "--for=jsonpath={.status.replicas}=1", "--timeout=1800s")
    kubectl("delete", "deployment", "web", "--timeout=1800s")
    eventually(lambda: "web-" not in kubectl("get", "pods"), "the deployment's pods gone")


def test_kubectl_server_side_apply_creates_and_changes(cluster: Cluster, kubectl: Kubectl) -> None:
    text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: ssa}\ndata: {key: VALUE}\n"

    created = kubectl("apply", "--server-side", "-f", "-", stdin=text.replace("VALUE", "a"))
    kubectl("apply", "--server-side", "-f", "-", stdin=text.replace("VALUE", "b"))

    assert "serverside-applied" in created
    assert kubectl("get", "cm", "ssa", "-o", "jsonpath={.data.key}") == "b"


def test_kubectl_shows_jobs_pods_and_nodes_as_tables(cluster: Cluster, kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=json.dumps(pytorchjob("shown", script="echo out; sleep 60")))
    kubectl("wait", "--for=condition=Running", "pytorchjob/shown", "--timeout=1800s")
    eventually(lambda: cluster.pod("shown-worker-0").status.phase == "Running", "a running worker")

    jobs = columns(kubectl("get", "pytorchjobs", "shown"))
    pods = columns(kubectl("get", "pods", "-l", "training.kubeflow.org/job-name=shown"))
    nodes = columns(kubectl("get", "nodes"))
    described = kubectl("describe", "pod", "shown-worker-0")
    job_described = kubectl("describe", "pytorchjob", "shown")

    assert jobs[0] == ["NAME", "STATE", "AGE"]
    assert jobs[1][:2] == ["shown", "Running"]
    assert pods[0] == ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]
    assert pods[1][:4] == ["shown-master-0", "1/1", "Running", "0"]
    assert nodes[1][1:3] == ["Ready", "<none>"]
    assert "Successfully assigned default/shown-worker-0" in described
    assert "Created pod: shown-master-0" in job_described
    kubectl("delete", "pytorchjob", "shown", "--timeout=1800s")
    eventually(lambda: not cluster.pod("shown-master-0"), "the job's pods gone")


def test_kubectl_events_of_an_object(cluster: Cluster, kubectl: Kubectl) -> None:
    cluster.run_pod("eventful", "true")
    cluster.pod_phase("eventful", "Succeeded")

    shown = columns(kubectl("get", "events", "--field-selector", "involvedObject.name=eventful"))

    assert shown[0] == ["LAST", "SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"]
    assert {row[2] for row in shown[1:]} == {"Scheduled", "Pulled", "Created", "Started"}


def test_kubectl_logs_follow_prints_lines_as_they_come(
    cluster: Cluster, kubectl: Kubectl, tmp_path: Path
) -> None:
    # The pod says the next line only once this test has read the one before.
    wait = f"until [ -e {tmp_path}/read-$i ]; do sleep 0.05; done"
    cluster.run_pod("talks", f"for i in 1 2 3; do echo line $i; {wait}; done")
    cluster.pod_phase("talks", "Running")
    seen = []

    with subprocess.Popen(
        kubectl.command("logs", "-f", "talks"), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            seen.append(line.strip())
            (tmp_path / f"read-{len(seen)}").touch()

    assert process.returncode == 0
    assert seen == ["line 1", "line 2", "line 3"]


def test_kubectl_watch_prints_rows_as_pods_change(cluster: Cluster, kubectl: Kubectl) -> None:
    command = kubectl.command("get", "pods", "-w", "--field-selector", "metadata.name=observed")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        cluster.run_pod("observed", "true")
        states = []
        while "Completed" not in states:
            states.append(process.stdout.readline().split()[2])
        process.terminate()

    assert states[0] == "STATUS"
    assert states[-1] == "Completed"


def test_kubectl_patches_labels_and_deletes(cluster: Cluster, kubectl: Kubectl) -> None:
    cluster.core.create_namespaced_config_map("default", {"metadata": {"name": "touched"}})

    kubectl("label", "configmap", "touched", "a=b")
    kubectl("patch", "configmap", "touched", "--type=merge", "-p", '{"data": {"x": "y"}}')
    shown = json.loads(kubectl("get", "configmap", "touched", "-o", "json"))
    kubectl("delete", "configmap", "touched")

    assert shown["metadata"]["labels"] == {"a": "b"}
    assert shown["data"] == {"x": "y"}
    assert "not found" in kubectl.error("get", "configmap", "touched")


def test_kubectl_reports_a_denied_job(cluster: Cluster, kubectl: Kubectl) -> None:
    job = pytorchjob("refused")
    job["spec"]["pytorchReplicaSpecs"]["Master"]["replicas"] = 2

    error = kubectl.error("apply", "-f", "-", stdin=json.dumps(job))

    assert "Forbidden: must be 1" in error

"""The real kubectl against the local Kubernetes API."""

from __future__ import annotations

import json
import subprocess

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
    kubectl("delete", "deployment", "web", "--timeout=1800s")
    eventually(lambda: "web-" not in kubectl("get", "pods"), "the deployment's pods gone")


def test_kubectl_shows_jobs_pods_and_nodes_as_tables(cluster: Cluster, kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=json.dumps(pytorchjob("shown", script="echo out; sleep 60")))
    kubectl("wait", "--for=condition=Running", "pytorchjob/shown", "--timeout=1800s")
    eventually(lambda: cluster.pod("shown-worker-0").status.phase == "Running", "a running worker")

    jobs = columns(kubectl("get", "pytorchjobs", "shown"))
    pods = columns(kubectl("get", "pods", "-l", "training.kubeflow.org/job-name=shown"))
    nodes = columns(kubectl("get", "nodes"))
    events = columns(kubectl("get", "events"))
    described = kubectl("describe", "pod", "shown-worker-0")
    job_described = kubectl("describe", "pytorchjob", "shown")

    assert jobs[0] == ["NAME", "STATE", "AGE"]
    assert jobs[1][:2] == ["shown", "Running"]
    assert pods[0] == ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]
    assert pods[1][:4] == ["shown-master-0", "1/1", "Running", "0"]
    assert nodes[1][1:3] == ["Ready", "<none>"]
    assert events[0] == ["LAST", "SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"]
    assert "Successfully assigned default/shown-worker-0" in described
    assert "Created pod: shown-master-0" in job_described
    kubectl("delete", "pytorchjob", "shown", "--timeout=1800s")
    eventually(lambda: not cluster.pod("shown-master-0"), "the job's pods gone")


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


def test_kubectl_creates_what_it_makes_itself_and_asks_what_others_may(kubectl: Kubectl) -> None:
    kubectl("create", "secret", "generic", "made", "--from-literal=a=b")
    kubectl("create", "role", "lister", "--verb=list", "--resource=pods")
    kubectl("create", "rolebinding", "lister", "--role=lister", "--user=alice")

    assert kubectl("get", "secret", "made", "-o", "jsonpath={.type}{.data}") == 'Opaque{"a":"Yg=="}'
    assert kubectl("auth", "can-i", "list", "pods", "--as", "alice") == "yes\n"
    refused = kubectl("create", "deployment", "web", "--image=i", fails=True)
    assert "Deployment is not read as application/vnd.kubernetes.protobuf here" in refused

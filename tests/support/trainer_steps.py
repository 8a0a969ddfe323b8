"""As cluster_steps, for guests in an existing EKS cluster whose jobs are TrainJobs.

Kubeflow Trainer v2 and JobSet are in the local cluster, the Training Operator is not. The only
program that pods find is a torchrun that waits.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from kubernetes import client, config

from stationmaster.domain.bus import RelayBatch
from stationmaster.domain.cluster import events as cluster_events
from stationmaster.domain.cluster.events import ClusterPhase
from stationmaster.domain.cluster.spec import spec_for
from stationmaster.domain.job_kinds import JobKind
from stationmaster.domain.keys.job_options import JobOptions
from stationmaster.domain.names import relay_name
from stationmaster.domain.planning.recipe_lookup import get_recipe
from stationmaster.domain.run import events as ev
from stationmaster.domain.run.aggregate import Run
from stationmaster.relay.observations import JobObserver
from stationmaster.rendering import job_spec, train_job
from stationmaster.rendering.collectives_job import render_collectives_job
from stationmaster.rendering.etcd import render_etcd
from stationmaster.rendering.metadata import namespace
from stationmaster.rendering.storage import render_storage
from stationmaster.steps.record_events import record_batch
from stationmaster.steps.submit_job import submit_job
from tests.support.aws_fixtures import until
from tests.support.aws_steps import Account
from tests.support.cluster_steps import (
    CLUSTERS,
    add_nodes,
    relay,
    with_file_system,
    without_pods,
)
from tests.support.factories import TO_RUNNING
from tests.support.kill_givens import joined
from tests.support.kueue_objects import kueue_crds, of_kueue

EKS_NAME = "theirs"
QUEUE = "night"
# Its nodes take pods of checks; those of runs, on m5.2xlarge, wait for `nodes_for_runs`.
WITH_ROOM = "c5.2xlarge"
LISTS = (
    "/api/v1/namespaces",
    "/api/v1/persistentvolumes",
    *(f"/api/v1/{kind}" for kind in ("persistentvolumeclaims", "secrets", "services")),
    "/apis/apps/v1/deployments",
    "/apis/coordination.k8s.io/v1/leases",
    *(f"/apis/rbac.authorization.k8s.io/v1/{kind}" for kind in ("roles", "rolebindings")),
    *(f"/apis/trainer.kubeflow.org/v1alpha1/{kind}" for kind in ("trainjobs", "trainingruntimes")),
)
# The name of a check's job has a hash of the names of nodes.
_HASH = re.compile(r"(-(?:nw|st))-[0-9a-f]+\b")


def theirs(account: Account) -> None:
    """Somebody's EKS cluster is in the account."""
    eks = account.aws.client("eks")
    with suppress(eks.exceptions.ResourceInUseException):
        subnets = {"subnetIds": list(account.settings.subnet_ids)}
        role = account.settings.cluster_role_arn
        eks.create_cluster(name=EKS_NAME, roleArn=role, resourcesVpcConfig=subnets)
    account.aws.finish_lifecycles()


def arriving(account: Account) -> None:
    """A guest that has nothing in the cluster yet, whose nodes have room."""
    theirs(account)
    account.request(eks_name=EKS_NAME, instance_type=WITH_ROOM)
    local, room = CLUSTERS[account.settings.kubeconfig], _room_of(account)
    add_nodes(local, room, {"pool": room}, cpu="64", count=3, instance_type=WITH_ROOM)
    gateway = account.services.kubernetes(account.cluster_id)
    until(lambda: sum(node.ready for node in gateway.nodes(labels={"pool": room})) == 3)


def close_room(account: Account) -> dict[str, list[str]]:
    """What is in the cluster; then that goes, and the nodes of `arriving` with their room."""
    found = of_guest(account)
    gateway = account.services.kubernetes(account.cluster_id)
    gateway.delete("v1", "Namespace", name=gateway.namespace)
    CLUSTERS[account.settings.kubeconfig].remove_nodes(node_group=_room_of(account))
    return found


@contextmanager
def nodes_for_runs(account: Account) -> Iterator[None]:
    """Nodes that take the pods of runs, also of those of tests before."""
    local, room = CLUSTERS[account.settings.kubeconfig], _room_of(account)
    add_nodes(local, room, {"pool": room}, cpu="640", memory="2Ti", count=3)
    yield
    local.remove_nodes(node_group=room)


def _room_of(account: Account) -> str:
    return f"room-{account.cluster_id}"


def settle(account: Account) -> None:
    """What a guest has in the cluster before anything is checked: Trainer was seen there."""
    account.happen_to_cluster(cluster_events.JobKindChosen, kind=JobKind.TRAIN_JOB)
    account.services.kubernetes(account.cluster_id).apply([namespace()])
    with_file_system(account)


def guest(account: Account, **request: Any) -> None:
    """A guest whose namespace and file system are there."""
    theirs(account)
    account.request(eks_name=EKS_NAME, **request)
    settle(account)


def ready_for_check(account: Account) -> None:
    arriving(account)
    settle(account)


def checked(account: Account) -> None:
    """The network check has passed; its job, whose pods have whole nodes, is still there."""
    guest(account)
    account.services.kubernetes(account.cluster_id).apply(_of_check(account))
    account.happen_to_cluster(
        cluster_events.CheckFinished, check="network", passed=True, detail="fast enough"
    )


def ready_for_job(account: Account, **request: Any) -> None:
    guest(account, **request)
    account.enter(*TO_RUNNING[1:2])


def ready_for_queue(account: Account) -> None:
    """A run that names a ClusterQueue of theirs."""
    ready_for_job(account, job_options=JobOptions(queue=QUEUE))
    gateway = account.services.kubernetes(account.cluster_id)
    gateway.apply(kueue_crds())
    until(lambda: gateway.crd_established("clusterqueues.kueue.x-k8s.io"))
    gateway.apply([of_kueue("ClusterQueue", QUEUE, spec={})])


def queued(account: Account) -> None:
    """A submitted job that Kueue knows and has no room for."""
    ready_for_queue(account)
    submit_to_queue(account)
    make_workload(account, "2 more CPUs needed")


def submit_to_queue(account: Account) -> None:
    """Submit the run's job; its relays count as up and have no pods."""
    submit_job(account.services, account.run_id)
    gateway = account.services.kubernetes(account.cluster_id)
    gateway.apply([*map(without_pods, relay(account, train_job))])
    until(lambda: gateway.deployment_ready(relay_name(account.run_id), at_least=1))


def make_workload(account: Account, message: str) -> None:
    """Let Kueue see the job, and say why it has no quota."""
    gateway = account.services.kubernetes(account.cluster_id)
    job = gateway.job(account.run_id)
    assert job is not None
    labels = {"kueue.x-k8s.io/job-uid": job.uid}
    no_quota = {"type": "QuotaReserved", "status": "False", "message": message}
    status = {"conditions": [no_quota]}
    gateway.apply([of_kueue("Workload", f"trainjob-{job.name}", labels=labels, status=status)])


def report(account: Account, relay: JobObserver) -> Run:
    """Let the relay look at the job as it is now, and the recorder take in what that is."""
    about = ("trainer.kubeflow.org", "v1alpha1", _space_of(account), "trainjobs")
    with config.new_client_from_config(config_file=account.settings.kubeconfig) as api:
        listed = client.CustomObjectsApi(api).list_namespaced_custom_object(*about)["items"]
    found = [each for each in listed if each["metadata"]["name"] == account.run_id]
    events = relay.observe(found[0]) if found else relay.deleted()
    batch = RelayBatch(
        run_id=account.run_id,
        batch_id=",".join(event.event_id for event in events) or "none",
        at=account.now(),
        events=events,
        heartbeat=True,
    )
    record_batch(account.services, batch)
    return account.run


def _space_of(account: Account) -> str:
    return account.services.kubernetes(account.cluster_id).namespace


def set_suspended(account: Account, value: bool) -> None:
    """Admit the job, or preempt it, as Kueue does."""
    with config.new_client_from_config(config_file=account.settings.kubeconfig) as api:
        client.CustomObjectsApi(api).patch_namespaced_custom_object(
            "trainer.kubeflow.org",
            "v1alpha1",
            _space_of(account),
            "trainjobs",
            account.run_id,
            {"spec": {"suspend": value}},
        )


def train_job_of(account: Account) -> list[dict[str, Any]]:
    """The run's runtime and job as they are submitted."""
    run = account.run
    assert run.attempt is not None
    spec = job_spec(run.request, run.attempt, run_id=account.run_id, image="image")
    return train_job.render(spec)


def suspended(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A runtime and a job that has no pods."""
    runtime, job = objects
    return [runtime, job | {"spec": job["spec"] | {"suspend": True}}]


def furnish(account: Account) -> None:
    """Everything that a run and a check have in the cluster, their pods aside."""
    services, cluster_id = account.services, account.cluster_id
    of_run = [*render_etcd(account.run_id, job=account.run_id), *relay(account, train_job)]
    services.kubernetes(cluster_id).apply(
        [
            *render_storage(cluster_id, services.file_systems.mountable(cluster_id)),
            *suspended(train_job_of(account)),
            *_of_check(account),
            *map(without_pods, of_run),
        ]
    )


def _of_check(account: Account) -> list[dict[str, Any]]:
    job = render_collectives_job(
        account.cluster_id,
        account.cluster.spec,
        backend=train_job,
        check="network",
        name=f"{account.cluster_id}-nw-0",
        nodes=2,
        image="image",
        is_full=True,
    )
    return suspended(job)


def occupied(account: Account) -> None:
    guest(account)
    furnish(account)


def training(account: Account) -> None:
    """A run whose job is in the cluster and has not ended."""
    guest(account)
    account.enter(*TO_RUNNING[1:])
    furnish(account)
    account.happen(ev.TrainingStarted, total_steps=9)


def sharing(account: Account) -> None:
    """Two runs that train side by side as guests of one kept cluster."""
    theirs(account)
    account.ask()
    spec = spec_for(get_recipe("tiny-llama"), nodes=4, instance_type="m5.2xlarge")
    spec = spec.model_copy(update={"eks_name": EKS_NAME})
    account.keep(ClusterPhase.PROVISIONING, ClusterPhase.READY, spec=spec)
    settle(account)
    neighbour = account.guest("b")
    for run in (account, neighbour):
        joined(run)
        lease = partial(account.happen_to_cluster, cluster_events.LeaseRequested)
        lease(run_id=run.run_id, nodes=2)
    for run in (account, neighbour):
        run.enter(ev.RunPhase.SUBMITTING)
        furnish(run)


def of_guest(account: Account) -> dict[str, list[str]]:
    """Names of what the product has in the cluster for a guest, pods aside, by kind."""
    found = {}
    with config.new_client_from_config(config_file=account.settings.kubeconfig) as api:
        for path in LISTS:
            request = api.param_serialize("GET", path, auth_settings=["BearerToken"])
            items = json.loads(api.call_api(*request).read())["items"]
            # What JobSet makes of a job, and deletes a moment after it, is not looked at.
            abouts = [
                each["metadata"] for each in items if "ownerReferences" not in each["metadata"]
            ]
            names = [f"{each.get('namespace', '')}/{each['name']}" for each in abouts]
            found[path] = sorted(_HASH.sub(r"\1", name) for name in names if account.run_id in name)
    return found

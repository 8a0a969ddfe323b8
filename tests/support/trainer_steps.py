"""As cluster_steps, for guests in an existing EKS cluster whose jobs are TrainJobs.

Kubeflow Trainer v2 and JobSet are in the local cluster, the Training Operator is not. The only
program that pods find is a torchrun that waits.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

from kubernetes import client, config

from stationmaster.domain.cluster import events as cluster_events
from stationmaster.domain.cluster.events import ClusterPhase
from stationmaster.domain.cluster.spec import spec_for
from stationmaster.domain.job_kinds import JobKind
from stationmaster.domain.keys.job_options import JobOptions
from stationmaster.domain.names import relay_name
from stationmaster.domain.planning.recipe_lookup import get_recipe
from stationmaster.domain.run import events as ev
from stationmaster.rendering import train_job
from stationmaster.rendering.metadata import namespace
from stationmaster.steps.submit_job import submit_job
from tests.support.aws_fixtures import until
from tests.support.aws_steps import Account
from tests.support.cluster_steps import (
    apply_all,
    of_run,
    relay,
    side_by_side,
    suspended,
    with_file_system,
    without_pods,
)
from tests.support.factories import TO_RUNNING
from tests.support.kueue_objects import kueue_crds, of_kueue
from tests.support.rendered import check_job

EKS_NAME = "theirs"
QUEUE = "night"
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


def checked(account: Account) -> None:
    """The network check has passed; its job, whose pods have whole nodes, is still there."""
    guest(account)
    account.services.kubernetes(account.cluster_id).apply([*map(suspended, _of_check(account))])
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
    gateway.apply([of_kueue("ClusterQueue", QUEUE, spec={"namespaceSelector": {}})])


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


def admit(account: Account) -> None:
    """Let the job begin, as Kueue does."""
    space = account.services.kubernetes(account.cluster_id).namespace
    about = ("trainer.kubeflow.org", "v1alpha1", space, "trainjobs", account.run_id)
    with config.new_client_from_config(config_file=account.settings.kubeconfig) as api:
        client.CustomObjectsApi(api).patch_namespaced_custom_object(
            *about, {"spec": {"suspend": False}}
        )


def furnish(account: Account) -> None:
    """Everything that a run and a check have in the cluster, their pods aside."""
    apply_all(account, train_job, _of_check(account))


def _of_check(account: Account) -> list[dict[str, Any]]:
    name = f"{account.cluster_id}-nw-0"
    spec = account.cluster.spec
    return check_job(account.cluster_id, spec, "network", name=name, backend=train_job)


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
    side_by_side(account, furnish)


def of_guest(account: Account) -> dict[str, list[str]]:
    """Names of what the product has in the cluster for a guest, pods aside, by kind."""
    return {
        path: sorted(
            _HASH.sub(r"\1", f"{about.get('namespace', '')}/{about['name']}")
            for about in abouts
            # What JobSet makes of a job, and deletes a moment after it, is not looked at.
            if "ownerReferences" not in about
        )
        for path, abouts in of_run(account, LISTS).items()
    }

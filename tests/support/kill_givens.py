"""What is there when the steps of a kill case are called.

Used by test_kill_points and by tests of single steps.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from threading import Thread
from typing import Any

from stationmaster.cluster_upkeep import begin_pass
from stationmaster.domain.cluster import events as cluster_events
from stationmaster.domain.cluster.events import ClusterPhase
from stationmaster.domain.ids import ClusterId
from stationmaster.domain.names import (
    SYSTEM_INSTANCE_TYPE,
    cluster_name,
    launch_template_name,
    placement_group_name,
    security_group_name,
)
from stationmaster.domain.reactions.ending import SAVE_AGAIN_AFTER
from stationmaster.domain.resources import ResourceKind
from stationmaster.domain.run import events as ev
from stationmaster.domain.run.aggregate import Wait
from stationmaster.domain.run.attempts import attempt_id
from stationmaster.domain.run.request import Placement
from stationmaster.steps.acquire_cluster import acquire_cluster
from stationmaster.steps.begin_teardown import begin_teardown
from stationmaster.steps.conclude_teardown import conclude_teardown
from stationmaster.steps.ensure_cluster import ensure_cluster
from stationmaster.steps.ensure_file_system import ensure_file_system
from stationmaster.steps.ensure_node_group import ensure_node_group
from stationmaster.steps.keep_clock import keep_clock
from stationmaster.steps.release_lease import release_lease
from tests.support.artifacts_world import save_run
from tests.support.aws_steps import Account
from tests.support.factories import make_cluster_event
from tests.support.kill_acts import finish, killed, later, of_cluster

EFA = {"recipe": "llama2-7b", "instance_type": "p4d.24xlarge"}
FAILURE = {"Error": "E", "Cause": "for the test"}


def with_file_system(account: Account) -> None:
    services, cluster_id, spec = account.services, account.cluster_id, account.cluster.spec
    group = services.security_groups.ensure(cluster_id, instance_type=spec.instance_type)
    services.file_systems.ensure(
        cluster_id,
        storage_gib=spec.file_system.storage_gib,
        mbps_per_tib=spec.file_system.mbps_per_tib,
        subnet_id=group.subnet_id,
        security_group_id=group.group_id,
    )
    account.aws.finish_lifecycles()


def asked(account: Account) -> None:
    """A run that has come to no cluster; the first that it gets has its id."""
    account.ask()
    account.cluster_id = ClusterId(account.run_id)


def acquired(account: Account, *phases: ClusterPhase) -> None:
    """A run that has called for its cluster, which its workflow has taken further since."""
    asked(account)
    acquire_cluster(account.services, account.run_id, task_token="first")
    for phase in phases:
        account.happen_to_cluster(cluster_events.ClusterPhaseChanged, phase=phase)


def crowded(account: Account) -> None:
    """A run uses a part of a kept cluster; another one that waits needs all of it."""
    account.ask()
    account.keep(ClusterPhase.PROVISIONING, ClusterPhase.READY)
    joined(account)
    next_run = account.guest("b", nodes=4)
    for run_id, nodes in ((account.run_id, 2), (next_run.run_id, 4)):
        account.happen_to_cluster(cluster_events.LeaseRequested, run_id=run_id, nodes=nodes)
    account.services.runs.save_task_token(next_run.run_id, Wait.CLUSTER, "token of b")


def joined(account: Account) -> None:
    """The run's attempt is on the cluster."""
    account.happen(
        ev.AttemptStarted,
        attempt_id=attempt_id(account.run_id, 1),
        cluster_id=account.cluster_id,
        placement=Placement(nodes=2, instance_type="m5.2xlarge"),
        job=account.run_id,
        rendezvous_id=account.run_id,
    )


def asking_for_nodes(account: Account) -> None:
    """A run that names a kept cluster, all of which another one uses."""
    account.keep(ClusterPhase.PROVISIONING, ClusterPhase.READY)
    account.ask(cluster_id=account.cluster_id)
    about = {"run_id": account.guest("b").run_id, "nodes": 4}
    account.happen_to_cluster(cluster_events.LeaseRequested, **about)


def alone_after_a_day(account: Account) -> None:
    """A run names a cluster that was checked long ago and that nobody uses."""
    account.keep(ClusterPhase.PROVISIONING, ClusterPhase.READY)
    account.late += timedelta(days=2)
    account.ask(cluster_id=account.cluster_id)


def resized_in_vain(account: Account) -> None:
    """A kept cluster that was to get more nodes than AWS has."""
    account.ask()
    account.keep(ClusterPhase.PROVISIONING, ClusterPhase.READY)
    begin_pass(account.services, account.cluster, nodes=6)


def to_be_resized(account: Account) -> None:
    """A kept cluster with nodes, which is to get more of them."""
    account.ask()
    account.keep(ClusterPhase.PROVISIONING)
    finish(account, of_cluster(ensure_cluster))
    finish(account, of_cluster(ensure_node_group, node_group="training"))
    account.happen_to_cluster(cluster_events.ClusterPhaseChanged, phase=ClusterPhase.READY)
    begin_pass(account.services, account.cluster, nodes=6)


def stopped_meanwhile(account: Account) -> None:
    """Someone stops the run when the step has seen that nobody has."""
    asked(account)

    def stop() -> datetime:
        account.services.now = account.now
        someone = Thread(target=lambda: account.happen(ev.StopRequested, user_id="U2"))
        someone.start()
        someone.join()
        return account.now()

    account.services.now = stop


def with_cluster(account: Account, **request: Any) -> None:
    account.request(**request)
    finish(account, of_cluster(ensure_cluster))


def with_nodes(account: Account) -> None:
    with_cluster(account)
    finish(account, of_cluster(ensure_node_group, node_group="training"))


def with_file_system_in_full_zone(account: Account) -> None:
    """AWS has no instances in the first zone, where the file system is on its way."""
    account.aws.faults.add("no-capacity-in-first-zone")
    with_cluster(account)
    of_cluster(ensure_file_system)(account)


def waiting_for_cluster(account: Account) -> None:
    account.request()
    account.services.runs.save_task_token(account.run_id, Wait.CLUSTER, "cluster token")


def waiting_for_job(account: Account) -> None:
    account.train()
    account.services.runs.save_task_token(account.run_id, Wait.JOB, "job token")


def waiting_for_both(account: Account) -> None:
    """A wait for the cluster that is over leaves its token."""
    waiting_for_job(account)
    account.services.runs.save_task_token(account.run_id, Wait.CLUSTER, "cluster token")


def built(account: Account, *gone: ResourceKind) -> None:
    """Everything that a cluster can have, but for what is gone; its teardown has begun."""
    account.request(**EFA)
    cluster_id, services, spec = account.cluster_id, account.services, account.cluster.spec
    group = services.security_groups.ensure(cluster_id, instance_type=spec.instance_type)
    services.placement_groups.ensure(cluster_id)
    services.launch_templates.ensure_system(cluster_id, security_group_ids=[group.group_id])
    services.launch_templates.ensure_training(
        cluster_id, instance=spec.instance, security_group_ids=[group.group_id]
    )
    if ResourceKind.CLUSTER not in gone:
        services.clusters.ensure(cluster_id, version="1.35", security_group_id=group.group_id)
        account.aws.finish_lifecycles()
        services.node_groups.ensure_system(cluster_id, instance_type=SYSTEM_INSTANCE_TYPE)
        services.node_groups.ensure_training(
            cluster_id, instance=spec.instance, count=spec.nodes, subnet_id=group.subnet_id
        )
        with_file_system(account)
    requested = [
        make_cluster_event(
            event,
            event_id=f"{event.__name__} {kind} {name}",
            cluster_id=cluster_id,
            at=account.now(),
            kind=kind,
            name=name,
        )
        for kind, name in (
            (ResourceKind.SECURITY_GROUP, security_group_name(cluster_id)),
            (ResourceKind.PLACEMENT_GROUP, placement_group_name(cluster_id)),
            (ResourceKind.LAUNCH_TEMPLATE, launch_template_name(cluster_id, "system")),
            (ResourceKind.LAUNCH_TEMPLATE, launch_template_name(cluster_id)),
            (ResourceKind.CLUSTER, cluster_name(cluster_id)),
            (ResourceKind.NODE_GROUP, "system"),
            (ResourceKind.NODE_GROUP, "training"),
            (ResourceKind.FILE_SYSTEM, cluster_name(cluster_id)),
        )
        if kind not in gone
        for event in (cluster_events.ResourceRequested, cluster_events.ResourceSeen)
    ]
    services.cluster_states.record(cluster_id, requested)
    account.enter(ev.RunPhase.FAILED, reason="for the test")
    release_lease(services, account.run_id)
    finish(account, of_cluster(begin_teardown))


def network_left(account: Account) -> None:
    built(account, ResourceKind.CLUSTER, ResourceKind.NODE_GROUP, ResourceKind.FILE_SYSTEM)


def has_trained(account: Account) -> None:
    waiting_for_job(account)
    account.happen(ev.TrainingStarted, total_steps=9)
    account.services.workflows.start_train(account.run_id)


def saved(account: Account) -> None:
    """The saver has written the run's result; nobody has looked at it."""
    has_trained(account)
    account.enter(ev.RunPhase.SAVING)
    save_run(account.aws.client("s3"), account.run_id, {"metrics.jsonl": b"{}"})


def not_saved(account: Account) -> None:
    """Saving has given up for now, and its workflow has ended."""
    has_trained(account)
    account.enter(ev.RunPhase.SAVING)
    account.happen(ev.ResultsUnsaved, reason="denied")
    killed(account, "train", account.run_id)


def not_saved_for_long(account: Account) -> None:
    not_saved(account)
    account.late += 2 * SAVE_AGAIN_AFTER


def lost_cluster(account: Account) -> None:
    """A run that recovers; its cluster was deleted behind the product's back."""
    waiting_for_job(account)
    for kind, name in (
        (ResourceKind.CLUSTER, cluster_name(account.cluster_id)),
        (ResourceKind.NODE_GROUP, "training"),
    ):
        account.happen_to_cluster(cluster_events.ResourceRequested, kind=kind, name=name)
    account.enter(ev.RunPhase.RECOVERING, reason="a node is lost")


def drained(account: Account) -> None:
    account.request()
    account.enter(ev.RunPhase.FAILED, reason="for the test")
    release_lease(account.services, account.run_id)


def with_cluster_draining(account: Account) -> None:
    with_cluster(account)
    account.enter(ev.RunPhase.FAILED, reason="for the test")
    release_lease(account.services, account.run_id)


def torn_down_in_vain(account: Account) -> None:
    """A teardown has failed; the next begins."""
    drained(account)
    finish(account, of_cluster(begin_teardown))
    conclude_teardown(account.services, account.cluster_id, error=FAILURE)


def unleased(account: Account) -> None:
    """A cluster that no run has leased."""
    account.lease()
    cluster = account.cluster
    account.cluster_id = ClusterId(f"{account.cluster_id}2")
    account.services.cluster_states.create(
        cluster_events.ClusterRequested(
            event_id="requested",
            cluster_id=account.cluster_id,
            at=account.now(),
            spec=cluster.spec,
            run_id=account.run_id,
        )
    )


def alone_in_the_making(account: Account) -> None:
    account.ask()
    account.keep(ClusterPhase.PROVISIONING)


def about_to_go(account: Account) -> None:
    """A kept cluster whose time is nearly over, and nobody was warned."""
    account.set_in_future()
    account.keep(ClusterPhase.PROVISIONING, ClusterPhase.READY)
    account.late += timedelta(hours=7, minutes=55)


def over(account: Account) -> None:
    """A kept cluster whose time is over, as people were warned."""
    about_to_go(account)
    keep_clock(account.services, account.cluster_id)
    account.late += timedelta(minutes=5)


def dead_train(account: Account) -> None:
    account.request()
    account.services.workflows.start_train(account.run_id)
    killed(account, "train", account.run_id)


def dead_cluster(account: Account) -> None:
    waiting_for_cluster(account)
    account.services.workflows.start_train(account.run_id)
    account.services.workflows.start_cluster(account.cluster_id)
    killed(account, "cluster", account.cluster_id)


def forgotten_cluster(account: Account) -> None:
    """Its workflow was never started."""
    account.lease()
    account.services.workflows.start_train(account.run_id)
    later(account)


def forgotten_lease(account: Account) -> None:
    """The run has ended; its workflow died before it released its lease."""
    account.request()
    account.enter(ev.RunPhase.FAILED, reason="for the test")
    later(account)


def forgotten_teardown(account: Account) -> None:
    """The cluster drains, and nobody was told."""
    drained(account)
    later(account)

"""The cases of test_kill_points: each step, and what is there when it is called.

Steps that write to Kubernetes are in test_kill_points_in_cluster.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from threading import Thread
from typing import Any

from artifacts_world import save_run
from aws_steps import Account
from factories import START, make_cluster_event, make_event
from kill_points import Call, Case

from stationmaster import commands
from stationmaster.cluster_upkeep import begin_pass
from stationmaster.domain.bus import LogTail, RelayBatch
from stationmaster.domain.cluster import events as cluster_events
from stationmaster.domain.cluster.events import ClusterPhase
from stationmaster.domain.errors import NotPossibleNow, RunStopped
from stationmaster.domain.ids import ClusterId
from stationmaster.domain.names import (
    SYSTEM_INSTANCE_TYPE,
    cluster_name,
    launch_template_name,
    placement_group_name,
    security_group_name,
)
from stationmaster.domain.reactions.ending import SAVE_AGAIN_AFTER
from stationmaster.domain.reactions.workflow import GRACE
from stationmaster.domain.resources import ResourceKind
from stationmaster.domain.run import events as ev
from stationmaster.domain.run.aggregate import Wait
from stationmaster.domain.run.attempts import attempt_id
from stationmaster.domain.run.request import Placement
from stationmaster.steps.acquire_cluster import acquire_cluster
from stationmaster.steps.await_job import await_job
from stationmaster.steps.begin_teardown import begin_teardown
from stationmaster.steps.conclude_cluster import conclude_cluster
from stationmaster.steps.conclude_run import conclude_run
from stationmaster.steps.conclude_teardown import conclude_teardown
from stationmaster.steps.ensure_cluster import ensure_cluster
from stationmaster.steps.ensure_file_system import ensure_file_system
from stationmaster.steps.ensure_node_group import ensure_node_group
from stationmaster.steps.keep_clock import keep_clock
from stationmaster.steps.prepare_cluster import prepare_cluster
from stationmaster.steps.prepare_run import prepare_run
from stationmaster.steps.reap import reap
from stationmaster.steps.record_events import record_batch, record_dead_execution
from stationmaster.steps.release_cluster import release_cluster
from stationmaster.steps.release_file_system import release_file_system
from stationmaster.steps.release_lease import release_lease
from stationmaster.steps.release_network import release_network
from stationmaster.steps.release_node_group import release_node_group
from stationmaster.steps.start_teardown import start_teardown
from stationmaster.steps.verify_released import verify_released
from stationmaster.steps.verify_results import verify_results

EFA = {"recipe": "llama2-7b", "instance_type": "p4d.24xlarge"}
FAILURE = {"Error": "E", "Cause": "for the test"}


def of_cluster(step: Call, **arguments: Any) -> Call:
    return lambda account: step(account.services, account.cluster_id, **arguments)


def of_run(step: Call, **arguments: Any) -> Call:
    return lambda account: step(account.services, account.run_id, **arguments)


# What is there when the steps are called.


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
        services.clusters.ensure(cluster_id, security_group_id=group.group_id)
        account.aws.finish_lifecycles()
        services.node_groups.ensure_system(cluster_id, instance_type=SYSTEM_INSTANCE_TYPE)
        services.node_groups.ensure_training(
            cluster_id, instance=spec.instance, count=spec.nodes, subnet_id=group.subnet_id
        )
        services.file_systems.ensure(
            cluster_id,
            storage_gib=spec.file_system.storage_gib,
            mbps_per_tib=spec.file_system.mbps_per_tib,
            subnet_id=group.subnet_id,
            security_group_id=group.group_id,
        )
        account.aws.finish_lifecycles()
    requested = [
        make_cluster_event(
            cluster_events.ResourceRequested,
            event_id=f"{kind} {name}",
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


def saves_again(account: Account) -> str:
    """A person asks for it, and again after a call that died; too late is answered."""
    run = account.run
    try:
        commands.save_again(
            account.services, run.run_id, channel_id=run.request.channel_id, user_id="U2"
        )
    except NotPossibleNow:
        reaps(account)  # it starts what was recorded and not started
    return "asked"


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


def later(account: Account) -> None:
    account.late += 2 * GRACE


def in_order(*acts: Call) -> Call:
    def act(account: Account) -> None:
        for each in acts:
            each(account)

    return act


def finish(account: Account, step: Call) -> None:
    while step(account) == {"ready": False}:
        account.aws.finish_lifecycles()


def reports(*kinds: tuple[type[ev.RunEvent], dict[str, Any]], pods: tuple[str, ...] = ()) -> Call:
    """The recorder takes in a batch of the relay."""

    def act(account: Account) -> None:
        events = [
            make_event(kind, event_id=kind.__name__, run_id=account.run_id, **values)
            for kind, values in kinds
        ]
        record_batch(
            account.services,
            RelayBatch(
                run_id=account.run_id,
                batch_id="b",
                at=START,
                events=events,
                log_tails=[LogTail(pod=pod, at=START, lines=["a line"]) for pod in pods],
                heartbeat=True,
            ),
        )

    return act


def dies(machine: str, name: Callable[[Account], str]) -> Call:
    """The recorder hears that an execution was stopped from outside."""

    def act(account: Account) -> None:
        record_dead_execution(
            account.services,
            state_machine_arn=getattr(account.settings, f"{machine}_state_machine_arn"),
            execution_name=name(account),
            status="ABORTED",
            cause="for the test",
        )

    return act


def killed(account: Account, machine: str, name: str) -> None:
    """Someone stops an execution; the recorder is not told."""
    arn = getattr(account.settings, f"{machine}_state_machine_arn")
    account.aws.client("stepfunctions").stop_execution(
        executionArn=f"{arn.replace(':stateMachine:', ':execution:')}:{name}"
    )


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


def reaps(account: Account) -> None:
    """The answer, which names whom this call helped, is only logged."""
    reap(account.services)


def reaps_later(account: Account) -> None:
    """As its schedule has it: when every grace is over."""
    later(account)
    reap(account.services)


def passes(account: Account) -> list[str | None]:
    """The passes over the cluster that run."""
    workflows, cluster_id = account.services.workflows, account.cluster_id
    return [workflows.cluster_status(cluster_id, pass_number=number) for number in (1, 2, 3)]


def sizes(account: Account) -> int | None:
    """How many nodes EKS is to run."""
    group = account.services.node_groups.describe(account.cluster_id, "training")
    return group.nodes if group is not None else None


def clock(account: Account) -> bool:
    return account.clock is not None


# What a reaper that dies leaves undone, the next one sees when it is old enough, and the one after
# that when its cluster drains.
REAPED = (reaps, reaps_later, reaps_later)


JOB_FAILED = (
    ev.JobConditionChanged,
    {"condition": "Failed", "reason": "r", "message": "it failed"},
)
SILENCE = {"Error": "States.HeartbeatTimeout", "Cause": ""}

TRAIN = (
    Case("prepare_run", [of_run(prepare_run)], writes_nothing=True, given=asked),
    Case(
        "acquire_cluster",
        [of_run(acquire_cluster, task_token="token")],
        given=asked,
    ),
    Case(
        "acquire_cluster that provisions",
        [of_run(acquire_cluster, task_token="token")],
        given=lambda account: acquired(account, ClusterPhase.PROVISIONING),
    ),
    Case(
        "acquire_cluster that is ready",
        [of_run(acquire_cluster, task_token="token")],
        given=lambda account: acquired(account, ClusterPhase.PROVISIONING, ClusterPhase.READY),
    ),
    Case(
        "acquire_cluster of a run that is stopped meanwhile",
        [
            of_run(acquire_cluster, task_token="token"),
            of_run(conclude_run, error={"Error": "RunStopped", "Cause": ""}),
            of_run(release_lease),
        ],
        given=stopped_meanwhile,
        may_raise=RunStopped,
        first_kill=3,
    ),
    Case(
        "await_job",
        [of_run(await_job, task_token="token")],
        given=Account.train,
    ),
    Case(
        "await_job that has succeeded",
        [of_run(await_job, task_token="token")],
        given=in_order(
            Account.train,
            lambda account: account.happen(
                ev.JobConditionChanged, condition="Succeeded", reason="r", message="m"
            ),
        ),
    ),
    Case(
        "await_job of a run that was stopped",
        [of_run(await_job, task_token="token")],
        given=in_order(
            waiting_for_both, lambda account: account.happen(ev.StopRequested, user_id="U2")
        ),
    ),
    Case(
        "conclude_run",
        [of_run(conclude_run)],
        given=Account.train,
    ),
    Case(
        "conclude_run that fails",
        [of_run(conclude_run, error=FAILURE)],
        given=Account.train,
    ),
    Case(
        "conclude_run of a cluster that is gone",
        [of_run(conclude_run, error=SILENCE)],
        given=lost_cluster,
    ),
    Case("release_lease", [of_run(release_lease)]),
    Case(
        "acquire_cluster of a cluster without free nodes",
        [of_run(acquire_cluster, task_token="token")],
        given=asking_for_nodes,
    ),
    Case(
        "acquire_cluster of a cluster whose checks are old",
        [of_run(acquire_cluster, task_token="token")],
        given=alone_after_a_day,
    ),
    Case("release_lease with the next one in line", [of_run(release_lease)], given=crowded),
)

SAVING = (
    Case("verify_results", [of_run(verify_results)], given=saved),
    Case(
        "conclude_run that is saved",
        [of_run(verify_results), of_run(conclude_run), of_run(release_lease)],
        given=saved,
    ),
    Case(
        "record_dead_execution of train that has trained",
        [dies("train", lambda account: account.run_id)],
        given=has_trained,
    ),
    Case("save again", [saves_again], given=not_saved),
    Case("reap a run that is not saved", [reaps], asks_bus=False, given=not_saved_for_long),
)

CLUSTER = (
    Case(
        "prepare_cluster",
        [of_cluster(prepare_cluster)],
        given=Account.lease,
    ),
    Case(
        "conclude_cluster",
        [of_cluster(conclude_cluster)],
        given=waiting_for_cluster,
    ),
    Case(
        "conclude_cluster that failed",
        [of_cluster(conclude_cluster, error=FAILURE)],
        given=waiting_for_cluster,
    ),
    Case(
        "conclude_cluster of a resize that failed",
        [of_cluster(conclude_cluster, pass_number=2, error=FAILURE)],
        given=resized_in_vain,
        also=passes,
    ),
    Case(
        "conclude_cluster that failed and that nobody leases",
        [of_cluster(conclude_cluster, error=FAILURE)],
        given=alone_in_the_making,
    ),
)

CREATING = (
    Case(
        "ensure_cluster",
        [of_cluster(ensure_cluster)],
        creates=True,
    ),
    Case(
        "ensure_node_group system",
        [of_cluster(ensure_node_group, node_group="system")],
        given=with_cluster,
        creates=True,
    ),
    Case(
        "ensure_node_group training with EFA",
        [of_cluster(ensure_node_group, node_group="training")],
        given=lambda account: with_cluster(account, **EFA),
        creates=True,
    ),
    Case(
        "ensure_node_group of another size",
        [of_cluster(ensure_node_group, node_group="training")],
        given=to_be_resized,
        also=sizes,
    ),
    Case(
        "ensure_file_system",
        [of_cluster(ensure_file_system)],
        given=with_cluster,
        creates=True,
    ),
)

TEARDOWN = (
    Case(
        "begin_teardown under a run",
        [of_cluster(begin_teardown)],
        given=waiting_for_both,
    ),
    Case(
        "begin_teardown under a run and a queue",
        [of_cluster(begin_teardown)],
        given=crowded,
    ),
    Case(
        "begin_teardown that nobody leases",
        [of_cluster(begin_teardown)],
        given=unleased,
    ),
    Case(
        "begin_teardown again",
        [of_cluster(begin_teardown)],
        given=torn_down_in_vain,
    ),
    Case(
        "release_file_system",
        [of_cluster(release_file_system)],
        given=built,
    ),
    Case(
        "release_node_group",
        [of_cluster(release_node_group, node_group="training")],
        given=built,
    ),
    Case(
        "release_cluster with its node groups",
        [of_cluster(release_cluster)],
        given=built,
    ),
    Case(
        "release_network",
        [of_cluster(release_network)],
        given=network_left,
    ),
    Case(
        "verify_released of everything",
        [of_cluster(verify_released)],
        given=built,
    ),
    Case(
        "conclude_teardown",
        [of_cluster(conclude_teardown)],
        given=in_order(drained, lambda account: finish(account, of_cluster(begin_teardown))),
    ),
    Case(
        "conclude_teardown that failed",
        [of_cluster(conclude_teardown, error=FAILURE)],
        given=with_cluster_draining,
    ),
)

OUTSIDE = (
    Case("keep_clock that warns", [of_cluster(keep_clock)], given=about_to_go, also=clock),
    Case("keep_clock at the end", [of_cluster(keep_clock)], given=over, also=clock),
    Case(
        "reap a cluster whose clock is lost",
        REAPED[:1],
        given=about_to_go,
        also=clock,
    ),
    Case("start_teardown", [of_cluster(start_teardown)], given=drained),
    Case(
        "record_batch of a job that failed",
        [reports(JOB_FAILED, pods=("a", "b"))],
        given=waiting_for_both,
    ),
    Case(
        "record_batch that is news only",
        [reports((ev.ProgressReported, {"seq": 1, "step": 1, "total_steps": 9, "loss_nats": 1.0}))],
        given=waiting_for_job,
    ),
    Case(
        "record_batch of a cluster that is gone",
        [reports()],
        given=lost_cluster,
    ),
    Case(
        "record_dead_execution of train",
        [dies("train", lambda account: account.run_id)],
    ),
    Case(
        "record_dead_execution of cluster",
        [dies("cluster", lambda account: account.cluster_id)],
        given=waiting_for_cluster,
    ),
    Case(
        "record_dead_execution of teardown",
        [dies("teardown", lambda account: f"{account.cluster_id}-teardown-1")],
        given=drained,
    ),
    Case(
        "reap a run that was not started",
        REAPED,
        asks_bus=False,
        given=in_order(asked, later),
    ),
    Case(
        "reap a dead run",
        REAPED,
        asks_bus=False,
        given=dead_train,
    ),
    Case(
        "reap a cluster that was not started",
        REAPED,
        asks_bus=False,
        given=forgotten_cluster,
    ),
    Case(
        "reap a dead cluster",
        REAPED[:2],
        asks_bus=False,
        given=dead_cluster,
    ),
    Case(
        "reap a lease of a run that has ended",
        REAPED,
        asks_bus=False,
        given=forgotten_lease,
    ),
    Case(
        "reap a cluster that drains",
        REAPED,
        asks_bus=False,
        given=forgotten_teardown,
    ),
)

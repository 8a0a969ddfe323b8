"""The cases of test_kill_points: each step, and what is there when it is called.

Steps that write to Kubernetes are in test_kill_points_in_cluster.
"""

from __future__ import annotations

from stationmaster.domain.cluster.events import ClusterPhase
from stationmaster.domain.errors import RunStopped
from stationmaster.domain.run import events as ev
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
from stationmaster.steps.release_cluster import release_cluster
from stationmaster.steps.release_file_system import release_file_system
from stationmaster.steps.release_lease import release_lease
from stationmaster.steps.release_network import release_network
from stationmaster.steps.release_node_group import release_node_group
from stationmaster.steps.start_teardown import start_teardown
from stationmaster.steps.verify_released import verify_released
from stationmaster.steps.verify_results import verify_results
from tests.support import kill_givens as given
from tests.support.aws_steps import Account
from tests.support.kill_acts import (
    clock,
    dies,
    finish,
    in_order,
    later,
    of_cluster,
    of_run,
    passes,
    reaps,
    reaps_later,
    reports,
    saves_again,
    sizes,
)
from tests.support.kill_points import Case

# What a reaper that dies leaves undone, the next one sees when it is old enough, and the one after
# that when its cluster drains.
REAPED = (reaps, reaps_later, reaps_later)


JOB_FAILED = (
    ev.JobConditionChanged,
    {"condition": "Failed", "reason": "r", "message": "it failed"},
)
SILENCE = {"Error": "States.HeartbeatTimeout", "Cause": ""}

TRAIN = (
    Case("prepare_run", [of_run(prepare_run)], writes_nothing=True, given=given.asked),
    Case(
        "acquire_cluster",
        [of_run(acquire_cluster, task_token="token")],
        given=given.asked,
    ),
    Case(
        "acquire_cluster that provisions",
        [of_run(acquire_cluster, task_token="token")],
        given=lambda account: given.acquired(account, ClusterPhase.PROVISIONING),
    ),
    Case(
        "acquire_cluster that is ready",
        [of_run(acquire_cluster, task_token="token")],
        given=lambda account: given.acquired(
            account, ClusterPhase.PROVISIONING, ClusterPhase.READY
        ),
    ),
    Case(
        "acquire_cluster of a run that is stopped meanwhile",
        [
            of_run(acquire_cluster, task_token="token"),
            of_run(conclude_run, error={"Error": "RunStopped", "Cause": ""}),
            of_run(release_lease),
        ],
        given=given.stopped_meanwhile,
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
            given.waiting_for_both, lambda account: account.happen(ev.StopRequested, user_id="U2")
        ),
    ),
    Case(
        "conclude_run",
        [of_run(conclude_run)],
        given=Account.train,
    ),
    Case(
        "conclude_run that fails",
        [of_run(conclude_run, error=given.FAILURE)],
        given=Account.train,
    ),
    Case(
        "conclude_run of a cluster that is gone",
        [of_run(conclude_run, error=SILENCE)],
        given=given.lost_cluster,
    ),
    Case("release_lease", [of_run(release_lease)]),
    Case(
        "acquire_cluster of a cluster without free nodes",
        [of_run(acquire_cluster, task_token="token")],
        given=given.asking_for_nodes,
    ),
    Case(
        "acquire_cluster of a cluster whose checks are old",
        [of_run(acquire_cluster, task_token="token")],
        given=given.alone_after_a_day,
    ),
    Case("release_lease with the next one in line", [of_run(release_lease)], given=given.crowded),
)

SAVING = (
    Case("verify_results", [of_run(verify_results)], given=given.saved),
    Case(
        "conclude_run that is saved",
        [of_run(verify_results), of_run(conclude_run), of_run(release_lease)],
        given=given.saved,
    ),
    Case(
        "record_dead_execution of train that has trained",
        [dies("train", lambda account: account.run_id)],
        given=given.has_trained,
    ),
    Case("save again", [saves_again], given=given.not_saved),
    Case("reap a run that is not saved", [reaps], asks_bus=False, given=given.not_saved_for_long),
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
        given=given.waiting_for_cluster,
    ),
    Case(
        "conclude_cluster that failed",
        [of_cluster(conclude_cluster, error=given.FAILURE)],
        given=given.waiting_for_cluster,
    ),
    Case(
        "conclude_cluster of a resize that failed",
        [of_cluster(conclude_cluster, pass_number=2, error=given.FAILURE)],
        given=given.resized_in_vain,
        also=passes,
    ),
    Case(
        "conclude_cluster that failed and that nobody leases",
        [of_cluster(conclude_cluster, error=given.FAILURE)],
        given=given.alone_in_the_making,
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
        given=given.with_cluster,
        creates=True,
    ),
    Case(
        "ensure_node_group training with EFA",
        [of_cluster(ensure_node_group, node_group="training")],
        given=lambda account: given.with_cluster(account, **given.EFA),
        creates=True,
    ),
    Case(
        "ensure_node_group of another size",
        [of_cluster(ensure_node_group, node_group="training")],
        given=given.to_be_resized,
        also=sizes,
    ),
    Case(
        "ensure_file_system",
        [of_cluster(ensure_file_system)],
        given=given.with_nodes,
        creates=True,
    ),
    Case(
        "ensure_node_group whose first zone is full",
        [
            of_cluster(ensure_node_group, node_group="training"),
            of_cluster(ensure_file_system),
        ],
        given=given.with_file_system_in_full_zone,
        first_kill=7,
        creates=True,
    ),
)

TEARDOWN = (
    Case(
        "begin_teardown under a run",
        [of_cluster(begin_teardown)],
        given=given.waiting_for_both,
    ),
    Case(
        "begin_teardown under a run and a queue",
        [of_cluster(begin_teardown)],
        given=given.crowded,
    ),
    Case(
        "begin_teardown that nobody leases",
        [of_cluster(begin_teardown)],
        given=given.unleased,
    ),
    Case(
        "begin_teardown again",
        [of_cluster(begin_teardown)],
        given=given.torn_down_in_vain,
    ),
    Case(
        "release_file_system",
        [of_cluster(release_file_system)],
        given=given.built,
    ),
    Case(
        "release_node_group",
        [of_cluster(release_node_group, node_group="training")],
        given=given.built,
    ),
    Case(
        "release_cluster with its node groups",
        [of_cluster(release_cluster)],
        given=given.built,
    ),
    Case(
        "release_network",
        [of_cluster(release_network)],
        given=given.network_left,
    ),
    Case(
        "verify_released of everything",
        [of_cluster(verify_released)],
        given=given.built,
    ),
    Case(
        "conclude_teardown",
        [of_cluster(conclude_teardown)],
        given=in_order(given.drained, lambda account: finish(account, of_cluster(begin_teardown))),
    ),
    Case(
        "conclude_teardown that failed",
        [of_cluster(conclude_teardown, error=given.FAILURE)],
        given=given.with_cluster_draining,
    ),
)

OUTSIDE = (
    Case("keep_clock that warns", [of_cluster(keep_clock)], given=given.about_to_go, also=clock),
    Case("keep_clock at the end", [of_cluster(keep_clock)], given=given.over, also=clock),
    Case(
        "reap a cluster whose clock is lost",
        REAPED[:1],
        given=given.about_to_go,
        also=clock,
    ),
    Case("start_teardown", [of_cluster(start_teardown)], given=given.drained),
    Case(
        "record_batch of a job that failed",
        [reports(JOB_FAILED, pods=("a", "b"))],
        given=given.waiting_for_both,
    ),
    Case(
        "record_batch that is news only",
        [reports((ev.ProgressReported, {"seq": 1, "step": 1, "total_steps": 9, "loss_nats": 1.0}))],
        given=given.waiting_for_job,
    ),
    Case(
        "record_batch of a cluster that is gone",
        [reports()],
        given=given.lost_cluster,
    ),
    Case(
        "record_dead_execution of train",
        [dies("train", lambda account: account.run_id)],
    ),
    Case(
        "record_dead_execution of cluster",
        [dies("cluster", lambda account: account.cluster_id)],
        given=given.waiting_for_cluster,
    ),
    Case(
        "record_dead_execution of teardown",
        [dies("teardown", lambda account: f"{account.cluster_id}-teardown-1")],
        given=given.drained,
    ),
    Case(
        "reap a run that was not started",
        REAPED,
        asks_bus=False,
        given=in_order(given.asked, later),
    ),
    Case(
        "reap a dead run",
        REAPED,
        asks_bus=False,
        given=given.dead_train,
    ),
    Case(
        "reap a cluster that was not started",
        REAPED,
        asks_bus=False,
        given=given.forgotten_cluster,
    ),
    Case(
        "reap a dead cluster",
        REAPED[:2],
        asks_bus=False,
        given=given.dead_cluster,
    ),
    Case(
        "reap a lease of a run that has ended",
        REAPED,
        asks_bus=False,
        given=given.forgotten_lease,
    ),
    Case(
        "reap a cluster that drains",
        REAPED,
        asks_bus=False,
        given=given.forgotten_teardown,
    ),
)

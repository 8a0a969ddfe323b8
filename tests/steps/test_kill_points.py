"""A step that dies between two of its writes is made good by its next call.

What is there before the cases is in kill_givens, and what they do in kill_acts. Steps that write to
Kubernetes are in test_kill_points_in_cluster.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from stacks.packages import NOT_IN_FUNCTIONS
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
from tests.support.aws_steps import IDLE, Account
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
from tests.support.kill_points import (
    Call,
    Case,
    PlayEveryKill,
    one,
)

# Creations and deletions come to their end between two calls, never during one.
SPEED = IDLE
REPOSITORY = Path(__file__).resolve().parents[2]


def test_nothing_in_the_product_continues_after_a_kill():
    """A handler of every exception, or a `finally`, would do what a dead process cannot."""
    found = {
        path.relative_to(REPOSITORY).as_posix()
        for package in ("stationmaster", "lambdas")
        for path in (REPOSITORY / package).rglob("*.py")
        if path.relative_to(REPOSITORY).parts[1] not in NOT_IN_FUNCTIONS
        for node in ast.walk(ast.parse(path.read_text()))
        if _outlives_a_kill(node)
    }

    # They let go of the hub's threads, the keys of a log line, and a lease that ends by itself.
    assert found == {f"stationmaster/{name}.py" for name in ("hub", "log_keys", "turns")}


def _outlives_a_kill(node: ast.AST) -> bool:
    if isinstance(node, ast.ExceptHandler):
        return node.type is None or "BaseException" in ast.unparse(node.type)
    return isinstance(node, ast.Try) and bool(node.finalbody)


def reaped(what: str, given: Call, *, times: int = 3) -> Case:
    """A case of reapers alone.

    What one that dies leaves undone, the next one sees when it is old enough, and the one after
    that when its cluster drains.
    """
    return Case(f"reap {what}", (reaps, reaps_later, reaps_later)[:times], given, asks_bus=False)


def acquired(name: str, given: Call) -> Case:
    return one(f"acquire_cluster{name}", of_run(acquire_cluster, task_token="token"), given)


JOB_FAILED = (
    ev.JobConditionChanged,
    {"condition": "Failed", "reason": "r", "message": "it failed"},
)
SILENCE = {"Error": "States.HeartbeatTimeout", "Cause": ""}

TRAIN = (
    one("prepare_run", of_run(prepare_run), given.asked, writes_nothing=True),
    acquired("", given.asked),
    acquired(
        " that provisions",
        lambda account: given.acquired(account, ClusterPhase.PROVISIONING),
    ),
    acquired(
        " that is ready",
        lambda account: given.acquired(account, ClusterPhase.PROVISIONING, ClusterPhase.READY),
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
    one("await_job", of_run(await_job, task_token="token"), Account.train),
    one(
        "await_job that has succeeded",
        of_run(await_job, task_token="token"),
        in_order(
            Account.train,
            lambda account: account.happen(
                ev.JobConditionChanged, condition="Succeeded", reason="r", message="m"
            ),
        ),
    ),
    one(
        "await_job of a run that was stopped",
        of_run(await_job, task_token="token"),
        in_order(
            given.waiting_for_both, lambda account: account.happen(ev.StopRequested, user_id="U2")
        ),
    ),
    one("conclude_run", of_run(conclude_run), Account.train),
    one("conclude_run that fails", of_run(conclude_run, error=given.FAILURE), Account.train),
    one(
        "conclude_run of a cluster that is gone",
        of_run(conclude_run, error=SILENCE),
        given.lost_cluster,
    ),
    one("release_lease", of_run(release_lease)),
    acquired(
        " of a cluster without free nodes",
        given.asking_for_nodes,
    ),
    acquired(
        " of a cluster whose checks are old",
        given.alone_after_a_day,
    ),
    one("release_lease with the next one in line", of_run(release_lease), given.crowded),
)

SAVING = (
    one("verify_results", of_run(verify_results), given.saved),
    Case(
        "conclude_run that is saved",
        [of_run(verify_results), of_run(conclude_run), of_run(release_lease)],
        given=given.saved,
    ),
    one(
        "record_dead_execution of train that has trained",
        dies("train", lambda account: account.run_id),
        given.has_trained,
    ),
    one("save again", saves_again, given.not_saved),
    one("reap a run that is not saved", reaps, given.not_saved_for_long, asks_bus=False),
)

CLUSTER = (
    one("prepare_cluster", of_cluster(prepare_cluster), Account.lease),
    one("conclude_cluster", of_cluster(conclude_cluster), given.waiting_for_cluster),
    one(
        "conclude_cluster that failed",
        of_cluster(conclude_cluster, error=given.FAILURE),
        given.waiting_for_cluster,
    ),
    one(
        "conclude_cluster of a resize that failed",
        of_cluster(conclude_cluster, pass_number=2, error=given.FAILURE),
        given.resized_in_vain,
        also=passes,
    ),
    one(
        "conclude_cluster that failed and that nobody leases",
        of_cluster(conclude_cluster, error=given.FAILURE),
        given.alone_in_the_making,
    ),
)

CREATING = (
    one("ensure_cluster", of_cluster(ensure_cluster), creates=True),
    one(
        "ensure_node_group system",
        of_cluster(ensure_node_group, node_group="system"),
        given.with_cluster,
        creates=True,
    ),
    one(
        "ensure_node_group training with EFA",
        of_cluster(ensure_node_group, node_group="training"),
        lambda account: given.with_cluster(account, **given.EFA),
        creates=True,
    ),
    one(
        "ensure_node_group of another size",
        of_cluster(ensure_node_group, node_group="training"),
        given.to_be_resized,
        also=sizes,
    ),
    one("ensure_file_system", of_cluster(ensure_file_system), given.with_nodes, creates=True),
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
    one("begin_teardown under a run", of_cluster(begin_teardown), given.waiting_for_both),
    one("begin_teardown under a run and a queue", of_cluster(begin_teardown), given.crowded),
    one("begin_teardown that nobody leases", of_cluster(begin_teardown), given.unleased),
    one("begin_teardown again", of_cluster(begin_teardown), given.torn_down_in_vain),
    one("release_file_system", of_cluster(release_file_system), given.built),
    one("release_node_group", of_cluster(release_node_group, node_group="training"), given.built),
    one("release_cluster with its node groups", of_cluster(release_cluster), given.built),
    one("release_network", of_cluster(release_network), given.network_left),
    one("verify_released of everything", of_cluster(verify_released), given.built),
    one(
        "conclude_teardown",
        of_cluster(conclude_teardown),
        in_order(given.drained, lambda account: finish(account, of_cluster(begin_teardown))),
    ),
    one(
        "conclude_teardown that failed",
        of_cluster(conclude_teardown, error=given.FAILURE),
        given.with_cluster_draining,
    ),
)

OUTSIDE = (
    one("keep_clock that warns", of_cluster(keep_clock), given.about_to_go, also=clock),
    one("keep_clock at the end", of_cluster(keep_clock), given.over, also=clock),
    Case(
        "reap a cluster whose clock is lost",
        [reaps],
        given=given.about_to_go,
        also=clock,
    ),
    one("start_teardown", of_cluster(start_teardown), given.drained),
    one(
        "record_batch of a job that failed",
        reports(JOB_FAILED, pods=("a", "b")),
        given.waiting_for_both,
    ),
    one(
        "record_batch that is news only",
        reports((ev.ProgressReported, {"seq": 1, "step": 1, "total_steps": 9, "loss_nats": 1.0})),
        given.waiting_for_job,
    ),
    one("record_batch of a cluster that is gone", reports(), given.lost_cluster),
    one("record_dead_execution of train", dies("train", lambda account: account.run_id)),
    one(
        "record_dead_execution of cluster",
        dies("cluster", lambda account: account.cluster_id),
        given.waiting_for_cluster,
    ),
    one(
        "record_dead_execution of teardown",
        dies("teardown", lambda account: f"{account.cluster_id}-teardown-1"),
        given.drained,
    ),
    reaped("a run that was not started", in_order(given.asked, later)),
    reaped("a dead run", given.dead_train),
    reaped("a cluster that was not started", given.forgotten_cluster),
    reaped("a dead cluster", given.dead_cluster, times=2),
    reaped("a lease of a run that has ended", given.forgotten_lease),
    reaped("a cluster that drains", given.forgotten_teardown),
)


CASES = (*TRAIN, *SAVING, *CLUSTER, *CREATING, *TEARDOWN, *OUTSIDE)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_step_that_dies_after_a_write_and_is_called_again_ends_as_if_nothing_had_happened(
    play_every_kill: PlayEveryKill, case: Case
):
    play_every_kill(case)

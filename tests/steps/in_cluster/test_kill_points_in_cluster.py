"""As test_kill_points, for the steps that write to Kubernetes."""

from __future__ import annotations

from datetime import timedelta

import pytest

from stationmaster.domain.cluster.events import SizeSettled
from stationmaster.steps import READY, StepResult
from stationmaster.steps.ensure_job_started import ensure_job_started
from stationmaster.steps.ensure_node_group import WAIT_FOR_MORE_S, ensure_node_group
from stationmaster.steps.install_plugin import install_plugin
from stationmaster.steps.leave_unsaved import leave_unsaved
from stationmaster.steps.release_job import release_job
from stationmaster.steps.release_run import release_run
from stationmaster.steps.run_check import run_check
from stationmaster.steps.save_results import save_results
from stationmaster.steps.stage_data import stage_data
from stationmaster.steps.submit_job import submit_job
from tests.support.aws_fixtures import until
from tests.support.aws_steps import IDLE, Account
from tests.support.cluster_steps import (
    MEGATRON,
    checked_with_one_node,
    end_job,
    in_cluster,
    occupied,
    ready_for_checks,
    ready_for_data,
    ready_for_job,
    sharing,
    submitted,
    succeeded,
    trained,
    training_nodes,
    with_nodes,
    without_rights_of_relays,
)
from tests.support.factories import TO_RUNNING
from tests.support.kill_acts import of_cluster, of_run, sizes
from tests.support.kill_givens import with_cluster
from tests.support.kill_points import (
    Call,
    Case,
    PlayEveryKill,
    one,
)

SPEED = IDLE


def until_volumes_are_gone(step: Call) -> Call:
    """One call deletes all; the cluster lets go of the volume a moment later, or sooner."""

    def call(account: Account) -> StepResult:
        step(account)
        until(lambda: not in_cluster(account)["/api/v1/persistentvolumes"])
        return READY

    return call


def once(step: Call) -> Call:
    """What it starts takes its time; the case ends here."""
    return lambda account: ["called", step(account)]


def being_saved(account: Account) -> None:
    trained(account)
    save_results(account.services, account.run_id)


def trained_by_framework(account: Account) -> None:
    succeeded(account, **MEGATRON)


def exporting(account: Account) -> None:
    """A Job makes a model of the framework's checkpoint; no node takes its pod."""
    trained_by_framework(account)
    save_results(account.services, account.run_id)


def exported(account: Account) -> None:
    exporting(account)
    end_job(account, "export", "Complete")


def not_exported(account: Account) -> None:
    exporting(account)
    end_job(account, "export", "Failed", "for the test")


def short_of_nodes(account: Account) -> None:
    """Of two to four nodes three have joined, and no more come."""
    with_cluster(account, nodes=4, min_nodes=2)
    while sizes(account) != 4:
        account.call(ensure_node_group, node_group="training")
        account.aws.finish_lifecycles()
    training_nodes(account, count=3)
    account.late += timedelta(seconds=WAIT_FOR_MORE_S + 60)


def leased_fewer(account: Account) -> None:
    """A run wished for four nodes, and leases three."""
    account.request(nodes=4, min_nodes=2)
    account.happen_to_cluster(SizeSettled, nodes=3, reason="no capacity")
    account.enter(*TO_RUNNING[1:2])


def found(name: str, given: Call, *steps: Call) -> Case:
    """A case of which is compared what is in the cluster, too."""
    return Case(name, steps, given=given, also=in_cluster)


SAVE = once(of_run(save_results))
DENIED = {"Error": "SavingFailed", "Cause": "denied"}
TRAINING = of_cluster(ensure_node_group, node_group="training")
CHECK_STORAGE = once(of_cluster(run_check, check="storage"))
ADD_ON = of_cluster(install_plugin, plugin="fsx-csi-driver")

CASES = (
    found("save_results that has a model made first", trained_by_framework, SAVE, SAVE),
    found("save_results of a model that was made", exported, SAVE, SAVE),
    found("save_results without a model that could not be made", not_exported, SAVE, SAVE),
    one(
        "ensure_node_group that settles for the nodes that came",
        TRAINING,
        short_of_nodes,
        also=sizes,
    ),
    one(
        "stage_data of a run that leases fewer nodes than it wished for",
        of_run(stage_data),
        leased_fewer,
    ),
    one("install_plugin that is an add-on", ADD_ON, with_cluster),
    found(
        "install_plugin that is applied",
        without_rights_of_relays,
        of_cluster(install_plugin, plugin="relay"),
    ),
    one("run_check nodes", of_cluster(run_check, check="nodes"), with_nodes),
    found("run_check storage", ready_for_checks, CHECK_STORAGE),
    found("run_check storage of one node more", checked_with_one_node, CHECK_STORAGE),
    found("stage_data", ready_for_data, once(of_run(stage_data))),
    found("submit_job", ready_for_job, of_run(submit_job)),
    one("ensure_job_started", of_run(ensure_job_started), submitted),
    found("release_run", sharing, of_run(release_run)),
    found("save_results", trained, SAVE, SAVE),
    found("leave_unsaved", being_saved, of_run(leave_unsaved, error=DENIED)),
    found("release_job", occupied, until_volumes_are_gone(of_cluster(release_job))),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_step_that_dies_after_a_write_and_is_called_again_ends_as_if_nothing_had_happened(
    play_every_kill: PlayEveryKill, case: Case
):
    play_every_kill(case)

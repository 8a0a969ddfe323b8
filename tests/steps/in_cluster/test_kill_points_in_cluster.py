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


CASES = (
    Case(
        "save_results that has a model made first",
        [once(of_run(save_results)), once(of_run(save_results))],
        given=trained_by_framework,
        also=in_cluster,
    ),
    Case(
        "save_results of a model that was made",
        [once(of_run(save_results)), once(of_run(save_results))],
        given=exported,
        also=in_cluster,
    ),
    Case(
        "save_results without a model that could not be made",
        [once(of_run(save_results)), once(of_run(save_results))],
        given=not_exported,
        also=in_cluster,
    ),
    Case(
        "ensure_node_group that settles for the nodes that came",
        [of_cluster(ensure_node_group, node_group="training")],
        given=short_of_nodes,
        also=sizes,
    ),
    Case(
        "stage_data of a run that leases fewer nodes than it wished for",
        [of_run(stage_data)],
        given=leased_fewer,
    ),
    Case(
        "install_plugin that is an add-on",
        [of_cluster(install_plugin, plugin="fsx-csi-driver")],
        given=with_cluster,
    ),
    Case(
        "install_plugin that is applied",
        [of_cluster(install_plugin, plugin="relay")],
        given=without_rights_of_relays,
        also=in_cluster,
    ),
    Case(
        "run_check nodes",
        [of_cluster(run_check, check="nodes")],
        given=with_nodes,
    ),
    Case(
        "run_check storage",
        [once(of_cluster(run_check, check="storage"))],
        given=ready_for_checks,
        also=in_cluster,
    ),
    Case(
        "run_check storage of one node more",
        [once(of_cluster(run_check, check="storage"))],
        given=checked_with_one_node,
        also=in_cluster,
    ),
    Case(
        "stage_data",
        [once(of_run(stage_data))],
        given=ready_for_data,
        also=in_cluster,
    ),
    Case(
        "submit_job",
        [of_run(submit_job)],
        given=ready_for_job,
        also=in_cluster,
    ),
    Case(
        "ensure_job_started",
        [of_run(ensure_job_started)],
        given=submitted,
    ),
    Case(
        "release_run",
        [of_run(release_run)],
        given=sharing,
        also=in_cluster,
    ),
    Case(
        "save_results",
        [once(of_run(save_results)), once(of_run(save_results))],
        given=trained,
        also=in_cluster,
    ),
    Case(
        "leave_unsaved",
        [of_run(leave_unsaved, error={"Error": "SavingFailed", "Cause": "denied"})],
        given=being_saved,
        also=in_cluster,
    ),
    Case(
        "release_job",
        [until_volumes_are_gone(of_cluster(release_job))],
        given=occupied,
        also=in_cluster,
    ),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_step_that_dies_after_a_write_and_is_called_again_ends_as_if_nothing_had_happened(
    play_every_kill: PlayEveryKill, case: Case
):
    play_every_kill(case)

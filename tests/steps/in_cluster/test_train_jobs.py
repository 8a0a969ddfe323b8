"""Guests whose jobs are TrainJobs: kill points of their steps, and jobs in a queue of Kueue.

Kueue is done by hand: what it changes is `suspend`. It also adds a patch to the job by which it
chooses nodes, which the product does not look at.
Source: Kueue, pkg/controller/jobs/trainjob/trainjob_controller.go.
"""

from __future__ import annotations

from collections.abc import Iterator
from shutil import which

import pytest

from stationmaster.domain.errors import RunStopped
from stationmaster.domain.run.events import RunPhase, StopRequested
from stationmaster.local.cluster import LocalCluster
from stationmaster.local.cluster.trainer import NAMESPACE as TRAINER_NAMESPACE
from stationmaster.local.cluster.trainer import trainer_objects
from stationmaster.rendering import train_job
from stationmaster.steps import READY, StepResult
from stationmaster.steps.conclude_run import conclude_run
from stationmaster.steps.ensure_job_started import ensure_job_started
from stationmaster.steps.release_job import release_job
from stationmaster.steps.run_check import run_check
from stationmaster.steps.save_results import save_results
from stationmaster.steps.submit_job import submit_job
from tests.support.aws_fixtures import until
from tests.support.aws_steps import IDLE, Account
from tests.support.cluster_steps import (
    cluster_with,
)
from tests.support.kill_acts import of_cluster, of_run
from tests.support.kill_points import Call, Case, PlayEveryKill
from tests.support.trainer_steps import (
    admit,
    checked,
    occupied,
    of_guest,
    queued,
    ready_for_job,
    ready_for_queue,
    submit_to_queue,
    training,
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A cluster with Trainer and JobSet, whose only node takes no other pods."""
    objects = trainer_objects()
    names = [each["metadata"]["name"] for each in objects if each["kind"] == "Deployment"]
    programs, shared = (tmp_path_factory.mktemp(name) for name in ("programs", "shared"))
    torchrun = programs / "torchrun"
    torchrun.write_text(f"#!/bin/sh\nexec {which('sleep')} 3600\n")
    torchrun.chmod(0o755)
    with cluster_with(
        tmp_path_factory.mktemp("cluster"),
        objects,
        deployments=dict.fromkeys(names, TRAINER_NAMESPACE),
        programs=str(programs),
        shared=shared,
    ) as started:
        yield started


SPEED = IDLE
TRAIN_JOBS = "/apis/trainer.kubeflow.org/v1alpha1/trainjobs"
RUNTIMES = "/apis/trainer.kubeflow.org/v1alpha1/trainingruntimes"


def until_gone(step: Call, left: Call) -> Call:
    """One call deletes all; what the cluster takes longer for is gone a moment later."""

    def call(account: Account) -> StepResult:
        step(account)
        until(lambda: not left(account))
        return READY

    return call


def volumes(account: Account) -> list[str]:
    return of_guest(account)["/api/v1/persistentvolumes"]


CASES = (
    Case("submit_job", [of_run(submit_job)], given=ready_for_job, also=of_guest),
    Case("submit_job to a queue", [of_run(submit_job)], given=ready_for_queue, also=of_guest),
    Case("ensure_job_started of a queued job", [of_run(ensure_job_started)], given=queued),
    Case(
        "release_job",
        [until_gone(of_cluster(release_job), volumes)],
        given=occupied,
        also=of_guest,
    ),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_step_that_dies_after_a_write_and_is_called_again_ends_as_if_nothing_had_happened(
    play_every_kill: PlayEveryKill, case: Case
):
    play_every_kill(case)


@pytest.mark.parametrize(
    ("given", "step", "stay"),
    [
        (checked, of_cluster(run_check, check="network"), 0),
        (training, of_run(save_results), 1),  # the check's
        (occupied, of_cluster(release_job), 0),
    ],
    ids=["check", "saving", "teardown"],
)
def test_runtime_that_a_call_before_has_left_goes_with_the_next_one(
    account: Account, given: Call, step: Call, stay: int
):
    """A call that dies between the two parts of a job has deleted the first."""
    given(account)
    before = of_guest(account)[RUNTIMES]
    gateway = account.services.kubernetes(account.cluster_id)
    for name in (account.run_id, f"{account.cluster_id}-nw-0"):
        gateway.delete(train_job.API_VERSION, train_job.KIND, name=name)

    step(account)

    assert len(before) > len(of_guest(account)[RUNTIMES]) == stay


def test_submission_that_is_repeated_does_not_suspend_an_admitted_job_again(account: Account):
    ready_for_queue(account)
    submit_to_queue(account)
    gateway = account.services.kubernetes(account.cluster_id)
    assert gateway.job(account.run_id).suspended
    assert ensure_job_started(account.services, account.run_id) == {"ready": False}

    admit(account)
    submit_job(account.services, account.run_id)

    assert not gateway.job(account.run_id).suspended


def test_job_that_is_stopped_in_its_queue_leaves_nothing_but_what_is_kueues(account: Account):
    queued(account)
    assert ensure_job_started(account.services, account.run_id) == READY
    account.happen(StopRequested, user_id="U1")
    stopped = {"Error": "RunStopped", "Cause": ""}

    with pytest.raises(RunStopped, match="stopped by U1"):
        ensure_job_started(account.services, account.run_id)
    saved = save_results(account.services, account.run_id, error=stopped)
    conclude_run(account.services, account.run_id, error=stopped)
    release_job(account.services, account.cluster_id)

    assert (saved, account.run.phase) == (READY, RunPhase.STOPPED)
    found = of_guest(account)
    assert (found[RUNTIMES], found[TRAIN_JOBS], found["/apis/apps/v1/deployments"]) == ([], [], [])

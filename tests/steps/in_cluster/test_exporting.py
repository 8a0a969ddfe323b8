"""A model is made of another framework's checkpoint before its result is saved: each look alone."""

from __future__ import annotations

import pytest

from stationmaster.commands import stop_run
from stationmaster.commands.permitting import Actor
from stationmaster.domain.datasets import Preparation
from stationmaster.domain.errors import NotPossibleNow
from stationmaster.domain.reactions.ending import outcome_of
from stationmaster.domain.run import events as ev
from stationmaster.rendering.metadata import run_labels
from stationmaster.steps.leave_unsaved import leave_unsaved
from stationmaster.steps.save_results import save_results
from tests.support.aws_fixtures import until
from tests.support.aws_steps import IDLE, Account
from tests.support.cluster_steps import (
    MEGATRON,
    end_job,
    jobs_of_run,
    patch_job,
    read_job,
    running_pod,
    succeeded,
)

SPEED = IDLE


@pytest.fixture(name="exporting")
def account_that_exports(account: Account) -> Account:
    """A run of Megatron-LM whose export was started."""
    succeeded(account, **MEGATRON)
    assert not saves(account)
    return account


def saves(account: Account) -> bool:
    return save_results(account.services, account.run_id)["ready"]


def test_result_of_a_framework_is_saved_after_its_model_was_made(exporting: Account):
    assert jobs_of_run(exporting, "export", "save") == ["export"]
    assert not saves(exporting)
    assert jobs_of_run(exporting, "export", "save") == ["export"]

    end_job(exporting, "export", "Complete")
    for _ in range(2):
        assert not saves(exporting)

    assert jobs_of_run(exporting, "export", "save") == ["save"]
    (event,) = exporting.events("results.export_ended")
    assert event.reason == ""


def test_export_is_a_job_of_the_training_image_with_the_keys_of_the_run(exporting: Account):
    job = read_job(exporting, "export")

    (container,) = job.spec.template.spec.containers
    assert container.image == exporting.settings.training_image
    assert container.command == [
        *("python", "-m", "training.frameworks", "megatron-llama3-8b"),
        *("dataset=packed:c4", "steps=20"),
        *("--output-dir", f"/fsx/runs/{exporting.run_id}"),
    ]
    assert not container.volume_mounts[0].read_only


def test_tokenizer_is_the_one_that_the_data_was_made_with(account: Account):
    succeeded(account, **MEGATRON)
    account.happen(
        ev.DataStaged,
        cluster_id=account.cluster_id,
        work="preparing",
        data_id="c4-0123",
        root="c4-0123/files",
        preparation=Preparation.NONE,
        num_files=2,
        num_bytes=9,
        was_there=False,
        seconds=1.0,
    )

    assert not saves(account)

    job = read_job(account, "export")
    (container,) = job.spec.template.spec.containers
    assert container.command[-2:] == ["--tokenizer", "/fsx/data/c4-0123/files/tokenizer"]


def test_export_that_fails_does_not_keep_the_result_from_being_saved(exporting: Account):
    end_job(exporting, "export", "Failed", "the pod failed")

    for _ in range(2):
        assert not saves(exporting)

    assert jobs_of_run(exporting, "export", "save") == ["save"]
    (event,) = exporting.events("results.export_ended")
    assert event.reason == f"Job {exporting.run_id}-export failed: the pod failed"
    assert exporting.run.has_unsaved_results


def test_export_that_does_not_start_in_time_is_given_up_and_the_saver_has_its_own_time(
    exporting: Account,
):
    gateway = exporting.services.kubernetes(exporting.cluster_id)
    until(lambda: gateway.pods(labels=run_labels(exporting.run_id, "exporting")))
    exporting.pass_time()

    assert not saves(exporting)
    until(lambda: gateway.pods(labels=run_labels(exporting.run_id, "saving")))
    assert not saves(exporting)

    assert jobs_of_run(exporting, "export", "save") == ["save"]
    said = exporting.run.export.reason
    assert "-export did not start after 86400 s (limit " in said
    assert " is not scheduled: " in said


def test_export_whose_pod_was_lost_with_its_node_is_not_given_up_as_never_started(
    exporting: Account,
):
    gateway = exporting.services.kubernetes(exporting.cluster_id)
    until(lambda: gateway.pods(labels=run_labels(exporting.run_id, "exporting")))
    patch_job(exporting, "export", {"failed": 1})
    exporting.pass_time()

    assert not saves(exporting)

    assert jobs_of_run(exporting, "export", "save") == ["export"]
    assert exporting.run.export is None


def test_export_that_was_killed_for_its_memory_says_so(exporting: Account):
    dies = [
        "sh",
        "-c",
        "echo 12 weights are written; kill -9 $$$$",
    ]  # $$ is a dollar to the kubelet
    name = running_pod(exporting, "exporting", command=dies, until_phase="Failed")
    end_job(exporting, "export", "Failed", "it has reached the specified backoff limit")

    assert not saves(exporting)

    assert exporting.run.export.reason == (
        f"pod {name} exited with code 137; Job {exporting.run_id}-export failed: it has reached "
        "the specified backoff limit"
    )


def test_stop_that_arrives_during_the_export_changes_nothing(exporting: Account):
    run = exporting.run
    someone = Actor(channel_id=run.request.channel_id, user_id="U2")
    with pytest.raises(NotPossibleNow, match="its results are being saved"):
        stop_run(exporting.services, run.run_id, someone)
    exporting.happen(ev.StopRequested, user_id="U2")  # recorded while the phase changed

    end_job(exporting, "export", "Complete")
    assert not saves(exporting)

    assert jobs_of_run(exporting, "export", "save") == ["save"]
    assert exporting.run.export.reason == ""
    assert outcome_of(exporting.run) is ev.RunPhase.SUCCEEDED


def test_model_is_not_made_again_when_the_result_is_saved_again(exporting: Account):
    end_job(exporting, "export", "Failed", "the pod failed")
    saves(exporting)
    leave_unsaved(exporting.services, exporting.run_id, error={"Error": "SavingFailed"})

    assert not saves(exporting)

    assert len(exporting.events("results.export_ended")) == 1


@pytest.mark.parametrize(
    "run",
    [
        {"recipe": "tiny-llama"},
        MEGATRON | {"program": ("torchrun", "x.py"), "overrides": {}},
        MEGATRON | {"reason": "the loss is nan"},
    ],
    ids=["own-trainer", "command", "failed"],
)
def test_nothing_is_exported_of_other_runs(account: Account, run: dict[str, object]):
    succeeded(account, **run)

    assert not saves(account)

    assert jobs_of_run(account, "export", "save") == ["save"]
    assert account.run.export is None

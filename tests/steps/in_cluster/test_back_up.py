"""A run that trains is backed up by what the recorder does with heartbeats, each look alone."""

from __future__ import annotations

from datetime import timedelta

import pytest

from stationmaster.domain.bus import RelayBatch
from stationmaster.domain.errors import ResultMissing
from stationmaster.domain.keys.backup_every import USUAL_S
from stationmaster.domain.names import LABEL_ROLE, NAMESPACE
from stationmaster.domain.restoring import saved_step
from stationmaster.domain.run import events as ev
from stationmaster.rendering.metadata import run_labels
from stationmaster.steps.record_events import record_batch
from stationmaster.steps.save_results import save_results
from stationmaster.steps.verify_results import verify_results
from tests.support.artifacts_world import BUCKET, SavedRun, save_run
from tests.support.aws_steps import IDLE, Account
from tests.support.cluster_steps import end_job, in_cluster, read_job, trained

SPEED = IDLE
EVERY = timedelta(seconds=USUAL_S)
MINUTE = timedelta(minutes=1)
JOBS = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
CHECKPOINT = {
    "checkpoint/step-00000040/weights.pt": b"weights",
    "checkpoint/step-00000040/complete.json": b"{}",
    "metrics.jsonl": b"{}\n",
}
RUNNING = {"outcome": "running", "checkpoint_source": "tiny-llama-01/step-00000040"}


@pytest.fixture(name="due")
def account_whose_run_is_due(account: Account) -> Account:
    """A run that has trained for as long as its backups are apart, with a checkpoint."""
    trained(account)
    account.happen(ev.CheckpointSaved, step=40)
    account.late += EVERY
    account.happen(ev.ProgressReported, seq=1, step=45, total_steps=99, loss_nats=2.0)
    return account


@pytest.fixture(name="begun")
def account_with_a_backup(due: Account) -> Account:
    """A backup is being made, and a look is due."""
    beats(due)
    due.late += MINUTE
    return due


def beats(account: Account) -> None:
    """The relay reports that the job is still there; the recorder is a new process."""
    account.restart()
    batch = RelayBatch(
        run_id=account.run_id, batch_id="b", at=account.now(), events=[], heartbeat=True
    )
    record_batch(account.services, batch)


def jobs(account: Account) -> list[str]:
    """What of Jobs the run has in the cluster, without the run's own name."""
    names = (name.removeprefix(f"{account.run_id}-") for name in in_cluster(account)[JOBS])
    return [name for name in names if name.startswith(("backup", "save"))]


def bring(account: Account, **facts: object) -> SavedRun:
    return save_run(account.aws.client("s3"), account.run_id, CHECKPOINT, **(RUNNING | facts))


def saved(account: Account) -> Account:
    """A backup of step 40 was saved, verified and recorded."""
    bring(account)
    end_job(account, "backup-1", "Complete")
    beats(account)
    return account


def test_backup_is_begun_once_it_is_due_and_only_once(due: Account):
    due.late -= 2 * MINUTE
    beats(due)
    assert jobs(due) == []

    due.late += 2 * MINUTE
    for _ in range(3):
        beats(due)

    assert jobs(due) == ["backup-1"]
    (event,) = due.events("backup.started")
    assert (event.number, event.step) == (1, 40)
    assert due.events("backup.looked_at") == []


def test_backup_job_is_that_of_the_saver_off_the_training_nodes(due: Account):
    beats(due)

    job = read_job(due, "backup-1")
    container = job.spec.template.spec.containers[0]
    facts = next(each.value for each in container.env if each.name == "STATIONMASTER_RUN_FACTS")
    assert container.command == ["python", "-m", "stationmaster.relay.save"]
    assert '"outcome":"running","step":45' in facts
    assert job.spec.template.metadata.labels[LABEL_ROLE] == "backup"
    assert job.spec.template.spec.tolerations is None


def test_job_that_a_killed_recorder_did_not_start_is_started_by_a_later_look(begun: Account):
    delete_job(begun, 1)
    beats(begun)
    assert jobs(begun) == ["backup-1"]
    assert len(begun.events("backup.started")) == 1


def delete_job(account: Account, number: int) -> None:
    gateway = account.services.kubernetes(account.cluster_id)
    name = f"{account.run_id}-backup-{number}"
    gateway.delete("batch/v1", "Job", name=name, namespace=NAMESPACE)


def test_whole_backup_is_verified_recorded_and_its_job_deleted(begun: Account):
    result = bring(begun)
    end_job(begun, "backup-1", "Complete")

    for _ in range(2):
        beats(begun)

    (event,) = begun.events("backup.saved")
    assert (event.number, event.step, event.num_bytes) == (1, 40, result.manifest.num_bytes)
    assert event.uri == f"s3://{BUCKET}/runs/{begun.run_id}/"
    assert jobs(begun) == []
    assert begun.run.backups.newest is not None


def test_backup_that_is_not_in_the_bucket_as_it_says_has_failed(begun: Account):
    bring(begun).put("metrics.jsonl", b"{?\n")
    end_job(begun, "backup-1", "Complete")

    beats(begun)

    (event,) = begun.events("backup.failed")
    assert "metrics.jsonl has" in event.reason
    assert begun.run.backups.newest is None


def test_result_without_a_checkpoint_is_no_backup(begun: Account):
    bring(begun, checkpoint_source="")
    end_job(begun, "backup-1", "Complete")

    beats(begun)

    assert "has no checkpoint of a run that still trains" in begun.run.backups.failed


def test_failed_backup_is_said_once_and_tried_again_after_a_pause(begun: Account):
    end_job(begun, "backup-1", "Failed", message="the pod failed")
    beats(begun)
    assert begun.run.backups.failed == f"Job {begun.run_id}-backup-1 failed: the pod failed"
    assert jobs(begun) == []

    beats(begun)
    assert jobs(begun) == []
    begun.late += timedelta(minutes=30)
    beats(begun)
    assert jobs(begun) == ["backup-2"]
    end_job(begun, "backup-2", "Failed", message="the pod failed")
    begun.late += MINUTE
    beats(begun)

    assert [event.again for event in begun.events("backup.failed")] == [False, True]


def test_throttled_bucket_is_asked_again_by_the_next_look(begun: Account):
    bring(begun)
    end_job(begun, "backup-1", "Complete")
    begun.aws.inject("s3", "HeadObject", "SlowDown", times=20)
    beats(begun)
    assert begun.run.backups.is_running

    begun.aws.clear_injected()
    begun.late += MINUTE
    beats(begun)

    assert begun.run.backups.newest is not None


def test_cluster_that_does_not_answer_costs_no_heartbeat(due: Account):
    token = "a token"
    due.services.runs.save_task_token(due.run_id, "job", token)
    whole = due.settings
    due.settings = whole.model_copy(update={"kubeconfig": "/nowhere/kubeconfig"})
    due.aws.forget_calls()

    beats(due)

    assert ("states", "SendTaskHeartbeat") in due.aws.calls
    assert len(due.events("backup.started")) == 1

    due.settings = whole
    beats(due)
    assert jobs(due) == []
    due.late += MINUTE
    beats(due)
    assert jobs(due) == ["backup-1"]
    assert len(due.events("backup.started")) == 1


def test_job_that_an_earlier_backup_left_goes_before_the_next_is_looked_at(begun: Account):
    saved(begun)
    begun.happen(ev.CheckpointSaved, step=90)
    begun.late += EVERY
    gateway = begun.services.kubernetes(begun.cluster_id)
    gateway.apply([left_over(begun)])

    beats(begun)

    assert jobs(begun) == ["backup-2"]


def left_over(account: Account) -> dict[str, object]:
    """A Job of the first backup, whose recorder was killed before it deleted it."""
    labels = run_labels(account.run_id, "backup")
    about = {"name": f"{account.run_id}-backup-1", "namespace": NAMESPACE, "labels": labels}
    container = {"name": "c", "image": "image"}
    pod = {"restartPolicy": "Never", "containers": [container]}
    template = {"metadata": {"labels": labels}, "spec": pod}
    spec = {"template": template, "suspend": True}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": about, "spec": spec}


def finished(account: Account) -> None:
    account.happen(ev.JobConditionChanged, condition="Succeeded", reason="JobSucceeded", message="")
    gateway = account.services.kubernetes(account.cluster_id)
    gateway.delete("kubeflow.org/v1", "PyTorchJob", name=account.run_id, namespace=NAMESPACE)


def test_final_save_deletes_the_backup_that_runs_and_none_begins_after_it(begun: Account):
    finished(begun)

    while "save" not in jobs(begun):
        assert not save_results(begun.services, begun.run_id)["ready"]

    assert jobs(begun) == ["save"]
    beats(begun)
    assert jobs(begun) == ["save"]


def test_backup_is_not_taken_for_the_final_result(begun: Account):
    saved(begun)
    finished(begun)
    save_results(begun.services, begun.run_id)

    with pytest.raises(ResultMissing, match=r"has a backup of run .* only, of before its end"):
        verify_results(begun.services, begun.run_id)

    assert begun.run.has_unsaved_results


def test_lost_file_system_leaves_the_newest_backup(begun: Account):
    saved(begun)
    for found in begun.services.file_systems.list_tagged(begun.cluster_id):
        begun.services.file_systems.release(begun.cluster_id, found.file_system_id)
    begun.aws.finish_lifecycles()

    assert save_results(begun.services, begun.run_id)["ready"]

    run = begun.run
    assert run.results_lost.startswith("the file system of cluster")
    assert run.backups.newest is not None
    read = begun.services.artifacts.read(begun.run_id)
    assert saved_step(read.manifest) == run.backups.newest.step == 40

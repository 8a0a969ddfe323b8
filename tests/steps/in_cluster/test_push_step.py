"""The push of a saved model to the hub: each look alone, with what can go wrong."""

from __future__ import annotations

import json

import pytest
from kubernetes import client, config

from stationmaster.domain.errors import TransientError
from stationmaster.domain.names import NAMESPACE
from stationmaster.domain.run import events as ev
from stationmaster.domain.run.events import RunPhase
from stationmaster.steps.begin_teardown import begin_teardown
from stationmaster.steps.conclude_run import conclude_run
from stationmaster.steps.push import push
from stationmaster.steps.verify_results import verify_results
from tests.support.artifacts_world import save_run
from tests.support.aws_steps import IDLE, Account
from tests.support.cluster_steps import (
    MEGATRON,
    end_job,
    furnish,
    jobs_of_run,
    read_job,
    succeeded,
)

SPEED = IDLE
REPOSITORY = "lab/tiny"
FILES = {"model/config.json": b"{}"}


def with_token(account: Account, token: str = "hf_writer") -> None:
    secrets = account.aws.client("secretsmanager")
    text = json.dumps({"token": token})
    try:
        secrets.create_secret(Name="huggingface", SecretString=text)
    except secrets.exceptions.ResourceExistsException:
        secrets.put_secret_value(SecretId="huggingface", SecretString=text)
    account.set(hugging_face_secret_id="huggingface")


def saved(account: Account, *, push_to: str = REPOSITORY, reason: str = "") -> Account:
    """A run whose result is saved, and whose job succeeded unless there is a reason."""
    account.request(push_to=push_to)
    account.enter(RunPhase.VALIDATING, RunPhase.SUBMITTING, RunPhase.RUNNING)
    furnish(account)
    account.happen(ev.TrainingStarted, total_steps=9)
    account.enter(RunPhase.SAVING, reason=reason)
    save_run(account.aws.client("s3"), account.run_id, FILES)
    verify_results(account.services, account.run_id)
    return account


def saved_framework(account: Account, *, reason: str = "") -> Account:
    """A run of Megatron-LM whose result is saved, with a model unless there is a reason."""
    succeeded(account, push_to=REPOSITORY, **MEGATRON)
    account.happen(ev.ExportEnded, reason=reason)
    save_run(account.aws.client("s3"), account.run_id, FILES)
    verify_results(account.services, account.run_id)
    return account


@pytest.fixture(name="pushing")
def account_that_pushes(account: Account) -> Account:
    """A push whose Job was started."""
    with_token(account)
    saved(account)
    assert not pushes(account)
    return account


def pushes(account: Account) -> bool:
    return push(account.services, account.run_id)["ready"]


def test_run_that_asked_for_no_push_is_ready_at_once(account: Account):
    saved(account, push_to="")
    account.aws.forget_calls()

    assert pushes(account)

    assert {service for service, _ in account.aws.calls} == {"dynamodb"}


def test_push_is_a_job_of_the_training_image_that_reads_the_model(pushing: Account):
    job = read_job(pushing, "push")
    with config.new_client_from_config(config_file=pushing.settings.kubeconfig) as api:
        secret = client.CoreV1Api(api).read_namespaced_secret(
            job.spec.template.spec.containers[0].env[-1].value_from.secret_key_ref.name, NAMESPACE
        )

    (container,) = job.spec.template.spec.containers
    assert container.image == pushing.settings.training_image
    assert container.command[3:] == [
        *("--model", f"/fsx/runs/{pushing.run_id}/model"),
        *("--repository", REPOSITORY, "--run-id", pushing.run_id),
    ]
    assert container.volume_mounts[0].read_only
    assert "hf_writer" not in str(job)
    assert len(secret.data) == 1
    assert not pushes(pushing)
    assert jobs_of_run(pushing, "push") == ["push"]


def test_failed_push_is_recorded_and_the_run_still_succeeds(pushing: Account):
    end_job(pushing, "push", "Failed", "the pod failed")

    for _ in range(2):
        assert pushes(pushing)
    conclude_run(pushing.services, pushing.run_id)

    (event,) = pushing.events("results.not_pushed")
    assert event.reason == f"Job {pushing.run_id}-push failed: the pod failed"
    assert event.repository == REPOSITORY
    assert pushing.run.phase is RunPhase.SUCCEEDED
    assert jobs_of_run(pushing, "push") == []


def test_push_whose_pod_is_gone_is_not_said_to_be_done(pushing: Account):
    end_job(pushing, "push", "Complete")

    assert pushes(pushing)

    assert pushing.run.pushed is None
    assert pushing.run.not_pushed == "the push ended, and its log is gone: look at the hub"


def test_run_that_failed_has_nothing_to_push(account: Account):
    with_token(account)
    saved(account, reason="the loss is nan")

    assert pushes(account)

    assert account.run.not_pushed.startswith("the run did not succeed")


def test_token_that_was_taken_away_is_said(account: Account):
    with_token(account, "")
    saved(account)

    assert pushes(account)

    assert account.run.not_pushed == "its cluster has no token of the deployment for the hub"


def test_cluster_that_never_answers_ends_the_run_without_a_push(pushing: Account):
    pushing.aws.inject("eks", "DescribeCluster", "ThrottlingException", times=99)
    pushing.restart()
    with pytest.raises(TransientError):
        pushes(pushing)

    assert conclude_run(pushing.services, pushing.run_id) == {"outcome": "succeeded"}

    assert "its cluster did not answer, while the model was pushed" in pushing.run.not_pushed


def test_teardown_ends_a_run_that_pushes_as_its_job_did(pushing: Account):
    assert pushing.call(begin_teardown)

    assert pushing.run.phase is RunPhase.SUCCEEDED
    assert pushing.run.not_pushed == "its cluster was torn down before the model was pushed"
    assert pushes(pushing)


def test_model_that_was_made_of_a_frameworks_checkpoint_is_pushed(account: Account):
    with_token(account)
    saved_framework(account)

    assert not pushes(account)

    assert jobs_of_run(account, "push") == ["push"]


def test_run_of_a_framework_without_a_model_pushes_nothing_and_says_why(account: Account):
    with_token(account)
    saved_framework(account, reason="the training has diverged")

    assert pushes(account)

    assert jobs_of_run(account, "push") == []
    assert account.run.not_pushed == "no model was made: the training has diverged"

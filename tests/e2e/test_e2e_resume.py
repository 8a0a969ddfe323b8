"""A result that is used by other runs, through the whole product: resumed, and as first weights."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from e2e_world import World, world

from stationmaster.domain.restoring import ResumePoint
from stationmaster.domain.results import results_prefix
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import RunPhase
from stationmaster.local.slack import TRAINING_CHANNEL_ID

KEYS = "nodes=2 schedule=constant warmup_steps=2"


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("resume"), forks=True) as started:
        yield started


@pytest.fixture(scope="module")
def first(local: World) -> Run:
    """A run of six steps, whose cluster and file system are gone."""
    return local.wait_for_receipt(local.start(f"/train tiny-llama {KEYS} steps=6"))


@pytest.fixture(scope="module")
def ended(local: World, first: Run) -> dict[str, Run]:
    """Three runs at once: one goes on, one starts from its model, one trains all of the steps."""
    started = {
        "resumed": local.start("/train resume last steps=+4"),
        "weights": local.start(f"/train tiny-llama nodes=1 steps=2 weights={first.run_id}"),
        "whole": local.start(f"/train tiny-llama {KEYS} steps=10"),
    }
    return {name: local.wait_for_receipt(run_id) for name, run_id in started.items()}


def weights_of(local: World, run: Run) -> bytes:
    """The trained model, as it lies in the bucket."""
    assert local.mode.aws is not None
    found = local.mode.aws.client("s3").get_object(
        Bucket=local.services.settings.artifacts_bucket,
        Key=f"{results_prefix(run.run_id)}model/model.safetensors",
    )
    return found["Body"].read()


def test_resumed_run_leaves_the_model_of_an_uninterrupted_one_bit_by_bit(
    local: World, first: Run, ended: dict[str, Run]
) -> None:
    resumed, whole = ended["resumed"], ended["whole"]

    assert resumed.phase is RunPhase.SUCCEEDED, resumed.reason
    assert resumed.request.resume_from == ResumePoint(run_id=first.run_id, step=6)
    assert (resumed.resumed_from_step, resumed.num_restarts) == (6, 0)
    assert first.loss_points + resumed.loss_points == whole.loss_points
    assert weights_of(local, resumed) == weights_of(local, whole)
    assert weights_of(local, resumed) != weights_of(local, first)


def test_channel_sees_where_a_resumed_run_goes_on(
    local: World, first: Run, ended: dict[str, Run]
) -> None:
    run = ended["resumed"]

    names = run.phase_names
    assert names[names.index("staging") :][:3] == ["staging", "submitting", "running"]
    thread = local.thread_text(run.run_id)
    assert "brought back in" in thread
    assert "training resumed from step 6" in thread
    origin = f"resumes from `{first.run_id}` at step 6"
    cards = [str(message.blocks) for message in local.mode.slack.messages(TRAINING_CHANNEL_ID)]
    assert sum(origin in card for card in cards) == 1


def test_weights_of_a_run_are_trained_on(local: World, first: Run, ended: dict[str, Run]) -> None:
    run = ended["weights"]

    assert run.phase is RunPhase.SUCCEEDED, run.reason
    assert (run.request.weights_from, run.resumed_from_step) == (first.run_id, None)
    assert run.first_loss_nats is not None
    assert first.first_loss_nats is not None
    assert run.first_loss_nats < first.first_loss_nats - 0.5


def test_result_that_was_damaged_in_the_bucket_ends_the_run_before_training(
    local: World, first: Run, ended: dict[str, Run]
) -> None:
    bucket = local.services.settings.artifacts_bucket
    key = f"{results_prefix(first.run_id)}checkpoint/step-00000006/__0_0.distcp"
    assert local.mode.aws is not None
    s3 = local.mode.aws.client("s3")
    data = bytearray(s3.get_object(Bucket=bucket, Key=key)["Body"].read())
    data[len(data) // 2] ^= 1
    s3.put_object(Bucket=bucket, Key=key, Body=bytes(data))

    run = local.wait_for_receipt(local.start(f"/train resume {first.run_id} steps=+4"))

    assert run.phase is RunPhase.FAILED
    assert "the saved result could not be brought back" in run.reason
    assert "__0_0.distcp is damaged: its SHA-256 begins" in run.reason
    assert run.training_started_at is None
    assert local.left(run.run_id) == []

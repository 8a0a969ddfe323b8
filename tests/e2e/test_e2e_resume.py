"""A result that another run goes on from, through the whole product."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e_world import World, world

from stationmaster.domain.restoring import ResumePoint
from stationmaster.domain.results import results_prefix
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import RunPhase

KEYS = "nodes=1 schedule=constant warmup_steps=2"


@pytest.fixture
def local(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path, forks=True) as started:
        yield started


def weights_of(local: World, run: Run) -> bytes:
    """The trained model, as it lies in the bucket."""
    assert local.mode.aws is not None
    found = local.mode.aws.client("s3").get_object(
        Bucket=local.services.settings.artifacts_bucket,
        Key=f"{results_prefix(run.run_id)}model/model.safetensors",
    )
    return found["Body"].read()


def test_resumed_run_leaves_the_model_of_an_uninterrupted_one_bit_by_bit(local: World) -> None:
    first = local.wait_for_receipt(local.start(f"/train tiny-llama {KEYS} steps=6"))
    started = [
        local.start(f"/train {words}")
        for words in ("resume last steps=+4", f"tiny-llama {KEYS} steps=10")
    ]
    resumed, whole = map(local.wait_for_receipt, started)

    assert resumed.phase is RunPhase.SUCCEEDED, resumed.reason
    assert resumed.request.resume_from == ResumePoint(run_id=first.run_id, step=6)
    assert (resumed.resumed_from_step, resumed.num_restarts) == (6, 0)
    assert first.loss_points + resumed.loss_points == whole.loss_points
    assert weights_of(local, resumed) == weights_of(local, whole)
    assert weights_of(local, resumed) != weights_of(local, first)

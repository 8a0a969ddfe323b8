"""Data of a person's own bucket, through the whole product: copied, prepared, trained on."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from typing import Any

import pytest
from e2e_world import World, world
from PIL import Image

from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import DataStaged, RunPhase

BUCKET = "research-data"


def put_text(s3: Any) -> None:
    for number in range(4):
        words = (hashlib.sha256(b"%d" % each).hexdigest() for each in range(2000 * number, 2000))
        text = " ".join(words) or "a short text " * 4000
        s3.put_object(Bucket=BUCKET, Key=f"books/{number}.txt", Body=text.encode())


def put_images(s3: Any) -> None:
    for split in ("train", "val"):
        for label, name in enumerate(("bee", "cat", "dog", "fox")):
            for number in range(8):
                out = io.BytesIO()
                Image.new("RGB", (40, 40), (60 * label, 30 * number, 90)).save(out, "JPEG")
                key = f"animals/{split}/{name}/{number}.jpg"
                s3.put_object(Bucket=BUCKET, Key=key, Body=out.getvalue())


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A local mode whose account has a bucket with data."""
    with world(tmp_path_factory.mktemp("data"), forks=True) as started:
        assert started.mode.aws is not None
        s3 = started.mode.aws.client("s3")
        s3.create_bucket(
            Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": "us-west-2"}
        )
        put_text(s3)
        put_images(s3)
        yield started


@pytest.fixture(scope="module")
def ended(local: World) -> dict[str, Run]:
    """Two runs, side by side, and after the one on a cluster that is kept, another run there."""
    words = f"tiny-llama nodes=2 steps=3 dataset=s3://{BUCKET}/books"
    text = local.start(f"/train {words} keep=10m")
    images = local.start(
        f"/train resnet50 preset=smoke nodes=1 steps=2 dataset=s3://{BUCKET}/animals/"
    )
    wait_for_end(local, text)
    again = local.start(f"/train {words} on={text}")
    wait_for_end(local, again)
    local.wait_for_receipt(images)
    started = {"text": text, "images": images, "again": again}
    return {name: local.services.runs.load(run_id) for name, run_id in started.items()}


def wait_for_end(local: World, run_id: str) -> None:
    """Wait until the run has ended; its cluster may stay."""
    local.wait(
        lambda: any(
            event.run_id == run_id and event.phase.is_terminal
            for event in local.of_type("run.phase_changed")
        ),
        f"the end of {run_id}",
    )


def staged(local: World, run: Run) -> list[DataStaged]:
    return [
        event
        for event in local.of_type("data.staged")
        if isinstance(event, DataStaged) and event.run_id == run.run_id
    ]


def test_text_is_copied_packed_on_all_nodes_and_trained_on(
    local: World, ended: dict[str, Run]
) -> None:
    run = ended["text"]

    assert run.phase is RunPhase.SUCCEEDED, run.reason
    assert run.progress is not None
    assert run.progress.step == 3
    copied, prepared = staged(local, run)
    assert (copied.work, copied.counts) == ("copying", {"files": 4})
    assert (prepared.work, prepared.counts["documents"]) == ("preparing", 4)
    (started,) = [e for e in local.of_type("training.started") if e.run_id == run.run_id]
    assert started.world_size == 2
    names = run.phase_names
    assert names[names.index("staging") :][:3] == ["staging", "submitting", "running"]
    assert "data prepared in" in local.thread_text(run.run_id)


def test_data_is_found_by_a_later_run_on_the_same_file_system(
    local: World, ended: dict[str, Run]
) -> None:
    run = ended["again"]

    assert run.phase is RunPhase.SUCCEEDED, run.reason
    assert run.cluster_id == ended["text"].run_id
    (found,) = staged(local, run)
    assert found.was_there
    assert found.root == staged(local, ended["text"])[-1].root
    assert run.loss_points == ended["text"].loss_points


def test_class_folders_are_counted_and_trained_on(local: World, ended: dict[str, Run]) -> None:
    run = ended["images"]

    assert run.phase is RunPhase.SUCCEEDED, run.reason
    _, prepared = staged(local, run)
    assert prepared.counts == {"classes": 4, "train_images": 32, "validation_images": 32}
    assert prepared.root == f"{staged(local, run)[0].data_id}/files"

"""Data of a person's own bucket, through the whole product: copied or linked, and trained on."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from typing import Any

import pytest
from e2e_world import World, world
from PIL import Image

from stationmaster.domain.resources import ResourceKind
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import DataStaged, DataUnlinked, RunPhase

BUCKET = "research-data"
NUM_IMAGES = 160
WORDS = f"resnet50 preset=smoke steps=2 dataset=s3://{BUCKET}/animals"
# Data this small is sooner copied than linked: here, training may begin later by a link.
LIMITS = {"link_saves_s": -3600.0}


def put_text(s3: Any) -> None:
    for number in range(4):
        words = (hashlib.sha256(b"%d" % each).hexdigest() for each in range(2000 * number, 2000))
        text = " ".join(words) or "a short text " * 4000
        s3.put_object(Bucket=BUCKET, Key=f"books/{number}.txt", Body=text.encode())


def put_images(s3: Any) -> None:
    for number in range(NUM_IMAGES):
        split = "val" if number % 4 == 0 else "train"
        out = io.BytesIO()
        Image.new("RGB", (40, 40), (number, 255 - number, 90)).save(out, "JPEG")
        key = f"animals/{split}/{('bee', 'cat', 'dog', 'fox')[number // 40]}/{number}.jpg"
        s3.put_object(Bucket=BUCKET, Key=key, Body=out.getvalue())


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A local mode whose account has a bucket with data."""
    with world(tmp_path_factory.mktemp("data"), forks=True, limits=LIMITS) as started:
        assert started.mode.aws is not None
        s3 = started.mode.aws.client("s3")
        s3.create_bucket(
            Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": "us-west-2"}
        )
        put_text(s3)
        put_images(s3)
        yield started


def staged(local: World, run: Run) -> list[DataStaged]:
    return [
        event
        for event in local.of_type("data.staged")
        if isinstance(event, DataStaged) and event.run_id == run.run_id
    ]


def test_text_is_copied_packed_on_all_nodes_and_trained_on(local: World) -> None:
    words = f"/train tiny-llama nodes=2 steps=3 dataset=s3://{BUCKET}/books"
    run = local.wait_for_receipt(local.start(words))

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


def written(local: World) -> list[str]:
    """What is asked of S3 that changes data of the team's bucket, or how it is set up."""
    assert local.mode.aws is not None
    s3 = local.mode.aws.client("s3")
    versions = s3.list_objects_v2(Bucket=BUCKET, Prefix="animals/")["KeyCount"]
    assert versions == NUM_IMAGES
    return [
        operation
        for service, operation in local.mode.aws.calls
        if service == "s3" and "Bucket" in operation and not operation.startswith(("List", "Head"))
    ]


def test_images_are_linked_and_trained_on_and_nothing_is_left(local: World) -> None:
    assert local.mode.aws is not None
    s3 = local.mode.aws.client("s3")
    before = s3.list_objects_v2(Bucket=BUCKET)["Contents"]
    local.mode.aws.forget_calls()

    plan = local.type(f"/train plan {WORDS} nodes=2")
    run_id = local.start(f"/train {WORDS} nodes=2")
    run = local.wait_for_receipt(run_id)

    assert "are linked to the file system, not copied" in str(plan.blocks)
    assert run.phase is RunPhase.SUCCEEDED, run.reason
    assert run.progress is not None
    assert run.progress.step == 2
    linked, prepared = staged(local, run)
    assert (linked.work, linked.counts) == ("linking", {"files": NUM_IMAGES})
    assert prepared.counts == {"classes": 4, "train_images": 120, "validation_images": 40}
    assert run.staging is not None
    assert run.staging.linked
    assert "linked, not copied: a copy takes about 1 min" in str(local.card(run_id).blocks)
    assert "Linked because a copy takes about 1 min" in local.thread_text(run_id)
    link = local.cluster(run_id).resource(ResourceKind.DATA_LINK, f"stationmaster-{run_id}")
    assert link is not None
    assert link.resource_id.startswith("dra-")
    assert link.deleted_at is not None
    assert local.left(run_id) == []
    assert s3.list_objects_v2(Bucket=BUCKET)["Contents"] == before
    assert written(local) == []


def test_data_that_fsx_cannot_link_is_copied_and_the_thread_says_why(local: World) -> None:
    assert local.mode.aws is not None
    local.mode.aws.faults.add("data-link-fails")
    try:
        run_id = local.start(f"/train {WORDS} nodes=1")
        run = local.wait_for_receipt(run_id)
    finally:
        local.mode.aws.faults.clear()

    assert run.phase is RunPhase.SUCCEEDED, run.reason
    (unlinked,) = local.of_type("data.unlinked")
    assert isinstance(unlinked, DataUnlinked)
    assert "could not access the S3 bucket" in unlinked.reason
    copied, _ = staged(local, run)
    assert (copied.work, copied.counts) == ("copying", {"files": NUM_IMAGES})
    assert "data is copied, not linked: FSx could not link" in local.thread_text(run_id)
    assert local.left(run_id) == []

"""Saving and loading on one rank, what counts as a checkpoint, and which ones are removed."""

from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_ranks import CONFIGURATION, checkpointer_in

from stationmaster.domain.checkpoints import Manifest, StoredFile, Unusable
from stationmaster.domain.errors import BadParameter, PermanentError
from training.checkpoint import Checkpointer, State
from training.hashed_files import HashedFiles
from training.manifest import (
    again,
    checkpoint_path,
    complete_steps,
    read_manifest,
    remove_incomplete,
    remove_old,
    set_aside,
    write_manifest,
)
from training.parallel import Ranks

BIG = 2**23
"""Elements; copying 32 MiB takes longer than starting to change them."""


def state_of(**model: Any) -> State:
    return {"model": model, "rng": {}, "data": {}}


def save(checkpointer: Checkpointer, step: int, state: State) -> None:
    checkpointer.start_save(step, state, changing=())
    checkpointer.wait_staged()
    assert checkpointer.completed(wait=True) is not None


def test_what_changes_right_after_the_save_does_not_leak_into_it(
    tmp_path: Path, ranks: Ranks
) -> None:
    checkpointer = checkpointer_in(tmp_path, ranks)
    weights, mean = torch.rand(BIG), torch.rand(BIG)
    for step in (1, 2):  # the second into memory of the first, as in a run
        expected = weights.clone(), mean.clone()
        state: State = {
            # Training sees the model's buffer; the state has a view of the same memory.
            "model": {"weights": weights, "mean": mean.detach()},
            "optimizer": {"groups": [{"lr": 0.5}]},
            "rng": {"rank-0": torch.tensor([1])},
            "data": {"rows": [1], "lane": torch.tensor([7])},
        }

        checkpointer.start_save(step, state, changing=[mean])
        mean.neg_()  # by a forward pass
        state["optimizer"]["groups"][0]["lr"] = 0.25
        state["data"]["rows"].append(2)
        state["data"]["lane"].zero_()
        state["rng"]["rank-0"].zero_()
        checkpointer.wait_staged()
        weights.neg_()  # by the optimizer

        saved = checkpointer.completed(wait=True)
        assert saved is not None
        assert 0 < saved.stall_s < saved.duration_s
        state["model"] = {"weights": torch.empty(BIG), "mean": torch.empty(BIG)}
        checkpointer.load(step, state)
        assert all(map(torch.equal, state["model"].values(), expected))
        assert state["optimizer"]["groups"] == [{"lr": 0.5}]
        assert state["data"] == {"rows": [1], "lane": torch.tensor([7])}
        assert state["rng"] == {"rank-0": torch.tensor([1])}


def test_save_during_a_save_completes_both_in_order(tmp_path: Path, ranks: Ranks) -> None:
    checkpointer = checkpointer_in(tmp_path, ranks)
    weights = torch.zeros(BIG)

    checkpointer.start_save(1, state_of(weights=weights), changing=())
    checkpointer.wait_staged()
    weights += 1
    checkpointer.start_save(2, state_of(weights=weights), changing=())
    last = checkpointer.completed(wait=True)

    assert last is not None
    assert last.step == 2
    for step in (1, 2):
        state = state_of(weights=torch.empty(BIG))
        checkpointer.load(step, state)
        assert state["model"]["weights"][-1] == step - 1


def test_resume_with_other_values_names_each_of_them(tmp_path: Path, ranks: Ranks) -> None:
    save(checkpointer_in(tmp_path, ranks), 4, state_of(weights=torch.zeros(1)))
    other = {**CONFIGURATION, "learning_rate": "0.02", "seed": "3"}

    with pytest.raises(BadParameter) as caught:
        checkpointer_in(tmp_path, ranks, configuration=other).newest_complete_step()

    assert str(caught.value) == (
        f"checkpoint {tmp_path / 'step-00000004'} was made with another configuration: "
        "learning_rate is 0.01 there and 0.02 here; seed is absent there and 3 here; give its "
        "values to continue it, or another --output-dir to start from scratch"
    )


def test_start_from_scratch_beside_a_relative_warns_of_what_differs(
    tmp_path: Path, ranks: Ranks, caplog: pytest.LogCaptureFixture
) -> None:
    others = {
        "tiny-llama-aaaaaaaaaaaa": {"learning_rate": "0.02"},
        "tiny-llama-bbbbbbbbbbbb": {"learning_rate": "0.02", "data": "music"},
        "tiny-llama-large-cccccccccccc": {},
    }
    for name, changes in others.items():
        (tmp_path / name).mkdir()
        checkpointer = checkpointer_in(
            tmp_path / name, ranks, configuration=CONFIGURATION | changes
        )
        save(checkpointer, 2, state_of(weights=torch.zeros(1)))

    mine = checkpointer_in(tmp_path / "tiny-llama-dddddddddddd", ranks)
    assert mine.newest_complete_step() is None

    (warning,) = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
    assert "tiny-llama-aaaaaaaaaaaa" in warning
    assert "learning_rate is 0.02 there and 0.01 here" in warning
    assert "music" not in warning


def test_resume_verifies_what_a_killed_save_left_unverified(tmp_path: Path, ranks: Ranks) -> None:
    save(checkpointer_in(tmp_path, ranks), 4, state_of(weights=torch.zeros(1)))
    marker = tmp_path / "step-00000004/complete.json"
    marker.write_text(marker.read_text().replace('"verified": true', '"verified": false'))

    step = checkpointer_in(tmp_path, ranks).newest_complete_step()

    manifest = read_manifest(tmp_path / "step-00000004")
    assert step == 4
    assert isinstance(manifest, Manifest)
    assert manifest.verified


def test_save_on_a_full_disk_says_so(tmp_path: Path, ranks: Ranks) -> None:
    checkpointer = checkpointer_in(tmp_path, ranks)
    (tmp_path / "step-00000001").mkdir()
    (tmp_path / "step-00000001/__0_0.distcp").symlink_to("/dev/full")

    checkpointer.start_save(1, state_of(weights=torch.zeros(BIG)), changing=())

    with pytest.raises(PermanentError) as caught:
        checkpointer.completed(wait=True)
    assert f"No space left on device; the disk of {tmp_path} is full (" in str(caught.value)


def test_disk_that_is_full_in_the_middle_of_a_file_is_named(tmp_path: Path) -> None:
    """torch's archive writer then says only that its position is wrong."""
    files = HashedFiles(rank=0)
    (tmp_path / "full").symlink_to("/dev/full")

    with (
        pytest.raises(OSError, match="No space left on device"),
        files.create_stream(tmp_path / "full", "wb") as stream,
    ):
        torch.save(torch.zeros(BIG), stream)


def test_save_that_cannot_be_written_names_the_directory(tmp_path: Path, ranks: Ranks) -> None:
    checkpointer = checkpointer_in(tmp_path, ranks)
    (tmp_path / "step-00000001").write_text("in the way")
    checkpointer.start_save(1, state_of(weights=torch.zeros(1)), changing=())

    with pytest.raises(PermanentError, match=r"step-00000001 failed: .*File exists.*; check space"):
        checkpointer.start_save(2, state_of(), changing=())


def test_load_of_a_state_with_other_names_says_which(tmp_path: Path, ranks: Ranks) -> None:
    checkpointer = checkpointer_in(tmp_path, ranks)
    save(checkpointer, 1, state_of(weights=torch.zeros(1)))

    with pytest.raises(PermanentError, match=r"does not fit this model: .*model\.biases"):
        checkpointer.load(1, state_of(biases=torch.zeros(1)))


WEIGHTS = b"weights"


def write_checkpoint(directory: Path, step: int, *, verified: bool = True) -> Path:
    path = checkpoint_path(directory, step)
    path.mkdir()
    (path / "__0_0.distcp").write_bytes(WEIGHTS)
    sha256 = hashlib.sha256(WEIGHTS).hexdigest()
    file = StoredFile(size_bytes=len(WEIGHTS), sha256=sha256, rank=0)
    files = {"__0_0.distcp": file}
    manifest = Manifest(step=step, world_size=1, verified=verified, configuration={}, files=files)
    write_manifest(path, manifest)
    return path


@pytest.mark.parametrize(
    ("file", "contents"),
    [("complete.json", ""), ("complete.json", '{"step": 10, "fi'), ("__0_0.distcp", "wei")],
)
def test_complete_steps_unfinished_checkpoint_does_not_count(
    tmp_path: Path, file: str, contents: str
) -> None:
    write_checkpoint(tmp_path, 5)
    newest = write_checkpoint(tmp_path, 10)
    assert complete_steps(tmp_path) == {5, 10}

    (newest / file).write_text(contents)
    assert complete_steps(tmp_path) == {5}
    (newest / file).unlink()
    assert complete_steps(tmp_path) == {5}


def test_again_asks_storage_until_it_answers() -> None:
    paths = iter([Path("/nowhere"), Path("/nowhere"), Path("/dev/null")])

    assert again(lambda: next(paths).read_text()) == ""


def test_remove_old_spares_the_last_verified_one(tmp_path: Path) -> None:
    for step, verified in ((1, True), (2, True), (3, False), (4, False)):
        write_checkpoint(tmp_path, step, verified=verified)

    remove_old(tmp_path, kept=1)

    assert complete_steps(tmp_path) == {2, 4}


def test_remove_old_neither_counts_nor_removes_damaged_ones(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4, 5):
        write_checkpoint(tmp_path, step)
    (tmp_path / "step-00000003/__0_0.distcp").unlink()

    remove_old(tmp_path, kept=1, damaged={4, 5})

    assert sorted(path.name[-1] for path in tmp_path.iterdir()) == ["2", "3", "4", "5"]


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("compressed", True, "is not known"),
        ("files", 0, "is not as expected"),
        ("configuration", None, "is missing"),
    ],
)
def test_read_manifest_of_another_form_names_the_key(
    tmp_path: Path, key: str, value: object, reason: str
) -> None:
    marker = write_checkpoint(tmp_path, 5) / "complete.json"
    contents = json.loads(marker.read_text()) | {key: value}
    marker.write_text(json.dumps({k: v for k, v in contents.items() if v is not None}))

    found = read_manifest(marker.parent)

    assert isinstance(found, Unusable)
    assert found.is_foreign
    assert f'the key "{key}" {reason}' in found.reason


def test_set_aside_keeps_what_was_set_aside_before(tmp_path: Path) -> None:
    names = [set_aside(write_checkpoint(tmp_path, 5)).name for _ in range(3)]

    assert names == [f"step-00000005.damaged{suffix}" for suffix in ("", "-2", "-3")]
    assert sorted(path.name for path in tmp_path.iterdir()) == names


def test_remove_incomplete_spares_everything_else(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, 1)
    (write_checkpoint(tmp_path, 2) / "complete.json").unlink()
    (tmp_path / "huggingface").mkdir()
    (tmp_path / "step-00000003.damaged").mkdir()

    remove_incomplete(tmp_path)

    kept = ["huggingface", "step-00000001", "step-00000003.damaged"]
    assert sorted(path.name for path in tmp_path.iterdir()) == kept

"""What counts as a checkpoint, and which ones are removed."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Literal

import pytest

from training.manifest import (
    Manifest,
    StoredFile,
    checkpoint_path,
    complete_steps,
    first_damage,
    read_manifest,
    remove_incomplete,
    remove_old,
    write_manifest,
)

WEIGHTS = b"weights"


def write_checkpoint(directory: Path, step: int, *, verified: bool = True) -> Path:
    path = checkpoint_path(directory, step)
    path.mkdir()
    (path / "__0_0.distcp").write_bytes(WEIGHTS)
    sha256 = hashlib.sha256(WEIGHTS).hexdigest()
    file = StoredFile(size_bytes=len(WEIGHTS), sha256=sha256, rank=0)
    manifest = Manifest(
        step=step,
        world_size=1,
        verified=verified,
        configuration={},
        files={"__0_0.distcp": file},
    )
    write_manifest(path, manifest)
    return path


Damage = Literal["no marker", "torn marker", "missing file", "short file"]


@pytest.mark.parametrize("damage", ["no marker", "torn marker", "missing file", "short file"])
def test_complete_steps_unfinished_checkpoint_does_not_count(
    tmp_path: Path, damage: Damage
) -> None:
    write_checkpoint(tmp_path, 5)
    newest = write_checkpoint(tmp_path, 10)
    assert complete_steps(tmp_path) == {5, 10}

    match damage:
        case "no marker":
            (newest / "complete.json").unlink()
        case "torn marker":
            (newest / "complete.json").write_text('{"step": 10, "fi')
        case "missing file":
            (newest / "__0_0.distcp").unlink()
        case "short file":
            (newest / "__0_0.distcp").write_bytes(b"wei")

    assert complete_steps(tmp_path) == {5}


@pytest.mark.parametrize("cached", [True, False])
def test_first_damage_tells_other_bytes_of_the_same_size(tmp_path: Path, cached: bool) -> None:
    path = write_checkpoint(tmp_path, 5)
    manifest = read_manifest(path)
    assert manifest is not None
    whole = first_damage(path, manifest, names=manifest.files, cached=cached)

    (path / "__0_0.distcp").write_bytes(b"Weights")

    damage = first_damage(path, manifest, names=manifest.files, cached=cached)
    assert whole == ""
    assert damage.startswith(f"{path / '__0_0.distcp'} is not what was written")


def test_first_damage_tells_a_file_that_is_gone(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, 5)
    manifest = read_manifest(path)
    assert manifest is not None
    (path / "__0_0.distcp").unlink()

    damage = first_damage(path, manifest, names=manifest.files, cached=True)

    assert damage == f"{path / '__0_0.distcp'} cannot be read: No such file or directory"


def test_remove_old_spares_the_last_verified_one(tmp_path: Path) -> None:
    for step, verified in ((1, True), (2, True), (3, False), (4, False)):
        write_checkpoint(tmp_path, step, verified=verified)

    remove_old(tmp_path, kept=1)

    assert complete_steps(tmp_path) == {2, 4}


def test_remove_incomplete_spares_everything_else(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, 1)
    (write_checkpoint(tmp_path, 2) / "complete.json").unlink()
    (tmp_path / "huggingface").mkdir()
    (tmp_path / "step-00000003.damaged").mkdir()

    remove_incomplete(tmp_path)

    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "huggingface",
        "step-00000001",
        "step-00000003.damaged",
    ]

"""What counts as a checkpoint, and which ones are removed."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Literal

import pytest

from stationmaster.domain.checkpoints import Manifest, StoredFile, Unusable
from training.manifest import (
    again,
    checkpoint_path,
    complete_steps,
    first_damage,
    read_manifest,
    remove_incomplete,
    remove_old,
    set_aside,
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
def test_first_damage_finds_other_bytes_of_the_same_size(tmp_path: Path, cached: bool) -> None:
    path = write_checkpoint(tmp_path, 5)
    manifest = read_manifest(path)
    assert isinstance(manifest, Manifest)
    whole = first_damage(path, manifest, names=manifest.files, cached=cached)

    (path / "__0_0.distcp").write_bytes(b"Weights")

    damage = first_damage(path, manifest, names=manifest.files, cached=cached)
    assert whole == ""
    assert damage.startswith(f"{path / '__0_0.distcp'} is not what was written")


def test_again_asks_storage_until_it_answers() -> None:
    answers: list[str | OSError] = [OSError(5, "no"), OSError(5, "no"), "yes", "not asked"]

    def ask() -> str:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    assert again(ask, waits_s=(0.0, 0.0)) == "yes"
    assert answers == ["not asked"]


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
    ("edit", "reason"),
    [
        ({"compressed": True}, 'the key "compressed" is not known'),
        ({"files": None}, 'the key "files" is not as expected'),
        ({}, 'the key "configuration" is missing'),
    ],
)
def test_read_manifest_of_another_form_names_the_key(
    tmp_path: Path, edit: dict[str, object], reason: str
) -> None:
    marker = write_checkpoint(tmp_path, 5) / "complete.json"
    contents = json.loads(marker.read_text()) | edit
    if not edit:
        del contents["configuration"]
    marker.write_text(json.dumps(contents))

    found = read_manifest(marker.parent)

    assert isinstance(found, Unusable)
    assert found.is_foreign
    assert reason in found.reason


def test_set_aside_keeps_what_was_set_aside_before(tmp_path: Path) -> None:
    names = []
    for number in range(3):
        (write_checkpoint(tmp_path, 5) / "number").write_text(str(number))
        names.append(set_aside(tmp_path / "step-00000005").name)

    assert names == [f"step-00000005.damaged{suffix}" for suffix in ("", "-2", "-3")]
    assert [(tmp_path / name / "number").read_text() for name in names] == ["0", "1", "2"]


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

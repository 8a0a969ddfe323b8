"""What makes a directory of files a checkpoint: its manifest, and the files being as it says.

Called by `training.checkpoint` on the ranks that write and resume, and by what reads checkpoints
without training (export). It knows files and names, and nothing of tensors or other ranks.

A checkpoint is a directory `step-XXXXXXXX`. Its manifest, `complete.json`, is renamed into place
after every other file is on the disk, and lists each of them with its size and SHA-256.

    complete   the manifest is there, and every file that it lists, at its size
    verified   complete, and every byte was read back from storage since, and matched its checksum;
               noted in the manifest itself

Whatever is not complete does not count: it is skipped on resume and removed at the next start.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, ValidationError

logger = logging.getLogger(__name__)

_MARKER: Final = "complete.json"
_NAME: Final = re.compile(r"step-(\d{8})")
_FINGERPRINT: Final = r"[0-9a-f]{12}"


class StoredFile(BaseModel):
    """One file of a checkpoint, as it was given to the disk."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    size_bytes: int
    sha256: str
    rank: int
    """Who wrote it; at a resume, rank % world size checks it."""


class Manifest(BaseModel):
    """The contents of `complete.json`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    step: int
    world_size: int
    """Ranks of the run that wrote it; any number may read it."""
    verified: bool
    configuration: dict[str, str]
    """Everything that decides the weights after a given step, by name."""
    files: dict[str, StoredFile]

    @property
    def num_bytes(self) -> int:
        """All files together."""
        return sum(file.size_bytes for file in self.files.values())


def checkpoint_path(directory: Path, step: int) -> Path:
    """Where the checkpoint of a step lies, or would lie."""
    return directory / f"step-{step:08d}"


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Put the manifest of a checkpoint in place, at once or not at all, a power cut included."""
    temporary = path / f".{_MARKER}.tmp"
    with temporary.open("w") as stream:
        stream.write(manifest.model_dump_json(indent=2) + "\n")
        stream.flush()
        os.fsync(stream.fileno())
    temporary.rename(path / _MARKER)
    for folder in (path, path.parent):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)  # names are on the disk, too
        finally:
            os.close(descriptor)


def read_manifest(path: Path) -> Manifest | None:
    """The manifest of a complete checkpoint; None for one that is not complete."""
    try:
        manifest = Manifest.model_validate(json.loads((path / _MARKER).read_text()))
        sizes = {name: (path / name).stat().st_size for name in manifest.files}
    except (FileNotFoundError, NotADirectoryError, json.JSONDecodeError, ValidationError):
        return None
    whole = all(sizes[name] == file.size_bytes for name, file in manifest.files.items())
    return manifest if whole else None


def complete_steps(directory: Path) -> set[int]:
    """Steps that have a complete checkpoint."""
    return {step for step, path in _steps(directory).items() if read_manifest(path)}


def first_damage(path: Path, manifest: Manifest, *, names: Iterable[str], cached: bool) -> str:
    """Read the named files of a checkpoint; tells which of them is not as written, "" when none.

    Without `cached` the files are read from storage, as far as the system lets itself be asked:
    right after writing, memory would only confirm itself.
    """
    for name in names:
        try:
            with (path / name).open("rb") as stream:
                if not cached and hasattr(os, "posix_fadvise"):
                    os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
        except OSError as exc:
            return f"{path / name} cannot be read: {exc.strerror}"
        if sha256 != manifest.files[name].sha256:
            return (
                f"{path / name} is not what was written: its sha256 begins {sha256[:12]}, expected "
                f"{manifest.files[name].sha256[:12]}"
            )
    return ""


def remove_incomplete(directory: Path) -> None:
    """Clear away what earlier starts did not finish writing, or removing."""
    for path in _steps(directory).values():
        if read_manifest(path) is None:
            _remove(path)


def remove_old(directory: Path, *, kept: int) -> None:
    """Remove all but the newest `kept` complete checkpoints, and the newest verified one."""
    found = {step: read_manifest(path) for step, path in _steps(directory).items()}
    complete = {step: manifest for step, manifest in found.items() if manifest}
    keep = set(sorted(complete)[-kept:])
    keep |= set(sorted(step for step, manifest in complete.items() if manifest.verified)[-1:])
    for step in sorted(complete.keys() - keep):
        _remove(checkpoint_path(directory, step))


def set_aside(path: Path) -> Path:
    """Take a damaged checkpoint out of the way, without deleting it; returns where it went.

    The reader may be at fault instead of the file, and a person may save what can be saved. One
    such directory is kept for each step.
    """
    aside = path.with_name(f"{path.name}.damaged")
    shutil.rmtree(aside, ignore_errors=True)
    path.rename(aside)
    return aside


def differences(theirs: Mapping[str, str], ours: Mapping[str, str]) -> list[str]:
    """What differs between two configurations: "key is A there and B here" for each such key."""
    return [
        f"{key} is {theirs.get(key, 'absent')} there and {ours.get(key, 'absent')} here"
        for key in sorted(theirs.keys() | ours.keys())
        if theirs.get(key) != ours.get(key)
    ]


def nearest_relative(
    directory: Path, configuration: Mapping[str, str]
) -> tuple[Path, list[str]] | None:
    """A complete checkpoint of the same recipe under another fingerprint, and what differs.

    Of several the one that differs least. Directories are named RECIPE-FINGERPRINT.
    """
    recipe = directory.name.rpartition("-")[0]
    name = re.compile(rf"{re.escape(recipe)}-{_FINGERPRINT}")
    relatives = []
    for other in directory.parent.iterdir():
        if other == directory or not name.fullmatch(other.name):
            continue
        for step in sorted(complete_steps(other))[-1:]:
            path = checkpoint_path(other, step)
            manifest = read_manifest(path)
            if manifest:
                relatives.append((path, differences(manifest.configuration, configuration)))
    return min(relatives, key=lambda relative: len(relative[1]), default=None)


def _remove(path: Path) -> None:
    # Marker first: a half-removed checkpoint must not pass for a complete one.
    (path / _MARKER).unlink(missing_ok=True)
    shutil.rmtree(path)
    logger.info("checkpoint removed: %s", path)


def _steps(directory: Path) -> dict[int, Path]:
    found = {}
    for path in directory.iterdir():
        match = _NAME.fullmatch(path.name)
        if match and path.is_dir():
            found[int(match[1])] = path
    return found

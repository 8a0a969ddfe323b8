"""What makes a directory of files a checkpoint: its manifest, and the files being as it says.

Called by `training.checkpoint` on the ranks that write and resume, and by what reads checkpoints
without training (export). It knows files and names, and nothing of tensors or other ranks; what a
manifest says is `stationmaster.domain.checkpoints`.

A checkpoint is a directory `step-XXXXXXXX`. Its manifest, `complete.json`, is renamed into place
after every other file is on the disk, and lists each of them with its size and SHA-256.

    complete   the manifest is there, and every file that it lists, at its size
    verified   complete, and every byte was read back from storage since, and matched its checksum;
               noted in the manifest itself

A directory without a manifest was never finished; it is removed at the next start. One that has a
manifest is never removed but by retention, which counts and removes complete ones only: whatever
else has a manifest stays where it is, for a person to look at.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from stationmaster.domain.checkpoints import (
    MARKER,
    Manifest,
    Unusable,
    parse_manifest,
    step_name,
    step_of,
)
from training.files import sync, write_whole

logger = logging.getLogger(__name__)

_FINGERPRINT: Final = r"[0-9a-f]{12}"

# Keys that older checkpoints do not have: nothing can be said about them.
_RECORDED_LATER: Final = {"steps"}

READ_AGAIN_AFTER_S: Final = (1.0, 3.0, 10.0, 30.0)
"""The pauses between attempts to read from storage that does not answer."""

Result = TypeVar("Result")


def checkpoint_path(directory: Path, step: int) -> Path:
    """Return the place of a step's checkpoint, existing or not."""
    return directory / step_name(step)


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Put the manifest of a checkpoint in place, at once or not at all, a power cut included."""
    write_whole(path / MARKER, manifest.model_dump_json(indent=2) + "\n")
    for folder in (path, path.parent):
        sync(folder)  # names are on the disk, too


def read_manifest(path: Path) -> Manifest | Unusable | None:
    """Read the manifest of a complete checkpoint; None for a directory that has none.

    Raises:
        OSError: the storage does not answer; that says nothing about the checkpoint.
    """
    try:
        text = (path / MARKER).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    manifest = parse_manifest(text, marker=str(path / MARKER))
    if isinstance(manifest, Unusable):
        return manifest
    for name, file in manifest.files.items():
        try:
            size_bytes = (path / name).stat().st_size
        except FileNotFoundError:
            return Unusable(f"{path / name} is missing")
        if size_bytes != file.size_bytes:
            return Unusable(f"{path / name} has {size_bytes} of {file.size_bytes} bytes")
    return manifest


def complete_steps(directory: Path) -> set[int]:
    """List the steps that have a complete checkpoint."""
    found = {step: read_manifest(path) for step, path in numbered_steps(directory).items()}
    return {step for step, manifest in found.items() if isinstance(manifest, Manifest)}


def first_damage(path: Path, manifest: Manifest, *, names: Iterable[str], cached: bool) -> str:
    """Read the named files of a checkpoint; return which of them is not as written, or "".

    Without `cached` the files are read from storage, as far as the system lets itself be asked:
    right after writing, memory would only confirm itself.

    Raises:
        OSError: a file could not be read, however often it was tried.
    """
    for name in names:
        sha256 = again(partial(_sha256, path / name, cached=cached))
        if sha256 != manifest.files[name].sha256:
            return (
                f"{path / name} is not what was written: its sha256 begins {sha256[:12]}, expected "
                f"{manifest.files[name].sha256[:12]}"
            )
    return ""


def num_tries() -> int:
    """Return how often storage is asked before that counts as a failure."""
    return len(READ_AGAIN_AFTER_S) + 1


def again(action: Callable[[], Result]) -> Result:
    """Return what `action` returns; try again after some pauses while storage fails."""
    for wait_s in READ_AGAIN_AFTER_S:
        try:
            return action()
        except OSError as exc:
            logger.warning("storage failed, trying again in %g s: %s", wait_s, exc)
            time.sleep(wait_s)
    return action()


def _sha256(path: Path, *, cached: bool) -> str:
    try:
        with path.open("rb") as stream:
            if not cached and hasattr(os, "posix_fadvise"):
                os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as exc:
        raise OSError(exc.errno, exc.strerror, str(path)) from exc  # reading does not name it


def has_manifest(path: Path) -> bool:
    """Say whether a directory carries a manifest, readable or not.

    Raises:
        OSError: the storage does not answer.
    """
    try:
        (path / MARKER).lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def remove_incomplete(directory: Path) -> None:
    """Remove what earlier starts did not finish writing, or removing."""
    for path in numbered_steps(directory).values():
        if not has_manifest(path):
            _remove(path)


def remove_old(
    directory: Path, *, kept: int, damaged: Collection[int] = (), best: int | None = None
) -> None:
    """Remove all but the newest `kept` complete checkpoints, the newest verified and the best one.

    `damaged` are steps whose files were found to be other than written: they are not counted among
    the kept ones, and not removed.
    """
    found = {step: read_manifest(path) for step, path in numbered_steps(directory).items()}
    complete = {
        step: manifest
        for step, manifest in found.items()
        if isinstance(manifest, Manifest) and step not in damaged
    }
    keep = set(sorted(complete)[-kept:])
    keep |= set(sorted(step for step, manifest in complete.items() if manifest.verified)[-1:])
    for step in sorted(complete.keys() - keep - {best}):
        _remove(checkpoint_path(directory, step))


def set_aside(path: Path) -> Path:
    """Rename a checkpoint out of the way of a new one; return its new place."""
    number = 1
    while True:
        aside = path.with_name(f"{path.name}.damaged" + (f"-{number}" if number > 1 else ""))
        if not os.path.lexists(aside):
            path.rename(aside)
            return aside
        number += 1


def differences(
    theirs: Mapping[str, str], ours: Mapping[str, str], *, but: Collection[str] = ()
) -> list[str]:
    """List what differs, but for some keys: "key is A there and B here"."""
    compared = (theirs.keys() | ours.keys()) - set(but)
    compared -= {key for key in _RECORDED_LATER if key not in theirs}
    return [
        f"{key} is {theirs.get(key, 'absent')} there and {ours.get(key, 'absent')} here"
        for key in sorted(compared)
        if theirs.get(key) != ours.get(key)
    ]


def nearest_relative(
    directory: Path, configuration: Mapping[str, str]
) -> tuple[Path, list[str]] | None:
    """Find a complete checkpoint of the same recipe under another fingerprint, and what differs.

    Of several it is the one that differs least. Directories are named RECIPE-FINGERPRINT.
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
            if isinstance(manifest, Manifest):
                relatives.append((path, differences(manifest.configuration, configuration)))
    return min(relatives, key=lambda relative: len(relative[1]), default=None)


def _remove(path: Path) -> None:
    # Marker first: a half-removed checkpoint must not pass for a complete one.
    (path / MARKER).unlink(missing_ok=True)
    shutil.rmtree(path)
    logger.info("checkpoint removed: %s", path)


def numbered_steps(directory: Path) -> dict[int, Path]:
    """List the directories of checkpoints by step, complete or not."""
    found = {}
    for path in directory.iterdir():
        step = step_of(path.name)
        if step is not None and path.is_dir():
            found[step] = path
    return found

"""Files and directories that are there whole or not at all, and locks between processes.

A process may be killed at any point, and others look on, on any node of a shared file system. What
is begun has a hidden name. On FSx for Lustre locks need the mount option `flock`, which the CSI
driver's default options include. This module must not import torch.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Hold a file lock, which goes with the process; False where another has it and `wait` is off.

    One process holds it of all that see the file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        else:
            yield True


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Name a file to write, which is brought to the disk and replaces `path` after the block.

    Its name ends as that of `path`, which may say that it is compressed.
    """
    begun = path.with_name(f".{path.name}")
    yield begun
    sync(begun)
    begun.replace(path)


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file."""
    with whole_file(path) as begun:
        begun.write_bytes(content.encode() if isinstance(content, str) else content)


def write_json(path: Path, document: Any) -> None:
    """Write a JSON document to a file."""
    write_whole(path, json.dumps(document, indent=2) + "\n")


@contextmanager
def whole_directory(directory: Path) -> Iterator[Path]:
    """Make a directory to write to, which replaces `directory` unless the block raises.

    Two processes must not do so at once.
    """
    directory.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{directory.name}-"
    _remove_all(directory.parent, prefix)  # of a start that was killed
    building = Path(tempfile.mkdtemp(prefix=prefix, dir=directory.parent))
    try:
        yield building
        building.chmod(0o755)
        if directory.exists():
            directory.rename(Path(tempfile.mkdtemp(prefix=prefix, dir=directory.parent)) / "old")
        building.rename(directory)
    finally:
        _remove_all(directory.parent, prefix)


def build_once(directory: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a directory where it is not there; one process does, the others wait."""
    if directory.exists():
        return
    with locked(directory.with_name(f"{directory.name}.lock")):
        if not directory.exists():
            with whole_directory(directory) as building:
                write(building)


def sync(path: Path) -> None:
    """Bring a file, or the names in a directory, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove_all(parent: Path, prefix: str) -> None:
    for left_over in parent.glob(f"{prefix}*"):
        shutil.rmtree(left_over, ignore_errors=True)

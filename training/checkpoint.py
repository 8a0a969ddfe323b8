"""Checkpoints that are either complete or ignored.

Called by the trainer. A checkpoint is a directory `step-XXXXXXXX` of torch.distributed.checkpoint
files, written in the background, plus `complete.json`, which rank 0 adds by an atomic rename after
the files of all ranks are on disk. Whatever lacks that marker, or lacks a file that the marker
lists, does not count: it is skipped on resume and removed at the next start. Checkpoints are
resharded on load, so they may be read by another number of ranks.

`directory` must be visible to all nodes. This module must not know what a step is made of: it
stores the state it is given.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
import time
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save

from stationmaster.domain.errors import PermanentError
from training.parallel import Ranks, from_rank_0

logger = logging.getLogger(__name__)

_MARKER: Final = "complete.json"
_NAME: Final = re.compile(r"step-(\d{8})")
_NOTHING: Final = -1  # over the wire only: "rank 0 found no complete checkpoint"

State = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedCheckpoint:
    """A checkpoint that has just become complete."""

    step: int
    path: Path
    num_bytes: int
    stall_s: float
    """How long training stood still for it."""
    duration_s: float
    """From the start of the save to the marker."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Pending:
    step: int
    path: Path
    future: Future[Any]
    started: float
    stall_s: float


class Checkpointer:
    """Saves and restores the state of one run configuration, one checkpoint at a time."""

    def __init__(self, directory: Path, *, ranks: Ranks, kept: int) -> None:
        self._directory = directory
        self._ranks = ranks
        self._kept = kept
        self._pending: _Pending | None = None
        # Kept, so that every copy goes into the memory of the one before: new memory costs four
        # times the copy. There is never more than one save in progress that reads it.
        self._stager = DefaultStager(
            StagingOptions(
                use_pinned_memory=False,
                use_shared_memory=False,
                use_async_staging=False,
                use_non_blocking_copy=False,
            )
        )
        self.last_step_started: int | None = None

    def newest_complete_step(self) -> int | None:
        """The step to resume from: rank 0 looks and decides, every rank gets its answer.

        Rank 0 also removes what earlier starts left incomplete.
        """
        found = _NOTHING
        if self._ranks.rank == 0:
            self._directory.mkdir(parents=True, exist_ok=True)
            complete = complete_steps(self._directory)
            found = max(complete, default=_NOTHING)
            self._remove_all_but(complete)
        step = from_rank_0(found, self._ranks)
        self.last_step_started = None if step == _NOTHING else step
        return None if step == _NOTHING else step

    def load(self, step: int, state: State) -> None:
        """Read a complete checkpoint into `state`, in place, resharding where the ranks differ.

        Keys under "rng" that the checkpoint lacks (it was written by fewer ranks) are left as they
        are.
        """
        path = self.path(step)
        stored = FileSystemReader(path).read_metadata().state_dict_metadata
        absent = [key for key in state["rng"] if f"rng.{key}" not in stored]
        for key in absent:
            del state["rng"][key]
        load(state, checkpoint_id=path, process_group=self._ranks.checkpoint_group)

    def start_save(self, step: int, state: State) -> None:
        """Copy the state and start writing it in the background; training goes on meanwhile.

        Only the copy stalls the caller, unless the previous save is still being written: then that
        one is waited for first, so that slow storage delays training and never piles up copies.

        Raises:
            PermanentError: the previous save failed.
        """
        started = time.monotonic()
        path = self.path(step)
        if self._pending is not None:
            self._await_written(self._pending)
        future = async_save(
            state,
            checkpoint_id=path,
            process_group=self._ranks.checkpoint_group,
            async_stager=self._stager,
        )
        if not isinstance(future, Future):
            raise TypeError(f"async_save returned {type(future).__name__}, expected a Future")
        self.last_step_started = step
        self._pending = _Pending(
            step=step,
            path=path,
            future=future,
            started=started,
            stall_s=time.monotonic() - started,
        )

    def completed(self, *, wait: bool) -> SavedCheckpoint | None:
        """Conclude the save in progress if it is done, or with `wait` as soon as it is.

        Raises:
            PermanentError: the save failed, on this rank or another.
        """
        pending = self._pending
        if pending is None or not (wait or pending.future.done()):
            return None
        self._await_written(pending)
        self._pending = None
        num_bytes = 0
        if self._ranks.rank == 0:
            # The save is collective: rank 0's future is done only after every rank's files are.
            num_bytes = mark_complete(pending.path, step=pending.step)
            complete = complete_steps(self._directory)
            self._remove_all_but(set(sorted(complete)[-self._kept :]))
        return SavedCheckpoint(
            step=pending.step,
            path=pending.path,
            num_bytes=num_bytes,
            stall_s=pending.stall_s,
            duration_s=time.monotonic() - pending.started,
        )

    def _await_written(self, pending: _Pending) -> None:
        try:
            pending.future.result()
        except (CheckpointException, OSError) as exc:
            raise PermanentError(
                f"writing checkpoint {pending.path} failed: {exc}; check space and permissions of "
                f"{self._directory}"
            ) from exc

    def path(self, step: int) -> Path:
        """Where the checkpoint of a step lies, or would lie."""
        return self._directory / f"step-{step:08d}"

    def _remove_all_but(self, steps: set[int]) -> None:
        for step, path in _step_directories(self._directory).items():
            if step not in steps:
                # Marker first: a half-removed checkpoint must not pass for a complete one.
                (path / _MARKER).unlink(missing_ok=True)
                shutil.rmtree(path)
                logger.info("checkpoint removed: %s", path)


def mark_complete(path: Path, *, step: int) -> int:
    """Write the marker of a checkpoint whose files are all there; returns their bytes together."""
    sizes = {file.name: file.stat().st_size for file in sorted(path.iterdir())}
    temporary = path / f".{_MARKER}.tmp"
    temporary.write_text(json.dumps({"step": step, "files": sizes}, indent=2) + "\n")
    temporary.rename(path / _MARKER)
    return sum(sizes.values())


def complete_steps(directory: Path) -> set[int]:
    """Steps whose checkpoint has its marker and every file that the marker lists, at its size."""
    return {step for step, path in _step_directories(directory).items() if _is_complete(path)}


def _is_complete(path: Path) -> bool:
    try:
        files = json.loads((path / _MARKER).read_text())["files"]
        return all((path / name).stat().st_size == size for name, size in files.items())
    except (FileNotFoundError, json.JSONDecodeError, KeyError):
        return False


def _step_directories(directory: Path) -> dict[int, Path]:
    found = {}
    for path in directory.iterdir():
        match = _NAME.fullmatch(path.name)
        if match and path.is_dir():
            found[int(match[1])] = path
    return found

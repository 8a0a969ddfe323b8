"""Checkpoints that are complete and as they were written, or that do not count.

Called by `training.build` and the trainer, on every rank. This module must not know what a step is
made of: it stores the state it is given, at the top level a dict of

    "rng", "data"     dicts whose entries belong to ranks: tensors or whatever torch.save takes.
                      A key that several ranks have must mean the same on each; the lowest rank's
                      value is kept. All ranks' entries are stored together, in `ranks.pt`.
    everything else   nested dicts of tensors, DTensors and plain values for
                      torch.distributed.checkpoint, which reshards them on load.

A save goes on in a thread of every rank while training runs: copy (`training.staging`), write and
hash in one pass, manifest (`training.manifest`), read back from storage, remove old checkpoints.
Hashing and reading back are each rank's own work, for the files that it wrote. Nothing is removed
before the new checkpoint was read back.

`directory` must be visible to all nodes, and as trusted as the code: reading it unpickles.
"""

from __future__ import annotations

import copy
import io
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from stationmaster.domain.errors import BadParameter, PermanentError, StationmasterError
from training.hashed_files import HashedFiles, HashingWriter
from training.manifest import (
    Manifest,
    StoredFile,
    checkpoint_path,
    complete_steps,
    differences,
    first_damage,
    nearest_relative,
    read_manifest,
    remove_incomplete,
    remove_old,
    set_aside,
    write_manifest,
)
from training.parallel import Ranks
from training.staging import Stager, Staging

logger = logging.getLogger(__name__)

_OWNED: Final = ("rng", "data")
_OWNED_FILE: Final = "ranks.pt"

State = dict[str, Any]
Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedCheckpoint:
    """A checkpoint that has just been completed and read back."""

    step: int
    path: Path
    num_bytes: int
    stall_s: float
    """How long training stood still for it: in `start_save`, and in `wait_staged`."""
    duration_s: float
    """From the start of the save to the manifest."""


@dataclass(kw_only=True, slots=True)
class _Pending:
    step: int
    started: float
    staging: Staging | None
    future: Future[tuple[int, float]]
    """The checkpoint's bytes, and when its manifest was in place."""
    stall_s: float


class Checkpointer:
    """Saves and restores the state of one run configuration, one checkpoint at a time.

    All ranks make theirs, and call all of its methods but `wait_staged` and `path`, together.
    """

    def __init__(
        self,
        directory: Path,
        *,
        ranks: Ranks,
        kept: int,
        configuration: Mapping[str, str],
        rank_0_only: bool,
    ) -> None:
        """Nothing is read or written yet.

        Args:
            directory: of this configuration alone; named RECIPE-FINGERPRINT.
            ranks: who takes part.
            kept: complete checkpoints that are kept, 1 or more.
            configuration: what decides the weights after a given step, by name.
            rank_0_only: every rank has the whole state (DDP); rank 0 alone copies and writes it.
        """
        if kept < 1:
            raise ValueError(f"kept={kept}, expected 1 or more")
        self._directory = directory
        self._ranks = ranks
        self._kept = kept
        self._configuration = dict(configuration)
        self._group = ranks.checkpoint_group
        self._writers = dist.new_group([0], backend="gloo") if rank_0_only else self._group
        self._is_writer = ranks.rank == 0 or not rank_0_only
        self._stager = Stager(ranks.device)
        # The current device is a thread's own; without it every rank would use the first GPU.
        use_device = (lambda: torch.cuda.set_device(ranks.device)) if self._on_gpu else None
        self._thread = ThreadPoolExecutor(
            max_workers=1, thread_name_prefix="checkpoint", initializer=use_device
        )
        self._pending: _Pending | None = None
        self.last_step_started: int | None = None

    def path(self, step: int) -> Path:
        """Where the checkpoint of a step lies, or would lie."""
        return checkpoint_path(self._directory, step)

    def newest_complete_step(self) -> int | None:
        """The step to resume from: of the newest checkpoint that is whole, to the last byte.

        Each rank reads the files that the rank of its number wrote. A checkpoint that is damaged is
        set aside with a warning, and the one before is looked at. What earlier starts left
        incomplete is removed.

        Raises:
            BadParameter: the newest was made with another configuration.
        """
        found = self._from_rank_0(self._find_newest)
        while found is not None:
            damage = self._first_damage(found, cached=True)
            if not damage:
                break
            found = self._from_rank_0(partial(self._skip, found.step, damage))
        step = None if found is None else found.step
        self._from_rank_0(lambda: self._settle(found))
        self.last_step_started = step
        return step

    def load(self, step: int, state: State) -> None:
        """Read the checkpoint that `newest_complete_step` named, by whatever ranks it was written.

        `state` has the shape of a saved one; its tensors are filled in place. `state["data"]`
        becomes the entries of all ranks that wrote. Of the keys under "rng" those remain that are
        stored: as many ranks as wrote get back their generators, so that they go on bit by bit; of
        another number, further ranks keep the generators they have.

        Raises:
            PermanentError: the checkpoint has not got what the state asks for.
        """
        path = self.path(step)
        tensors = {name: part for name, part in state.items() if name not in _OWNED}
        try:
            load(tensors, checkpoint_id=path, process_group=self._group)
        except CheckpointException as exc:
            raise PermanentError(
                f"checkpoint {path} does not fit this model: {_first_cause(exc)}; start from "
                "scratch with another --output-dir"
            ) from exc
        state.update(tensors)
        # Arbitrary objects: torch.distributed.checkpoint's own metadata are a pickle as well.
        owned = torch.load(path / _OWNED_FILE, map_location="cpu", weights_only=False)
        state["rng"] = {key: owned["rng"][key] for key in state["rng"] if key in owned["rng"]}
        state["data"] = owned["data"]

    def start_save(self, step: int, state: State, *, changing: Iterable[torch.Tensor]) -> None:
        """Start to save the state in the background; training may go on up to `wait_staged`.

        If the save before is still being written, that one is waited for first: slow storage delays
        training, and never piles up copies.

        Args:
            step: names the checkpoint.
            state: see the module; tensors must stay as they are until `wait_staged`.
            changing: tensors of the state for which that is not so, because forward passes change
                them: the model's buffers.

        Raises:
            PermanentError: the save before failed.
        """
        started = time.monotonic()
        if self._pending is not None:
            self._await(self._pending)
        owned = copy.deepcopy({name: state[name] for name in _OWNED})
        rest = {name: part for name, part in state.items() if name not in _OWNED}
        staging = self._stager.start(rest, changing=changing) if self._is_writer else None
        self.last_step_started = step
        self._pending = _Pending(
            step=step,
            started=started,
            staging=staging,
            future=self._thread.submit(self._save, step, staging, owned),
            stall_s=time.monotonic() - started,
        )

    def wait_staged(self) -> None:
        """Return when the state of the save in progress is copied; at once when there is none.

        To be called before anything changes the state: right before the optimizer's step.
        """
        if self._pending is not None and self._pending.staging is not None:
            self._pending.stall_s += self._pending.staging.hold()

    def completed(self, *, wait: bool) -> SavedCheckpoint | None:
        """Conclude the save in progress if it is done, or with `wait` as soon as it is.

        Raises:
            PermanentError: the save failed, on this rank or another.
        """
        pending = self._pending
        if pending is None or not (wait or pending.future.done()):
            return None
        num_bytes, ended = self._await(pending)
        self._pending = None
        device_wait_s = pending.staging.device_wait_s() if pending.staging else 0.0
        return SavedCheckpoint(
            step=pending.step,
            path=self.path(pending.step),
            num_bytes=num_bytes,
            stall_s=pending.stall_s + device_wait_s,
            duration_s=ended - pending.started,
        )

    def _await(self, pending: _Pending) -> tuple[int, float]:
        try:
            return pending.future.result()
        except (CheckpointException, OSError) as exc:
            raise PermanentError(
                f"writing checkpoint {self.path(pending.step)} failed: {_first_cause(exc)}; check "
                f"space and permissions of {self._directory}"
            ) from exc

    @property
    def _on_gpu(self) -> bool:
        return self._ranks.device.type == "cuda"

    def _save(self, step: int, staging: Staging | None, owned: State) -> tuple[int, float]:
        """In the thread of every rank: write, complete, read back, make room."""
        files: dict[str, StoredFile] = {}
        path = self.path(step)
        if staging is not None:
            writer = HashingWriter(path, rank=self._ranks.rank)
            save(staging.finish(), storage_writer=writer, process_group=self._writers)
            files = writer.files.stored
        parts: list[Any] | None = [None] * self._ranks.world_size
        parts = parts if self._ranks.rank == 0 else None
        dist.gather_object((files, owned), parts, dst=0, group=self._group)
        manifest = self._from_rank_0(lambda: self._complete(step, parts or []))
        completed = time.monotonic()
        damage = self._first_damage(manifest, cached=False)
        self._from_rank_0(lambda: self._accept(manifest, damage))
        return manifest.num_bytes, completed

    def _complete(self, step: int, parts: list[tuple[dict[str, StoredFile], State]]) -> Manifest:
        """Rank 0: write what belongs to ranks, then the manifest; the checkpoint counts then."""
        path = self.path(step)
        owned: State = {name: {} for name in _OWNED}
        files: dict[str, StoredFile] = {}
        for rank_files, rank_owned in parts:
            files |= rank_files
            owned = {name: rank_owned[name] | entries for name, entries in owned.items()}
        pickled = io.BytesIO()
        torch.save(owned, pickled)
        disk = HashedFiles(rank=0)
        disk.write_whole(path / _OWNED_FILE, pickled.getbuffer())
        manifest = Manifest(
            step=step,
            world_size=self._ranks.world_size,
            verified=False,
            configuration=self._configuration,
            files=files | disk.stored,
        )
        write_manifest(path, manifest)
        return manifest

    def _accept(self, manifest: Manifest, damage: str) -> None:
        """Rank 0: let a checkpoint take the place of older ones, if it was read back well."""
        path = self.path(manifest.step)
        if damage:
            aside = set_aside(path)
            raise PermanentError(
                f"checkpoint {path.name} did not survive being written: {damage}; it is set aside "
                f"as {aside}; check the storage, and start again to continue from the one before"
            )
        write_manifest(path, manifest.model_copy(update={"verified": True}))
        remove_old(self._directory, kept=self._kept)

    def _find_newest(self) -> Manifest | None:
        """Rank 0: the newest complete checkpoint, which must be of this configuration."""
        self._directory.mkdir(parents=True, exist_ok=True)
        step = max(complete_steps(self._directory), default=None)
        if step is None:
            self._warn_of_relatives()
            return None
        manifest = read_manifest(self.path(step))
        assert manifest is not None
        if different := differences(manifest.configuration, self._configuration):
            raise BadParameter(
                f"checkpoint {self.path(step)} was made with another configuration: "
                f"{'; '.join(different)}; give its values to continue it, or another --output-dir "
                "to start from scratch"
            )
        return manifest

    def _warn_of_relatives(self) -> None:
        if relative := nearest_relative(self._directory, self._configuration):
            path, different = relative
            logger.warning(
                "training starts from scratch: %s was made with another configuration: %s",
                path,
                "; ".join(different) or "the same under another name",
            )

    def _skip(self, step: int, damage: str) -> Manifest | None:
        """Rank 0: go back to the checkpoint before a damaged one."""
        aside = set_aside(self.path(step))
        logger.warning(
            "checkpoint of step %d is skipped: %s; it is set aside as %s", step, damage, aside
        )
        return self._find_newest()

    def _settle(self, found: Manifest | None) -> None:
        """Rank 0: note that a checkpoint was read well, and remove what does not count."""
        if found is not None and not found.verified:
            write_manifest(self.path(found.step), found.model_copy(update={"verified": True}))
        remove_incomplete(self._directory)

    def _first_damage(self, manifest: Manifest, *, cached: bool) -> str:
        """Read a checkpoint, each rank its share; the same answer on every rank, "" when whole."""
        rank, world_size = self._ranks.rank, self._ranks.world_size
        share = [n for n, file in manifest.files.items() if file.rank % world_size == rank]
        mine = first_damage(self.path(manifest.step), manifest, names=share, cached=cached)
        everyones = [""] * world_size
        dist.all_gather_object(everyones, mine, group=self._group)
        return next(filter(None, everyones), "")

    def _from_rank_0(self, action: Callable[[], Result]) -> Result:
        """What `action` returns or raises on rank 0, where alone it is called, on every rank."""
        outcome: list[Any] = [None, None]
        if self._ranks.rank == 0:
            try:
                outcome[0] = action()
            except (OSError, StationmasterError) as exc:
                outcome[1] = exc
        dist.broadcast_object_list(outcome, src=0, group=self._group)
        result, error = outcome
        if error is not None:
            raise error
        return cast("Result", result)


def _first_cause(error: BaseException) -> str:
    """The first rank's error in one line."""
    if isinstance(error, CheckpointException) and error.failures:
        failure = error.failures[min(error.failures)]
        error = failure[0] if isinstance(failure, tuple) else failure
    return str(error).splitlines()[0] if str(error) else type(error).__name__

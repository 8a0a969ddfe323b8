"""Checkpoints that are complete and as they were written, or that do not count.

Called by `training.build` and the trainer, on every rank. This module must not know what a step is
made of: it stores the state it is given, at the top level a dict of

    "rng", "data"     dicts whose entries belong to ranks: tensors, numbers and texts.
                      A key that several ranks have must mean the same on each; the lowest rank's
                      value is kept. All ranks' entries are stored together, in `ranks.pt`.
    everything else   nested dicts of tensors, DTensors and plain values for
                      torch.distributed.checkpoint, which reshards them on load.

A save runs in a thread of every rank while training runs: copy (`training.host_copies`), write and
hash in one pass, manifest (`training.manifest`), read back from storage, remove old checkpoints.
Hashing and reading back are each rank's own work, for the files that it wrote. Nothing is removed
before the new checkpoint was read back.

`directory` must be visible to all nodes. Nothing that is read there is run.
"""

from __future__ import annotations

import copy
import io
import logging
import shutil
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from stationmaster.domain.checkpoints import Manifest, StoredFile
from stationmaster.domain.errors import PermanentError
from stationmaster.domain.full_disk import is_disk_full
from stationmaster.domain.progress_lines import EvaluatedLine
from training.agreement import damage_of, from_rank_0, on_every_rank
from training.evaluation import read_best, write_best
from training.hashed_files import HashedFiles, HashingWriter
from training.host_copies import Stager, Staging
from training.manifest import (
    again,
    checkpoint_path,
    num_tries,
    remove_old,
    write_manifest,
)
from training.parallel import Ranks
from training.resume import ResumeSearch
from training.stored_index import PlainPlanner, StoredReader, read_plain

logger = logging.getLogger(__name__)

_OWNED: Final = ("rng", "data")
_OWNED_FILE: Final = "ranks.pt"

State = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedCheckpoint:
    """A checkpoint that has just been completed and read back."""

    step: int
    path: Path
    num_bytes: int
    stall_s: float
    """The seconds for which training stood still: in `start_save`, and in `wait_staged`."""
    duration_s: float
    """The seconds from the start of the save to the manifest."""


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
        """Prepare without reading or writing anything.

        Args:
            directory: of this configuration alone; named RECIPE-FINGERPRINT.
            ranks: who takes part.
            kept: complete checkpoints that are kept, 1 or more.
            configuration: what decides the weights after a given step, by name.
            rank_0_only: every rank has the whole state (DDP); rank 0 alone copies and writes it.
        """
        self._directory = directory
        self._ranks = ranks
        self._kept = kept
        self._configuration = dict(configuration)
        self._search = ResumeSearch(directory, configuration=self._configuration)
        self._group = ranks.checkpoint_group
        self._writers = _group_of_rank_0(ranks) if rank_0_only else self._group
        self._is_writer = ranks.rank == 0 or not rank_0_only
        self._stager = Stager(ranks.device)
        # The current device is a thread's own; without it every rank would use the first GPU.
        on_gpu = ranks.device.type == "cuda"
        use_device = (lambda: torch.cuda.set_device(ranks.device)) if on_gpu else None
        self._thread = ThreadPoolExecutor(
            max_workers=1, thread_name_prefix="checkpoint", initializer=use_device
        )
        self._pending: _Pending | None = None
        self.last_step_started: int | None = None
        self._to_mark: EvaluatedLine | None = None

    def path(self, step: int) -> Path:
        """Return the place of a step's checkpoint, existing or not."""
        return checkpoint_path(self._directory, step)

    def newest_complete_step(self) -> int | None:
        """Find the step to resume from: of the newest checkpoint that is whole, to the last byte.

        Each rank reads the files that the rank of its number wrote. Damaged ones are skipped, see
        `passed_over`. What earlier starts left without a manifest is removed.

        Raises:
            BadParameter: the newest was made with another configuration.
            PermanentError: there are checkpoints and none can be read, or the storage fails.
        """
        try:
            found = from_rank_0(self._search.find, self._ranks)
            while found is not None:
                damage = self._first_damage(found, cached=True)
                if not damage:
                    break
                found = from_rank_0(partial(self._search.skip, found.step, damage), self._ranks)
            from_rank_0(partial(self._search.settle, found), self._ranks)
        except OSError as exc:
            raise PermanentError(self._unreadable(exc)) from exc
        step = None if found is None else found.step
        self.last_step_started = step
        return step

    @property
    def passed_over(self) -> str:
        """The damaged checkpoints that rank 0's search skipped and left in place; "" for none."""
        return self._search.describe()

    def load(self, step: int, state: State) -> None:
        """Read the checkpoint that `newest_complete_step` named, by whatever ranks it was written.

        `state` has the shape of a saved one; its tensors are filled in place. `state["data"]`
        becomes the entries of all ranks that wrote. Of the keys under "rng" those remain that are
        stored: as many ranks as wrote get back their generators, so that they continue bit by bit;
        of another number, further ranks keep the generators they have.

        Raises:
            PermanentError: the checkpoint has not got what the state asks for.
        """
        path = self.path(step)
        tensors = {name: part for name, part in state.items() if name not in _OWNED}
        try:
            again(lambda: self._load(path, tensors))
            read = partial(read_plain, path / _OWNED_FILE)
            owned = on_every_rank(partial(again, read), self._ranks)
        except OSError as exc:
            raise PermanentError(self._unreadable(exc)) from exc
        state.update(tensors)
        state["rng"] = {key: owned["rng"][key] for key in state["rng"] if key in owned["rng"]}
        state["data"] = owned["data"]

    def _load(self, path: Path, tensors: State) -> None:
        """Fill the tensors. All ranks get the same error, so that they try again together."""
        try:
            load(
                tensors,
                storage_reader=StoredReader(path),
                planner=PlainPlanner(),
                process_group=self._group,
            )
        except CheckpointException as exc:
            cause = _first_cause(exc)
            if isinstance(cause, OSError):
                raise cause from exc
            raise PermanentError(
                f"checkpoint {path} does not fit this model: {_one_line(cause)}; start from "
                "scratch with another --output-dir"
            ) from exc

    def start_save(self, step: int, state: State, *, changing: Iterable[torch.Tensor]) -> None:
        """Start to save the state in the background; training may continue up to `wait_staged`.

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
        self._mark()
        device_wait_s = pending.staging.device_wait_s() if pending.staging else 0.0
        return SavedCheckpoint(
            step=pending.step,
            path=self.path(pending.step),
            num_bytes=num_bytes,
            stall_s=pending.stall_s + device_wait_s,
            duration_s=ended - pending.started,
        )

    def mark_best(self, evaluation: EvaluatedLine) -> None:
        """Keep the newest checkpoint, of this evaluation, as the best one once it is complete."""
        self._to_mark = evaluation
        if self._pending is None:
            self._mark()

    def _mark(self) -> None:
        if self._to_mark is not None and self._ranks.rank == 0:
            write_best(self._directory, self._to_mark, kept=self._kept)
        self._to_mark = None

    def best(self, *, up_to: int) -> EvaluatedLine | None:
        """Return the evaluation of the best checkpoint of no later step, if that is whole."""
        found = from_rank_0(lambda: again(lambda: read_best(self._directory)), self._ranks)
        if found is None or found[0].step > up_to:
            return None
        if damage := self._first_damage(found[1], cached=True):
            logger.warning("the best checkpoint is lost: %s", damage)
        return None if damage else found[0]

    def _await(self, pending: _Pending) -> tuple[int, float]:
        try:
            return pending.future.result()
        except (CheckpointException, OSError) as exc:
            path, cause = self.path(pending.step), _first_cause(exc)
            advice = f"check space and permissions of {self._directory}"
            if is_disk_full(cause):
                free_gib = shutil.disk_usage(self._directory).free / 2**30
                advice = (
                    f"the disk of {self._directory} is full ({free_gib:.1f} GiB free); make space "
                    "or lower --keep-checkpoints, and start again to continue from the newest one"
                )
            raise PermanentError(
                f"writing checkpoint {path} failed: {_one_line(cause)}; {advice}"
            ) from exc

    def _unreadable(self, error: OSError) -> str:
        return (
            f"reading checkpoints failed, {num_tries()} times: {error}; nothing was deleted and "
            f"training did not start over: check the storage of {self._directory}, then start again"
        )

    def _save(self, step: int, staging: Staging | None, owned: State) -> tuple[int, float]:
        """Write, complete and read back, and make room; in a thread of every rank."""
        files: dict[str, StoredFile] = {}
        path = self.path(step)
        copied = None if staging is None else staging.finish()
        from_rank_0(partial(self._search.make_way, step), self._ranks)
        if copied is not None:
            writer = HashingWriter(path, rank=self._ranks.rank)
            save(copied, storage_writer=writer, process_group=self._writers)
            files = writer.files.stored
        parts: list[Any] | None = [None] * self._ranks.world_size
        parts = parts if self._ranks.rank == 0 else None
        dist.gather_object((files, owned), parts, dst=0, group=self._group)
        manifest = from_rank_0(partial(self._complete, step, parts or []), self._ranks)
        completed = time.monotonic()
        damage = self._first_damage(manifest, cached=False)
        from_rank_0(partial(self._accept, manifest, damage), self._ranks)
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
            raise PermanentError(
                f"checkpoint {path.name} did not survive being written: {damage}; it is left as it "
                "is; check the storage, and start again to continue from the newest whole one"
            )
        write_manifest(path, manifest.model_copy(update={"verified": True}))
        try:
            best = read_best(self._directory)
            step, damaged = best[0].step if best else None, self._search.damaged
            remove_old(self._directory, kept=self._kept, damaged=damaged, best=step)
        except OSError as exc:
            logger.warning("old checkpoints stay until the next save: %s", exc)

    def _first_damage(self, manifest: Manifest, *, cached: bool) -> str:
        return damage_of(self.path(manifest.step), manifest, self._ranks, cached=cached)


def _group_of_rank_0(ranks: Ranks) -> dist.ProcessGroup | None:
    """Make a group for rank 0 alone; None elsewhere.

    Where ranks are bound to GPUs, making a group that leaves ranks out has these split NCCL's
    communicator, which waits for all, and rank 0 does not come: a gloo group needs no split.
    """
    if ranks.rank:
        return None
    return dist.new_group([0], backend="gloo", use_local_synchronization=True)


def _first_cause(error: BaseException) -> BaseException:
    """Return the first rank's own error."""
    if isinstance(error, CheckpointException) and error.failures:
        failure = error.failures[min(error.failures)]
        return failure[0] if isinstance(failure, tuple) else failure
    return error


def _one_line(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__

"""Reads Megatron's checkpoints of the format torch_dist, without Megatron.

torch.distributed.checkpoint writes them, so its own reader finds the bytes. Two things are done
here: the index, a pickle, is read without running what it names, and any part of a tensor is read
without the rest of it, whoever wrote which part.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, ReadItem
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from stationmaster.domain.errors import BadParameter
from training.stored_index import INDEX, read_index


class TorchDistCheckpoint:
    """A checkpoint: the tensors that it has, and parts of them."""

    def __init__(self, directory: Path) -> None:
        """Read the index.

        Raises:
            BadParameter: there is no index, or it is not one of torch.distributed.checkpoint.
            OSError: the file system does not answer.
        """
        self.directory = directory
        self._reader = FileSystemReader(directory)
        metadata = read_index(directory / INDEX)
        self._tensors = {
            key: found
            for key, found in metadata.state_dict_metadata.items()
            if isinstance(found, TensorStorageMetadata)
        }
        self._reader.set_up_storage_reader(metadata, is_coordinator=True)

    def shape(self, key: str) -> tuple[int, ...] | None:
        """Return the shape of a tensor, put together of all parts, or None."""
        found = self._tensors.get(key)
        return tuple(found.size) if found is not None else None

    def read(self, key: str, first: Sequence[int], sizes: Sequence[int]) -> Tensor:
        """Read the part of a tensor that begins at `first`, as it is stored.

        Raises:
            BadParameter: the checkpoint does not have all of it, or its bytes are not readable.
            OSError: the file system does not answer.
        """
        stored = self._tensors[key]
        part = ChunkStorageMetadata(torch.Size(first), torch.Size(sizes))
        items = create_read_items_for_chunk_list(key, stored, [part])
        target = torch.empty(sizes, dtype=stored.properties.dtype)
        found = sum(math.prod(item.lengths) for item in items)
        if found != target.numel():
            raise BadParameter(
                f"{self.directory} has {found:,} of the {target.numel():,} numbers of {key}"
            )
        try:
            self._reader.read_data(LoadPlan(items), _IntoOne(target)).wait()
        except FileNotFoundError as exc:
            raise BadParameter(
                f"{self.directory} has no {Path(exc.filename).name}, which its index names"
            ) from exc
        except (KeyError, RuntimeError, EOFError, pickle.UnpicklingError) as exc:
            reason = (str(exc).strip().splitlines() or [type(exc).__name__])[0][:200]
            raise BadParameter(
                f"{key} cannot be read from {self.directory}: {reason}; the file is damaged or cut "
                "off"
            ) from exc
        return target


class _IntoOne(DefaultLoadPlanner):
    """Puts every piece that the reader finds into one tensor."""

    def __init__(self, target: Tensor) -> None:
        super().__init__()
        self._target = target

    def resolve_tensor(self, read_item: ReadItem) -> Tensor:
        """Return where a piece goes."""
        found = self._target
        for dim, (first, length) in enumerate(
            zip(read_item.dest_offsets, read_item.lengths, strict=True)
        ):
            found = found.narrow(dim, first, length)
        return found

    def commit_tensor(self, read_item: ReadItem, tensor: Tensor) -> None:
        """Leave it: it is there already."""

"""Reads Megatron's checkpoints of the format torch_dist, without Megatron.

Called by `training.frameworks.megatron`. They are written by torch.distributed.checkpoint, so its
own reader finds the bytes. Two things are done here: the index, a pickle, is read without running
what it names, and any part of a tensor is read without the rest of it, whoever wrote which part.
"""

from __future__ import annotations

import io
import math
import pickle
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from stationmaster.domain.errors import BadParameter

INDEX: Final = ".metadata"

# The classes that an index is made of; all of them only hold what they are given.
_INDEX_CLASSES: Final = frozenset(
    {
        ("torch.distributed.checkpoint.metadata", name)
        for name in (
            "BytesStorageMetadata",
            "ChunkStorageMetadata",
            "Metadata",
            "MetadataIndex",
            "StorageMeta",
            "TensorProperties",
            "TensorStorageMetadata",
            "_MEM_FORMAT_ENCODING",
        )
    }
    # Megatron's save leaves what each rank has planned to write.
    | {
        ("torch.distributed.checkpoint.planner", name)
        for name in (
            "BytesIOWriteData",
            "SavePlan",
            "TensorWriteData",
            "WriteItem",
            "WriteItemType",
        )
    }
    | {
        ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
        ("torch.serialization", "_get_layout"),
        ("torch", "Size"),
        ("collections", "OrderedDict"),
        ("pathlib", "Path"),
        ("pathlib", "PosixPath"),
        ("pathlib._local", "PosixPath"),
    }
)


class TorchDistCheckpoint:
    """One checkpoint: the tensors that it has, and parts of them."""

    def __init__(self, directory: Path) -> None:
        """Read the index.

        Raises:
            BadParameter: there is no index, or it is not one of torch.distributed.checkpoint.
            OSError: the file system does not answer.
        """
        self.directory = directory
        self._reader = FileSystemReader(directory)
        self._tensors, metadata = _read_index(directory / INDEX)
        self._reader.set_up_storage_reader(metadata, is_coordinator=True)

    def shape(self, key: str) -> tuple[int, ...] | None:
        """The shape of a tensor, put together of all parts; None where there is none."""
        found = self._tensors.get(key)
        return tuple(found.size) if found is not None else None

    def read(self, key: str, first: Sequence[int], sizes: Sequence[int]) -> Tensor:
        """The part of a tensor that begins at `first`, as it is stored.

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


class _IntoOne(LoadPlanner):
    """Puts every piece that the reader finds into one tensor."""

    def __init__(self, target: Tensor) -> None:
        self._target = target

    def resolve_tensor(self, read_item: ReadItem) -> Tensor:
        """Where a piece goes."""
        found = self._target
        for dim, (first, length) in enumerate(
            zip(read_item.dest_offsets, read_item.lengths, strict=True)
        ):
            found = found.narrow(dim, first, length)
        return found

    def commit_tensor(self, read_item: ReadItem, tensor: Tensor) -> None:
        """It is there already."""

    def set_up_planner(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError("only what is resolved is read")

    def create_local_plan(self) -> LoadPlan:
        raise NotImplementedError("only what is resolved is read")

    def create_global_plan(self, global_plan: list[LoadPlan]) -> list[LoadPlan]:
        raise NotImplementedError("only what is resolved is read")

    def finish_plan(self, central_plan: LoadPlan) -> LoadPlan:
        raise NotImplementedError("only what is resolved is read")

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        raise NotImplementedError("only tensors are read")


def _read_index(path: Path) -> tuple[dict[str, TensorStorageMetadata], Metadata]:
    try:
        with path.open("rb") as opened:
            metadata = _IndexUnpickler(opened).load()
    except FileNotFoundError as exc:
        raise BadParameter(f"{path.parent} has no {path.name}: it is no checkpoint") from exc
    except (pickle.UnpicklingError, EOFError, AttributeError, ValueError, IndexError) as exc:
        raise BadParameter(f"{path} is not an index of a checkpoint: {exc}") from exc
    if not isinstance(metadata, Metadata) or metadata.storage_data is None:
        raise BadParameter(f"{path} is not an index of a checkpoint")
    tensors = {
        key: found
        for key, found in metadata.state_dict_metadata.items()
        if isinstance(found, TensorStorageMetadata)
    }
    return tensors, metadata


class _Unused:
    """In place of a class of Megatron: what it holds is of no use here."""

    def __new__(cls, *args: object, **kwargs: object) -> _Unused:
        return super().__new__(cls)

    def __setstate__(self, state: object) -> None:
        """Forget it."""


def _member(kind: object, name: str) -> Enum:
    """A member of an enumeration, which Python 3.11 and 3.12 pickle with getattr."""
    if not (isinstance(kind, type) and issubclass(kind, Enum)):
        raise pickle.UnpicklingError(f"it asks for {name} of what is no enumeration")
    return kind[name]


class _IndexUnpickler(pickle.Unpickler):
    """Makes the classes of an index, and none that could do anything."""

    def find_class(self, module: str, name: str) -> Any:
        """The class, or the number type, of that name.

        Raises:
            UnpicklingError: it is not one of them.
        """
        if (module, name) in _INDEX_CLASSES:
            return super().find_class(module, name)
        if (module, name) == ("builtins", "getattr"):
            return _member
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if module == "megatron" or module.startswith("megatron."):
            return _Unused
        raise pickle.UnpicklingError(f"it names {module}.{name}, which no index has")

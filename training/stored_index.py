"""Reads what torch.distributed.checkpoint has stored without running anything that it names.

Its index is a pickle, and so is every value that is no tensor: what somebody else has written could
run code.
"""

from __future__ import annotations

import io
import pickle
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar, Final

import torch
from torch.distributed.checkpoint._traverse import set_element
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import ReadItem

from stationmaster.domain.errors import BadParameter

INDEX: Final = ".metadata"

# The classes that an index is made of; all of them only hold what they are given.
_CLASSES: Final = frozenset(
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
# Whatever a damaged or a made-up pickle lets the unpickler, or a constructor, raise.
_UNREADABLE: Final = (
    pickle.UnpicklingError,
    EOFError,
    AttributeError,
    ImportError,
    LookupError,
    TypeError,
    ValueError,
    OverflowError,
    MemoryError,
    RuntimeError,
)


def read_index(path: Path) -> Metadata:
    """Read the index of a checkpoint, by the path of its file.

    Raises:
        BadParameter: there is none, it is damaged, or it names what no index has.
        OSError: the file system does not answer.
    """
    try:
        with path.open("rb") as opened:
            metadata = _IndexUnpickler(opened).load()
    except FileNotFoundError as exc:
        raise BadParameter(f"{path.parent} has no {path.name}: it is no checkpoint") from exc
    except _UNREADABLE as exc:
        why = str(exc) or type(exc).__name__
        raise BadParameter(f"{path} is not an index of a checkpoint: {why}") from exc
    parts = ("state_dict_metadata", "storage_data")
    is_whole = all(isinstance(getattr(metadata, name, None), dict) for name in parts)
    if not (isinstance(metadata, Metadata) and is_whole):
        raise BadParameter(f"{path} is not an index of a checkpoint")
    return metadata


def read_plain(path: Path) -> Any:
    """Read tensors and plain values that `torch.save` has written.

    Raises:
        BadParameter: there is another object in the file.
        OSError: the file system does not answer.
    """
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as exc:
        why = str(exc).partition("\n")[0]
        raise BadParameter(f"{path} has more than tensors and plain values: {why}") from exc


class StoredReader(FileSystemReader):
    """The reader of a checkpoint's directory, with such an index."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        return read_index(Path(self.path) / INDEX)


class PlainPlanner(DefaultLoadPlanner):
    """Loads tensors and plain values: numbers, texts, and lists and dicts of them."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Put a value where it goes.

        Raises:
            UnpicklingError: it is another object.
        """
        place = self.mappings[read_item.dest_index.fqn]
        set_element(self.original_state_dict, place, torch.load(value, weights_only=True))


class _Unused:
    """A stand-in for a class of Megatron: what it holds is of no use here."""

    def __new__(cls, *args: object, **kwargs: object) -> _Unused:
        return super().__new__(cls)

    def __setstate__(self, state: object) -> None:
        """Forget it."""


def _member(kind: object, name: str) -> Enum:
    """Return a member of an enumeration, which Python 3.11 and 3.12 pickle with getattr."""
    if not (isinstance(kind, type) and issubclass(kind, Enum)):
        raise pickle.UnpicklingError(f"it asks for {name} of what is no enumeration")
    return kind[name]


_BUILD: Final[Any] = pickle._Unpickler.dispatch[pickle.BUILD[0]]


class _IndexUnpickler(pickle._Unpickler):
    """Makes the classes of an index, and none that could do anything.

    It is Python's own: the one in C would set attributes of the classes themselves.
    """

    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)
    stack: list[Any]

    def load_build(self) -> None:
        """Give an instance its state.

        Raises:
            UnpicklingError: it is a class or a function, or the state sets more than fields.
        """
        *_, made, state = self.stack
        is_set = isinstance(state, tuple) and not hasattr(type(made), "__setstate__")
        if callable(made) or is_set:
            name = getattr(made, "__qualname__", type(made).__name__)
            raise pickle.UnpicklingError(f"it changes {name}, which no index does")
        _BUILD(self)

    dispatch[pickle.BUILD[0]] = load_build

    def find_class(self, module: str, name: str) -> Any:
        """Return the class, or the number type, of that name.

        Raises:
            UnpicklingError: it is not one of them.
        """
        if (module, name) in _CLASSES:
            return super().find_class(module, name)
        if (module, name) == ("builtins", "getattr"):
            return _member
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if module == "megatron" or module.startswith("megatron."):
            return _Unused
        raise pickle.UnpicklingError(f"it names {module}.{name}, which no index has")

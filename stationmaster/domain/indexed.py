"""Megatron's indexed data set: the layout of `PREFIX.bin` and `PREFIX.idx`. Pure, without numpy.

    PREFIX.bin   the token ids of all documents one after the other, little-endian
    PREFIX.idx   magic, u64 version, u8 type of an id, u64 sequences, u64 documents + 1; then of
                 each sequence its length (int32) and its first byte in the .bin (int64); then
                 where each document's sequences begin (int64), and the end of the last one's

In what is made here every document is one sequence. Source: Megatron-LM core_v0.19.0,
megatron/core/datasets/indexed_dataset.py, `_IndexWriter` and `DType`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from stationmaster.domain.errors import BadParameter

MAGIC: Final = b"MMIDIDX\x00\x00"
VERSION: Final = 1
HEAD: Final = struct.Struct("<9sQBQQ")
# What `training.prepare megatron` writes: PREFIX is this name below the root of the staged data.
DATA_NAME: Final = "text_document"
# Beside it: the directory of the tokenizer that made it.
TOKENIZER_NAME: Final = "tokenizer"
BIN: Final = ".bin"
IDX: Final = ".idx"

INT32: Final = 4
UINT16: Final = 8
ITEM_BYTES: Final[Mapping[int, int]] = MappingProxyType(
    {1: 1, 2: 1, 3: 2, INT32: 4, 5: 8, 6: 8, 7: 4, UINT16: 2}
)
"""Bytes of an id by the number of its type: uint8, int8, int16, int32, int64, float64, float32,
uint16."""

_LENGTH_BYTES: Final = 4
_POINTER_BYTES: Final = 8


def id_type(vocab_size: int) -> int:
    """Return the type that Megatron gives the ids of a vocabulary (`DType.optimal_dtype`)."""
    return UINT16 if vocab_size < 65_500 else INT32


@dataclass(frozen=True, slots=True)
class IndexHead:
    """The first bytes of a `.idx`."""

    id_type: int
    num_sequences: int
    num_documents: int

    def to_bytes(self) -> bytes:
        return HEAD.pack(MAGIC, VERSION, self.id_type, self.num_sequences, self.num_documents + 1)

    @property
    def item_bytes(self) -> int:
        return ITEM_BYTES[self.id_type]

    @property
    def num_bytes(self) -> int:
        pointers = self.num_sequences + self.num_documents + 1
        return HEAD.size + _LENGTH_BYTES * self.num_sequences + _POINTER_BYTES * pointers


def check_indexed(
    name: str, *, bin_bytes: int | None, idx_bytes: int | None, read: Callable[[int, int], bytes]
) -> tuple[IndexHead, int]:
    """Check that the two files of an indexed data set agree; return its head and number of ids.

    Args:
        name: the prefix of the two files, as a person writes it.
        bin_bytes: size of PREFIX.bin; None where there is no such file.
        idx_bytes: size of PREFIX.idx; None where there is no such file.
        read: reads so many bytes of PREFIX.idx from an offset on.

    Raises:
        BadParameter: a file is missing, is no index of version 1, or the sizes do not agree.
    """
    for ending, size in ((BIN, bin_bytes), (IDX, idx_bytes)):
        if size is None:
            raise BadParameter(
                f"{name}{ending} does not exist; an indexed data set of Megatron is two files, "
                f"PREFIX{BIN} and PREFIX{IDX}"
            )
    head = _read_head(read(0, HEAD.size), name=name)
    if idx_bytes != head.num_bytes:
        raise BadParameter(
            f"{name}{IDX} has {idx_bytes:,} bytes, its head says {head.num_bytes:,}; it was not "
            "written to its end: make it again"
        )
    num_ids = _num_ids(head, read)
    if bin_bytes != num_ids * head.item_bytes:
        raise BadParameter(
            f"{name}{BIN} has {bin_bytes:,} bytes, its index says {num_ids * head.item_bytes:,}; "
            "the files are not of one data set, or one was not written to its end: make them again"
        )
    return head, num_ids


def _read_head(data: bytes, *, name: str) -> IndexHead:
    if len(data) == HEAD.size:
        magic, version, number, num_sequences, num_ends = HEAD.unpack(data)
        if (magic, version) == (MAGIC, VERSION) and number in ITEM_BYTES and num_ends:
            return IndexHead(number, num_sequences, num_ends - 1)
    raise BadParameter(
        f"{name}{IDX} is no index of Megatron's indexed data set, version {VERSION}; make it with "
        "Megatron-LM's tools/preprocess_data.py, or name the text itself"
    )


def _num_ids(head: IndexHead, read: Callable[[int, int], bytes]) -> int:
    """Return the end of the last sequence, which is the number of all ids."""
    if head.num_sequences == 0:
        return 0
    last = head.num_sequences - 1
    (length,) = struct.unpack("<i", read(HEAD.size + _LENGTH_BYTES * last, _LENGTH_BYTES))
    pointers = HEAD.size + _LENGTH_BYTES * head.num_sequences
    (pointer,) = struct.unpack("<q", read(pointers + _POINTER_BYTES * last, _POINTER_BYTES))
    return int(pointer) // head.item_bytes + int(length)

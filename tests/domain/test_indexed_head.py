"""The head of Megatron's indexed data set, and files that do not agree with it."""

from __future__ import annotations

import struct

import pytest

from stationmaster.domain.errors import BadParameter
from stationmaster.domain.indexed import INT32, UINT16, check_indexed, id_type

# Three sequences of int32 in two documents, as Megatron writes them.
INDEX = struct.pack("<9sQBQQ3i3q3q", b"MMIDIDX\0\0", 1, 4, 3, 3, 5, 2, 4, 0, 20, 28, 0, 1, 3)
EMPTY = struct.pack("<9sQBQQq", b"MMIDIDX\0\0", 1, 8, 0, 1, 0)


def check(index: bytes, *, bin_bytes: int | None) -> tuple[int, int, int]:
    head, num_ids = check_indexed(
        "/fsx/x",
        bin_bytes=bin_bytes,
        idx_bytes=len(index),
        read=lambda offset, number: index[offset : offset + number],
    )
    return head.num_sequences, head.num_documents, num_ids


def test_counts_are_read_from_both_ends() -> None:
    assert check(INDEX, bin_bytes=44) == (3, 2, 11)
    assert check(EMPTY, bin_bytes=0) == (0, 0, 0)


@pytest.mark.parametrize(
    ("index", "bin_bytes", "said"),
    [
        (INDEX, None, r"/fsx/x\.bin does not exist; .* two files"),
        (INDEX, 40, r"/fsx/x\.bin has 40 bytes, its index says 44"),
        (INDEX[:-8], 44, r"/fsx/x\.idx has 86 bytes, its head says 94"),
        (INDEX[:20], 44, "is no index of Megatron's"),
        (b"MMIDIDY" + INDEX[7:], 44, "is no index of Megatron's"),
        (INDEX[:17] + b"\x09" + INDEX[18:], 44, "is no index of Megatron's"),
        (
            INDEX[:9] + b"\x02" + INDEX[10:],
            44,
            "indexed data set, version 1; make it",
        ),
    ],
)
def test_files_that_do_not_agree_are_refused(
    index: bytes, bin_bytes: int | None, said: str
) -> None:
    with pytest.raises(BadParameter, match=said):
        check(index, bin_bytes=bin_bytes)


def test_ids_are_as_wide_as_megatron_makes_them() -> None:
    assert [id_type(size) for size in (65_499, 65_500, 128_256)] == [UINT16, INT32, INT32]

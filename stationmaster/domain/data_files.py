"""Judges a file of a data set by its name and its first bytes. Pure: nothing here reads.

Names say what a file holds, bytes how it is compressed. Bytes that do not agree with the name are
refused, because a guessed encoding may be data that nobody meant.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Final

COMPRESSED: Final = (".gz", ".bz2", ".xz", ".zst", ".lz4")
JSON_LINES: Final = (".jsonl", ".ndjson", ".json")
TSV: Final = ".tsv"
CSV: Final = (".csv", TSV)
PARQUET: Final = ".parquet"
ARROW: Final = ".arrow"
ROW_FILES: Final = (
    f"{', '.join((*JSON_LINES, *CSV))} (each also with {', '.join(COMPRESSED)}), {PARQUET}, {ARROW}"
)
"""The endings of files of rows, for messages."""
HEAD_BYTES: Final = 4096
"""How many bytes of a file are looked at."""
# How many files a message names.
_NAMED: Final = 3

# Source: RFC 1952, the bzip2, xz, Zstandard (RFC 8878) and LZ4 frame formats. The six digits after
# bzip2's letters begin its first block, or are the end of an empty file: text may begin with "BZh".
_COMPRESSIONS: Final = {
    "gzip": re.compile(rb"\x1f\x8b"),
    "bzip2": re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)"),
    "xz": re.compile(rb"\xfd7zXZ\0"),
    "zstd": re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18"),
    "lz4": re.compile(rb"\x04\x22\x4d\x18"),
}
_PARQUET_HEAD: Final = b"PAR1"
# A file, or a stream, whose first message begins with a length of -1.
_ARROW_HEADS: Final = (b"ARROW1\0\0", b"\xff\xff\xff\xff")
_KINDS: Final[Mapping[str, tuple[bytes, ...]]] = {
    "a zip archive": (b"PK\x03\x04", b"PK\x05\x06"),
    "a PNG picture": (b"\x89PNG",),
    "a JPEG picture": (b"\xff\xd8\xff",),
    "a PDF document": (b"%PDF-",),
    "UTF-16 text": (b"\xff\xfe", b"\xfe\xff"),
    "a parquet file under another name": (_PARQUET_HEAD,),
    "an arrow file under another name": _ARROW_HEADS,
}
_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "an archive": (".tar", ".tgz", ".zip", ".7z", ".rar"),
    "a picture": (".jpg", ".jpeg", ".png", ".gif", ".webp", ".bmp", ".tif", ".tiff"),
    "sound or film": (".mp3", ".wav", ".flac", ".ogg", ".mp4", ".mkv", ".webm"),
    "a document": (".pdf", ".docx", ".xlsx", ".pptx"),
    "arrays or weights": (".npy", ".npz", ".pt", ".pth", ".pkl", ".safetensors", ".bin", ".idx"),
    "a table of a form that is not read": (".avro", ".orc", ".tfrecord", ".h5", ".lance"),
}
_TAR: Final = slice(257, 262)


def uncompressed(name: str) -> str:
    """Return a file's name in small letters, without the ending of a compression."""
    name = PurePath(name).name.lower()
    return name.removesuffix(next((each for each in COMPRESSED if name.endswith(each)), ""))


def is_table(name: str) -> bool:
    """Say whether a file's name is one of a file of rows."""
    lower = name.lower()
    return lower.endswith((PARQUET, ARROW)) or uncompressed(lower).endswith((*JSON_LINES, *CSV))


def compression_of(head: bytes) -> str | None:
    """Return what a file is compressed with, as in `_COMPRESSIONS`; None for none of these."""
    return next((each for each, begins in _COMPRESSIONS.items() if begins.match(head)), None)


def strangeness(name: str, head: bytes | None, *, is_whole: bool = False) -> str:
    """Say why a file can be read as text or as rows in no way; "" for a readable one.

    Args:
        head: its first bytes, uncompressed where the caller can; None where nobody has looked.
        is_whole: whether the head is all of it.
    """
    bare = uncompressed(name)
    for what, endings in _NAMES.items():
        if bare.endswith(endings):
            return what
    if not head or compression_of(head):
        return ""
    if bare.endswith(PARQUET):
        return "" if head.startswith(_PARQUET_HEAD) else "not a parquet file"
    if bare.endswith(ARROW):
        return "" if head.startswith(_ARROW_HEADS) else "not an arrow file"
    for what, begins in _KINDS.items():
        if head.startswith(begins):
            return what
    if head[_TAR] == b"ustar":
        return "a tar archive"
    if b"\0" in head:
        return "binary data"
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head, final=is_whole)
    except UnicodeDecodeError as exc:
        return f"no UTF-8: byte {head[exc.start]:#04x} at {exc.start:,}"
    return ""


def refusal(
    dataset: str,
    names: Sequence[str],
    look: Callable[[Sequence[str]], Iterable[str]],
    *,
    most: int,
) -> str:
    """Write the sentence that refuses a data set with files that cannot be read; "" for none.

    Args:
        dataset: as it was typed.
        names: of its files; all of them are judged.
        look: says what is strange about the first bytes of some of them.
        most: how many are looked into.
    """
    strange = {name: what for name in names if (what := strangeness(name, None))}
    chosen = _worth_looking_into([name for name in names if name not in strange], most=most)
    judged = len(strange) + len(chosen)
    strange |= {name: what for name, what in zip(chosen, look(chosen), strict=True) if what}
    if not strange:
        return ""
    named = [f"{name} is {what}" for name, what in list(strange.items())[:_NAMED]]
    more = f" and {len(strange) - _NAMED:,} more" if len(strange) > _NAMED else ""
    part = f" ({judged:,} were looked at)" if judged < len(names) else ""
    return (
        f'dataset="{dataset}": {len(strange):,} of {len(names):,} files cannot be read as text'
        f"{part}: {'; '.join(named)}{more}; expected UTF-8 text, or files of rows that end in "
        f"{ROW_FILES}; convert or remove them"
    )


def _worth_looking_into(names: Sequence[str], *, most: int) -> list[str]:
    """Choose files that may be text: the first of each ending, then some of the rest."""
    first = {PurePath(name).suffix: name for name in reversed(names)}.values()
    step = max(1, -(-len(names) // most))
    return list(dict.fromkeys([*first, *names[::step]]))[:most]

"""Reads the table of classes of ImageNet's development kit, a MATLAB file, without MATLAB.

Only what that file consists of is understood: one array of structs whose fields are texts and
numbers. Source: MathWorks, "MAT-File Format", version 5; `data/meta.mat` of ILSVRC2012_devkit_t12.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Final

from stationmaster.domain.errors import BadParameter

_HEADER_BYTES: Final = 128
_MATRIX, _COMPRESSED = 14, 15
_STRUCT, _CHAR = 2, 4
_FORMATS: Final = {1: "b", 2: "B", 3: "h", 4: "H", 5: "i", 6: "I", 7: "f", 9: "d", 12: "q", 13: "Q"}
_TEXTS: Final = {4: "utf-16-le", 16: "utf-8", 17: "utf-16-le", 2: "latin-1", 1: "latin-1"}

Value = str | tuple[float, ...] | None


def read_structs(data: bytes) -> list[dict[str, Value]]:
    """Read the rows of the first array of structs in a file, by their fields' names.

    Raises:
        BadParameter: the bytes are no such file.
    """
    try:
        for stored, bytes_stored in _elements(data[_HEADER_BYTES:]):
            kind, content = stored, bytes_stored
            if stored == _COMPRESSED:
                kind, content = next(_elements(zlib.decompress(bytes_stored)))
            if kind == _MATRIX and content and content[8] == _STRUCT:
                return _structs(content)
    except (struct.error, zlib.error, IndexError, StopIteration, UnicodeDecodeError) as exc:
        raise BadParameter(f"not a MATLAB file that is understood: {exc}") from exc
    raise BadParameter("a MATLAB file without an array of structs")


def _elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield type and content of each element, one after the other."""
    at = 0
    while at + 8 <= len(data):
        kind, size = struct.unpack_from("<II", data, at)
        if kind >> 16:  # a small one: its size beside its type, its content in the same 8 bytes
            kind, size = kind & 0xFFFF, kind >> 16
            yield kind, data[at + 4 : at + 4 + size]
            at += 8
            continue
        yield kind, data[at + 8 : at + 8 + size]
        at += 8 + size + (-size % 8 if kind != _COMPRESSED else 0)


def _structs(content: bytes) -> list[dict[str, Value]]:
    parts = _elements(content)
    next(parts)  # flags
    _, dimensions = next(parts)
    next(parts)  # the array's name
    _, width = next(parts)
    _, names = next(parts)
    size = struct.unpack("<i", width)[0]
    fields = [
        names[start : start + size].split(b"\0")[0].decode() for start in range(0, len(names), size)
    ]
    number = 1
    for length in struct.unpack(f"<{len(dimensions) // 4}i", dimensions):
        number *= length
    return [{field: _value(next(parts)[1]) for field in fields} for _ in range(number)]


def _value(content: bytes) -> Value:
    """Read a text or numbers; None for anything else."""
    if not content:
        return None
    parts = list(_elements(content))
    is_text = content[8] == _CHAR
    if len(parts) < 4:
        return "" if is_text else ()
    kind, data = parts[3]
    if is_text:
        return data.decode(_TEXTS[kind])
    if kind not in _FORMATS:
        return None
    form = _FORMATS[kind]
    return struct.unpack(f"<{len(data) // struct.calcsize(form)}{form}", data)

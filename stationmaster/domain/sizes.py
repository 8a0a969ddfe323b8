"""Numbers of bytes and of things as people read them."""

from __future__ import annotations

from typing import Final

_UNITS: Final = ("KiB", "MiB", "GiB", "TiB")


def size_text(num_bytes: int) -> str:
    """Write bytes in three digits and a unit of 1024: "512 B", "1.50 KiB", "13.5 GiB"."""
    if num_bytes < 1024:
        return f"{num_bytes} B"
    size, unit = num_bytes / 1024, _UNITS[0]
    for larger in _UNITS[1:]:
        if size < 1000:
            break
        size, unit = size / 1024, larger
    digits = 2 if size < 9.995 else 1 if size < 99.95 else 0
    return f"{size:.{digits}f} {unit}"


def counted(number: int, noun: str) -> str:
    """Write a number with its noun: "1 node", "2 nodes"; for plurals with an s."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"

"""Looks at files and spoils them, for tests of what is there after a damage."""

from __future__ import annotations

from pathlib import Path


def contents_of(directory: Path) -> dict[str, bytes]:
    """Each file below a directory, by its path in it; links and locks are none."""
    files = (path for path in directory.rglob("*") if path.is_file() and not path.is_symlink())
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in files
        if not path.name.endswith(".lock")
    }


def turn_a_bit(file: Path) -> None:
    """Change one byte in the middle."""
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)

"""A directory in which others write, read without ever following a link.

Whatever ran in the pods may put a link or a pipe in the place of any part of a path at any moment.
So each part is opened by the descriptor of the one before it, which no link can lead away from, and
nothing is waited for.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Final

_NEVER_A_LINK: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
_ABSENT: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})


@dataclass(frozen=True, slots=True)
class Entry:
    """What is at a path below the tree's root."""

    path: str
    status: os.stat_result

    @property
    def is_directory(self) -> bool:
        return stat.S_ISDIR(self.status.st_mode)

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.status.st_mode)


@dataclass(frozen=True, slots=True)
class Tree:
    """A directory that may not exist; the way to it may have links, nothing below has."""

    root: Path

    @contextmanager
    def opened(self, path: str) -> Iterator[FileIO]:
        """Open a file, unbuffered.

        Raises:
            OSError: it is missing, is reached through a link, or is no file.
        """
        parent, _, name = path.rpartition("/")
        with self._directory(parent) as directory:
            descriptor = os.open(name, _NEVER_A_LINK, dir_fd=directory)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError(errno.EINVAL, "not a file")
            with FileIO(descriptor, closefd=False) as stream:
                yield stream
        finally:
            os.close(descriptor)

    def entry(self, path: str) -> Entry | None:
        """Return what is at a path; None where nothing is, or only a link leads to it."""
        parent, _, name = path.rpartition("/")
        with _AbsentIsNothing(), self._directory(parent) as directory:
            return Entry(path, os.stat(name, dir_fd=directory, follow_symlinks=False))
        return None

    def entries(self, path: str) -> list[Entry]:
        """List a directory, by name; empty where there is none, or a link in its place."""
        found: list[Entry] = []
        with _AbsentIsNothing(), self._directory(path) as directory:
            for name in sorted(os.listdir(directory)):
                with _AbsentIsNothing():
                    status = os.stat(name, dir_fd=directory, follow_symlinks=False)
                    found.append(Entry(f"{path}/{name}", status))
        return found

    @contextmanager
    def _directory(self, path: str) -> Iterator[int]:
        """Open the descriptor of a directory; a link on the way is "not a directory"."""
        descriptor = os.open(self.root.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for part in (self.root.name, *filter(None, path.split("/"))):
                below = os.open(part, _NEVER_A_LINK | os.O_DIRECTORY, dir_fd=descriptor)
                os.close(descriptor)
                descriptor = below
            yield descriptor
        finally:
            os.close(descriptor)


class _AbsentIsNothing(AbstractContextManager[None]):
    """Takes what is missing, or is a link, for nothing."""

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> bool:
        return isinstance(error, OSError) and error.errno in _ABSENT

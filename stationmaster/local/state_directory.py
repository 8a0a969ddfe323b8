"""The folder in which one local mode keeps its files: made, marked, locked and emptied here.

A start deletes what an earlier one left, so the folder carries a marker file; one with other
content and without the marker is never touched. The marker is the lock as well: nothing is written
before it is held.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
from pathlib import Path
from typing import Final

MARKER: Final = "stationmaster-local-mode"
_MARKER_TEXT: Final = (
    "The folder around this file belongs to Stationmaster's local mode: each start deletes the\n"
    "pods and file systems in it. Without this file the folder is refused.\n"
)
# What a start writes; it is new each time and says nothing about the runs of an earlier one.
_DISPOSABLE: Final = ("pods", "file-systems")


class StateDirectory:
    """One claimed folder; `release` lets the next local mode have it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None

    def claim(self) -> None:
        """Make the folder ours, or leave it exactly as it is.

        Raises:
            ValueError: it is not a folder, a link, somebody else's, or has other content.
            OSError: it cannot be made or written, or another local mode has it.
        """
        if self.path.is_symlink():
            raise ValueError(
                f"{self.path} is a link to {self.path.readlink()}; give the folder itself as "
                "--state-dir"
            )
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"{self.path} is not a folder; give another --state-dir")
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._check_owner()
        names = os.listdir(self.path)
        if names and MARKER not in names:
            raise ValueError(
                f"{self.path} has other content and was not made by local mode, which deletes "
                "files in its state directory; give a new or an empty folder as --state-dir"
            )
        self._lock_marker()

    def empty(self) -> None:
        """Delete what an earlier start left; the folder is claimed.

        Raises:
            ValueError, OSError: something there is not what a start leaves, or cannot be deleted.
        """
        assert self._lock is not None
        for name in _DISPOSABLE:
            # A link is followed by nobody here: what it leads to was not made by a start.
            if (self.path / name).is_symlink():
                raise ValueError(
                    f"{self.path / name} is a link; local mode makes this folder itself: remove "
                    "the link, or give another --state-dir"
                )
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(self.path / name)
            (self.path / name).mkdir()

    def release(self) -> None:
        """Release the folder; safe to call twice, and without a claim."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _check_owner(self) -> None:
        owner = self.path.stat().st_uid
        if owner != os.geteuid():
            raise ValueError(
                f"{self.path} belongs to user {owner} and you are user {os.geteuid()}; give "
                "another --state-dir"
            )

    def _lock_marker(self) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        marker = os.open(self.path / MARKER, flags, 0o600)
        try:
            fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
            found = os.fstat(marker)
            if not stat.S_ISREG(found.st_mode):
                raise ValueError(f"{self.path / MARKER} is not a file; give another --state-dir")
            if not found.st_size:
                try:
                    os.write(marker, _MARKER_TEXT.encode())
                except OSError as exc:
                    raise OSError(exc.errno, exc.strerror, str(self.path / MARKER)) from exc
        except BlockingIOError as exc:
            os.close(marker)
            raise OSError(
                errno.EWOULDBLOCK,
                f"{self.path} is in use by another local mode; give another --state-dir",
            ) from exc
        except BaseException:
            os.close(marker)
            raise
        self._lock = marker

"""Files that are hashed on their way to the disk: no second read, and no moment in between.

It knows the streams of torch.distributed.checkpoint and nothing of what is in them.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemWriter

from stationmaster.domain.checkpoints import StoredFile


class HashedFiles(FileSystem):
    """The file system of torch.distributed.checkpoint; `stored` lists what went through it."""

    def __init__(self, *, rank: int) -> None:
        self._rank = rank
        self.stored: dict[str, StoredFile] = {}

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[Any]:
        """Open a file; one opened with "wb" is listed once it is closed."""
        with Path(path).open(mode) as file:
            if mode != "wb":
                yield file
                return
            stream = _HashingStream(cast("IO[bytes]", file))
            try:
                yield stream
            except Exception:
                # torch's archive writer hides it: it only says that its position is wrong.
                if stream.error is not None:
                    raise stream.error from None
                raise
        self.stored[Path(path).name] = StoredFile(
            size_bytes=stream.tell(), sha256=stream.sha256.hexdigest(), rank=self._rank
        )

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        """Rename a file, in the list too."""
        super().rename(path, new_path)
        self.stored[Path(new_path).name] = self.stored.pop(Path(path).name)

    def write_whole(self, path: Path, data: memoryview) -> None:
        """Write a file of one piece, and sync it to the disk."""
        with self.create_stream(path, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())


class HashingWriter(FileSystemWriter):
    """Writes a rank's part of a state to one file, and on the first rank the metadata."""

    def __init__(self, path: Path, *, rank: int) -> None:
        super().__init__(path)
        self.files = HashedFiles(rank=rank)
        self.fs = self.files


class _HashingStream:
    """What torch.distributed.checkpoint needs of a file, which it only appends to."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._size_bytes = 0
        self.error: OSError | None = None
        self.sha256 = hashlib.sha256()
        self.flush, self.fileno, self.close = file.flush, file.fileno, file.close

    def write(self, data: bytes | memoryview) -> int:
        """Append all of it; return the number of bytes."""
        self.sha256.update(data)
        try:
            self._file.write(data)
        except OSError as exc:
            self.error = exc
            raise
        self._size_bytes += len(data)
        return len(data)

    def tell(self) -> int:
        """Return the bytes so far."""
        return self._size_bytes

"""Uploads files in parts, several at a time, in bounded memory, and never twice.

Each file is read once, in order, by a thread of its own that hashes it; its parts are hashed and
sent by others. What S3 already holds is compared by size and SHA-256 and left as it is: whole
objects, and parts of an upload that an earlier start began.
"""

from __future__ import annotations

import base64
import hashlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from io import FileIO
from pathlib import Path
from typing import Final

from stationmaster.domain.results import (
    MIB,
    FileHasher,
    ResultFile,
    part_bytes,
    part_sizes,
    s3_checksum,
)
from stationmaster.relay.s3 import NotDone
from stationmaster.relay.saving.bucket import ResultsBucket, StoredPart
from stationmaster.relay.saving.tree import Tree

FILES_AT_ONCE: Final = 4
PARTS_AT_ONCE: Final = 16
# Parts that are read and not yet taken by S3; each part being read comes on top.
MEMORY_BYTES: Final = 192 * 2**20


class FileDamaged(Exception):
    """A file is not what its owner says that it wrote; the message names it."""


class _Cancelled(Exception):
    """Another file failed: there is no point in continuing with this one."""


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A file to save, and its path in the result."""

    tree: Tree
    name: str
    """Its place in the tree."""
    path: str
    num_bytes: int
    sha256: str = ""
    """The SHA-256 that it must have, in hex; "" when nobody has written that down."""
    grows: bool = False
    """Whether lines are still appended to it: then what it had when it was found is saved."""

    @property
    def source(self) -> Path:
        """Its place, for people."""
        return self.tree.root / self.name


class Uploader:
    """Saves files under one run's prefix."""

    def __init__(
        self,
        bucket: ResultsBucket,
        *,
        on_saved: Callable[[int], None],
        memory_bytes: int = MEMORY_BYTES,
    ) -> None:
        """`on_saved` is called from any thread with the number of further bytes that S3 holds."""
        self._bucket = bucket
        self._on_saved = on_saved
        self._memory = _Budget(memory_bytes)
        self._objects: Mapping[str, int] = bucket.objects()
        self._uploads: Mapping[str, str] = bucket.uploads()

    @property
    def stored(self) -> Mapping[str, int]:
        """The bytes of each object that was there when this began, by path."""
        return self._objects

    def upload(self, files: Sequence[LocalFile]) -> list[ResultFile]:
        """Save all files; return what a manifest says of each, in their order.

        Raises:
            FileDamaged: one is not what was written.
            NotDone: one changed while it was read, or S3 did not take it.
            Refused: S3 refuses the saver.
            OSError: one could not be read.
        """
        cancelled = threading.Event()
        with (
            ThreadPoolExecutor(PARTS_AT_ONCE, thread_name_prefix="part") as senders,
            ThreadPoolExecutor(FILES_AT_ONCE, thread_name_prefix="file") as readers,
        ):
            jobs = [readers.submit(self._upload, file, senders, cancelled) for file in files]
        errors = [error for error in (job.exception() for job in jobs) if error is not None]
        for error in errors:
            if not isinstance(error, _Cancelled):
                raise error
        return [job.result() for job in jobs]

    def _upload(
        self, file: LocalFile, senders: ThreadPoolExecutor, cancelled: threading.Event
    ) -> ResultFile:
        with _cancelling(cancelled):
            if self._objects.get(file.path) == file.num_bytes:
                found = _hashed(file, cancelled)
                if self._bucket.checksum(file.path) == found.s3_checksum:
                    self._on_saved(file.num_bytes)
                    return found
            if len(part_sizes(file.num_bytes, part_bytes(file.num_bytes))) == 1:
                return self._in_one(file, cancelled)
            return self._in_parts(file, senders, cancelled)

    def _in_one(self, file: LocalFile, cancelled: threading.Event) -> ResultFile:
        with self._memory.reserved(file.num_bytes):
            with _opened(file) as stream:
                data = _exactly(stream, file.num_bytes, file, cancelled)
            digest = hashlib.sha256(data).digest()
            _compare(file, digest.hex())
            stored = self._bucket.put(file.path, data, digest=digest)
        self._on_saved(file.num_bytes)
        return _agreed(file, digest.hex(), [digest], stored)

    def _in_parts(
        self, file: LocalFile, senders: ThreadPoolExecutor, cancelled: threading.Event
    ) -> ResultFile:
        upload_id, held = self._resumed(file.path)
        whole = hashlib.sha256()
        sent: list[Future[tuple[bytes, StoredPart]]] = []

        def send(number: int, data: bytes) -> tuple[bytes, StoredPart]:
            with _cancelling(cancelled), self._memory.returned(len(data)):
                digest = hashlib.sha256(data).digest()
                stored = StoredPart(len(data), base64.b64encode(digest).decode("ascii"), "")
                known = held.get(number)
                if known is not None and replace(known, etag="") == stored:
                    stored = known
                else:
                    stored = self._bucket.put_part(
                        file.path, upload_id, number=number, data=data, digest=digest
                    )
                self._on_saved(len(data))
                return digest, stored

        try:
            with _opened(file) as stream:
                sizes = part_sizes(file.num_bytes, part_bytes(file.num_bytes))
                for number, size in enumerate(sizes, start=1):
                    self._memory.take(size)
                    try:
                        data = _exactly(stream, size, file, cancelled)
                        whole.update(data)
                    except BaseException:
                        self._memory.give(size)
                        raise
                    sent.append(senders.submit(send, number, data))
        except _Cancelled:
            for each in sent:
                each.result()  # the reason may be a part of this very file
            raise
        parts = [each.result() for each in sent]
        try:
            _compare(file, whole.hexdigest())
        except FileDamaged:
            self._bucket.abort(file.path, upload_id)
            raise
        completed = self._bucket.complete(file.path, upload_id, [part for _, part in parts])
        return _agreed(file, whole.hexdigest(), [digest for digest, _ in parts], completed)

    def _resumed(self, path: str) -> tuple[str, Mapping[int, StoredPart]]:
        """Return an upload of the file that was begun before, with its parts, or a new one."""
        begun = self._uploads.get(path)
        if begun is not None:
            held = self._bucket.parts(path, begun)
            if held and all(part.checksum for part in held.values()):
                return begun, held
            self._bucket.abort(path, begun)  # empty, gone, or without checksums
        return self._bucket.begin(path), {}


class _Budget:
    """Bytes that may be in memory at once; what is larger than all of them is let in alone."""

    def __init__(self, num_bytes: int) -> None:
        self._all = num_bytes
        self._used = 0
        self._changed = threading.Condition()

    def take(self, num_bytes: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._used or self._used + num_bytes <= self._all)
            self._used += num_bytes

    def give(self, num_bytes: int) -> None:
        with self._changed:
            self._used -= num_bytes
            self._changed.notify_all()

    @contextmanager
    def returned(self, num_bytes: int) -> Iterator[None]:
        """Return at the end what was taken before."""
        try:
            yield
        finally:
            self.give(num_bytes)

    @contextmanager
    def reserved(self, num_bytes: int) -> Iterator[None]:
        self.take(num_bytes)
        with self.returned(num_bytes):
            yield


@contextmanager
def _cancelling(cancelled: threading.Event) -> Iterator[None]:
    """Let the others end when this one fails."""
    try:
        yield
    except BaseException:
        cancelled.set()
        raise


@contextmanager
def _opened(file: LocalFile) -> Iterator[FileIO]:
    """Open a file, which must be the same after it has been read as when it was found.

    Raises:
        NotDone: it is not.
    """
    try:
        with file.tree.opened(file.name) as stream:
            before = os.fstat(stream.fileno())
            yield stream
            after = os.fstat(stream.fileno())
    except OSError as exc:
        raise OSError(exc.errno, exc.strerror, str(file.source)) from exc
    if file.grows:
        is_same = after.st_size >= file.num_bytes
    else:
        is_same = before.st_size == file.num_bytes and _version(before) == _version(after)
    if not is_same:
        raise _changed(file)


def _version(found: os.stat_result) -> tuple[int, int]:
    return found.st_size, found.st_mtime_ns


def _changed(file: LocalFile) -> NotDone:
    return NotDone(
        f"{file.source} changed while it was read; save again when nothing writes to it any more"
    )


def _exactly(stream: FileIO, size: int, file: LocalFile, cancelled: threading.Event) -> bytes:
    """Read the next `size` bytes of a file."""
    if cancelled.is_set():
        raise _Cancelled
    data = bytearray(size)
    room = memoryview(data)
    while room:
        count = stream.readinto(room)
        if not count:
            raise _changed(file)
        room = room[count:]
    return data  # type: ignore[return-value]  # a copy would double the memory


def _hashed(file: LocalFile, cancelled: threading.Event) -> ResultFile:
    """Describe a file for a manifest by reading it only."""
    hasher = FileHasher(part_bytes=part_bytes(file.num_bytes))
    left = file.num_bytes
    with _opened(file) as stream:
        while left:
            size = min(left, 8 * MIB)
            hasher.update(_exactly(stream, size, file, cancelled))
            left -= size
    found = hasher.result(file.path)
    _compare(file, found.sha256)
    return found


def _compare(file: LocalFile, sha256: str) -> None:
    if file.sha256 and sha256 != file.sha256:
        raise FileDamaged(
            f"{file.source} is not what was written: its sha256 begins {sha256[:12]}, expected "
            f"{file.sha256[:12]}"
        )


def _agreed(file: LocalFile, sha256: str, digests: Sequence[bytes], stored: str) -> ResultFile:
    """Describe a file for a manifest, if S3 computed the same checksum of it."""
    checksum = s3_checksum(digests)
    if stored != checksum:
        raise NotDone(
            f"S3 computed the SHA-256 {stored or 'of nothing'} of {file.path}, expected {checksum}"
        )
    return ResultFile(
        path=file.path,
        num_bytes=file.num_bytes,
        sha256=sha256,
        s3_checksum=checksum,
        part_bytes=part_bytes(file.num_bytes),
    )

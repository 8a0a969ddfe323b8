"""Objects to files: in parallel, in bounded memory, each file whole or not there at all.

A small object is read into memory and written at once. A large one is read in parts, by several
threads; a journal has the parts on disk, so that another start continues there. A file that is
whole and is what S3 says gets its name, and a line in a record.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from stationmaster.domain.datasets import SourceObject
from stationmaster.domain.results import ResultFile
from stationmaster.domain.staged_data import CheckedBy, DataFile
from stationmaster.relay.s3 import NotDone
from stationmaster.relay.staging.source import Check, SourceBucket

SMALL_BYTES: Final = 8 * 2**20
SMALL_AT_ONCE: Final = 24
# Bytes of a part where S3 has the object in one piece.
PART_BYTES: Final = 64 * 2**20
PARTS_AT_ONCE: Final = 16
LARGE_AT_ONCE: Final = 3
CONNECTIONS: Final = max(PARTS_AT_ONCE + LARGE_AT_ONCE, SMALL_AT_ONCE)
"""The most requests at once."""
_PIECE_BYTES: Final = 2**20


_File = SourceObject | DataFile | ResultFile


class _Cancelled(Exception):
    """Another file failed: there is no point in continuing with this one."""


@dataclass(frozen=True, slots=True)
class _Parts:
    """How a large object is read."""

    each: int
    check: Check

    def ranges(self, num_bytes: int) -> list[tuple[int, int]]:
        return [
            (start, min(start + self.each, num_bytes)) for start in range(0, num_bytes, self.each)
        ]

    @property
    def algorithm(self) -> str | None:
        """The hash of each part; whole files are hashed when they are there."""
        return self.check.algorithm if self.check.of_parts else None


class Copier:
    """Copies objects of one source into a directory."""

    def __init__(
        self,
        bucket: SourceBucket,
        *,
        files: Path,
        partial: Path,
        on_copied: Callable[[int], None],
    ) -> None:
        """`on_copied` is called from any thread with the number of further bytes that are there."""
        self._bucket = bucket
        self._files = files
        self._partial = partial
        self._on_copied = on_copied
        self._copied = _Record(partial / "copied.jsonl")
        self._cancelled = threading.Event()

    def copy(self, objects: Iterable[SourceObject]) -> list[DataFile]:
        """Copy what is missing; return what a manifest says of each, in order.

        Raises:
            NotDone: S3 did not give one, or gave something else than it says.
            Refused: S3 refuses the stager.
            OSError: one could not be written.
        """
        self._partial.mkdir(parents=True, exist_ok=True)
        wanted = list(objects)
        done = {each.path: each for each in self._copied.read() if is_there(self._files, each)}
        self._on_copied(sum(each.num_bytes for each in done.values()))
        missing = [each for each in wanted if each.path not in done]
        small = [each for each in missing if each.num_bytes <= SMALL_BYTES]
        large = [each for each in missing if each.num_bytes > SMALL_BYTES]
        with ThreadPoolExecutor(PARTS_AT_ONCE, thread_name_prefix="part") as parts:
            done |= self._each(
                large, lambda each: self._copy_in(each, parts.submit), num_threads=LARGE_AT_ONCE
            )
        done |= self._each(small, self._copy_small, num_threads=SMALL_AT_ONCE)
        return [done[each.path] for each in wanted]

    def _each(
        self,
        objects: list[SourceObject],
        copy: Callable[[SourceObject], DataFile],
        *,
        num_threads: int,
    ) -> dict[str, DataFile]:
        """Call `copy` for all, in threads, with few of them waiting; the first error ends it."""
        done: dict[str, DataFile] = {}
        errors: list[BaseException] = []
        waiting: set[Future[DataFile]] = set()

        def collect(finished: Iterable[Future[DataFile]]) -> None:
            for future in finished:
                error = future.exception()
                if error is None:
                    done[future.result().path] = future.result()
                else:
                    self._cancelled.set()
                    errors.append(error)

        with ThreadPoolExecutor(num_threads, thread_name_prefix="file") as pool:
            for each in objects:
                if errors:
                    break
                waiting.add(pool.submit(copy, each))
                if len(waiting) >= 4 * num_threads:
                    finished, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                    collect(finished)
            collect(wait(waiting).done)
        for error in sorted(errors, key=lambda each: isinstance(each, _Cancelled)):
            raise error
        return done

    def _copy_small(self, found: SourceObject) -> DataFile:
        self._raise_if_cancelled()
        with self._bucket.opened(found) as body:
            data = b"".join(body.pieces)
            check = body.check
        if check.of_parts:
            return self._copy_in(found, _at_once)
        if len(data) != found.num_bytes:
            raise _short(found, len(data))
        _compare(found, check, hashlib.new(check.algorithm or "sha256", data).hexdigest())
        partial = self._partial / _key(found)
        partial.write_bytes(data)
        self._on_copied(found.num_bytes)
        return self._publish(
            partial,
            DataFile(
                path=found.path,
                num_bytes=found.num_bytes,
                sha256=hashlib.sha256(data).hexdigest(),
                checked_by=check.by,
            ),
        )

    def _copy_in(self, found: SourceObject, submit: Callable[..., Future[bytes]]) -> DataFile:
        """Copy in parts: in those that the object was uploaded in, where they say what it is."""
        self._raise_if_cancelled()
        parts = _Parts(PART_BYTES, self._bucket.check(found))
        if parts.check.of_parts:
            num_parts = int(found.etag.partition("-")[2] or 1)
            each = self._bucket.part_bytes(found, num_parts)
            parts = _Parts(each, parts.check) if each else _Parts(PART_BYTES, Check(CheckedBy.SIZE))
        ranges = parts.ranges(found.num_bytes)
        partial = self._partial / _key(found)
        journal = _Journal(partial.with_suffix(".parts"), head=f"{found.etag} {parts.each}")
        known = journal.read()
        with open(os.open(partial, os.O_RDWR | os.O_CREAT, 0o644), "r+b", buffering=0) as file:
            file.truncate(found.num_bytes)

            def fetch(number: int) -> bytes:
                start, end = ranges[number]
                digest = self._fetch(found, file.fileno(), start, end, parts.algorithm)
                os.fdatasync(file.fileno())
                journal.add(number, digest)
                self._on_copied(end - start)
                return digest

            pending = {n: submit(fetch, n) for n in range(len(ranges)) if n not in known}
            for number in known:
                self._on_copied(ranges[number][1] - ranges[number][0])
            errors = [e for e in (future.exception() for future in pending.values()) if e]
            for error in sorted(errors, key=lambda each: isinstance(each, _Cancelled)):
                raise error
        digests = known | {number: future.result() for number, future in pending.items()}
        try:
            self._verify(found, parts.check, partial, [digests[n] for n in range(len(ranges))])
        except NotDone:
            journal.remove()
            partial.unlink()
            raise
        is_whole = parts.check.by is CheckedBy.SHA256 and not parts.check.of_parts
        copied = self._publish(
            partial,
            DataFile(
                path=found.path,
                num_bytes=found.num_bytes,
                sha256=parts.check.expected if is_whole else "",
                checked_by=parts.check.by,
            ),
        )
        journal.remove()
        return copied

    def _publish(self, partial: Path, file: DataFile) -> DataFile:
        target = self._files / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        partial.replace(target)
        self._copied.add(file)
        return file

    def _fetch(
        self, found: SourceObject, descriptor: int, start: int, end: int, algorithm: str | None
    ) -> bytes:
        """Write one part in its place; return its digest, empty without an algorithm."""
        digest: Any = hashlib.new(algorithm) if algorithm else None
        at = start
        with self._bucket.opened(found, start=start, end=end) as body:
            for piece in body.pieces:
                self._raise_if_cancelled()
                if digest is not None:
                    digest.update(piece)
                at += _write_all(descriptor, piece, at)
        if at != end:
            raise _short(found, at - start)
        return digest.digest() if digest is not None else b""

    def _verify(
        self, found: SourceObject, check: Check, partial: Path, digests: list[bytes]
    ) -> None:
        if check.algorithm is None:
            return
        if check.of_parts:
            _compare(found, check, hashlib.new(check.algorithm, b"".join(digests)).hexdigest())
            return
        whole = hashlib.new(check.algorithm)
        for piece in _pieces(partial):
            self._raise_if_cancelled()
            whole.update(piece)
        _compare(found, check, whole.hexdigest())

    def _raise_if_cancelled(self) -> None:
        if self._cancelled.is_set():
            raise _Cancelled


class _Record:
    """The whole files, a line each. A file that it lacks is copied again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()

    def read(self) -> list[DataFile]:
        found = []
        with contextlib.suppress(FileNotFoundError), self._path.open() as lines:
            for line in lines:
                with contextlib.suppress(ValidationError):  # cut off by a kill
                    found.append(DataFile.model_validate_json(line))
        return found

    def add(self, file: DataFile) -> None:
        with self._lock, self._path.open("a") as out:
            # A line that was cut off must not swallow this one.
            out.write(f"\n{file.model_dump_json()}\n")


class _Journal:
    """The parts of a file on disk, with their digests: a line each, after the head."""

    def __init__(self, path: Path, *, head: str) -> None:
        self._path = path
        self._head = head
        self._lock = threading.Lock()

    def read(self) -> dict[int, bytes]:
        """Read the digests by number; a line that was cut off says nothing."""
        try:
            head, *lines = self._path.read_text().split("\n")
        except FileNotFoundError:
            head, lines = "", []
        if head != self._head:
            self._path.write_text(f"{self._head}\n")
            return {}
        found = {}
        for line in lines[:-1]:
            number, _, digest = line.partition(" ")
            found[int(number)] = bytes.fromhex(digest)
        # What follows a cut line would be read as its end.
        whole = [f"{number} {digest.hex()}" for number, digest in found.items()]
        self._path.write_text("\n".join([self._head, *whole, ""]))
        return found

    def add(self, number: int, digest: bytes) -> None:
        with self._lock, self._path.open("a") as file:
            file.write(f"{number} {digest.hex()}\n")
            file.flush()
            os.fsync(file.fileno())

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)


def _at_once(act: Callable[[int], bytes], number: int) -> Future[bytes]:
    """Do in this very thread what others submit to a pool."""
    future: Future[bytes] = Future()
    try:
        future.set_result(act(number))
    except BaseException as error:  # the future carries it to whoever asks
        future.set_exception(error)
    return future


def _key(found: SourceObject) -> str:
    """Make a flat name for a path."""
    return hashlib.sha256(found.path.encode()).hexdigest()[:32]


def is_there(root: Path, file: _File) -> bool:
    """Say whether a file is on disk with all its bytes."""
    try:
        return (root / file.path).stat().st_size == file.num_bytes
    except FileNotFoundError:
        return False


def missing_bytes(root: Path, files: Iterable[_File], *, begun: Iterable[Path]) -> int:
    """Count the bytes of files that are not on disk, nor in what was `begun` of them."""
    missing = sum(each.num_bytes for each in files if not is_there(root, each))
    # Of files that were begun the system has given what is on disk, whatever their size says.
    return missing - sum(path.stat().st_blocks * 512 for path in begun)


def _write_all(descriptor: int, data: bytes, at: int) -> int:
    view, written = memoryview(data), 0
    while written < len(data):
        written += os.pwrite(descriptor, view[written:], at + written)
    return written


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb", buffering=0) as file:
        while piece := file.read(_PIECE_BYTES):
            yield piece


def _compare(found: SourceObject, check: Check, digest: str) -> None:
    if check.algorithm is not None and digest != check.expected:
        raise NotDone(
            f"{found.path} came damaged: its {check.algorithm} is {digest[:12]}..., S3 says "
            f"{check.expected[:12]}..."
        )


def _short(found: SourceObject, num_bytes: int) -> NotDone:
    return NotDone(f"{found.path} broke off after {num_bytes} of {found.num_bytes} bytes")

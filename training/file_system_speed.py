"""python -m training.file_system_speed DIRECTORY CLUSTER PASS OWN NUM_BYTES NODE...

Measures how fast this node writes to a shared file system, and reads what another node wrote. Each
of NODE runs it at the same time. They wait for each other, write NUM_BYTES each and sync them, wait
again, and read the files of the next node without the help of the page cache. The last line of the
output is JSON. PASS names this measurement; what CLUSTER left of others in DIRECTORY is deleted
first. Where the file system is not Lustre, much less is written: there is nothing to judge there.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

Cache = Literal["O_DIRECT", "posix_fadvise", "page cache"]

LUSTRE: Final = "lustre"
# One stream reaches a few of Lustre's servers; a trainer's checkpoint has a writer for each GPU.
_STREAMS: Final = 8
_BLOCK_BYTES: Final = 8 << 20
# Writing, and then reading, ends after so long, however much is done.
_PHASE_S: Final = 60.0
_OTHER_NUM_BYTES: Final = 64 << 20
_OTHER_PHASE_S: Final = 5.0
# How long a node waits for the others: they start when their node has pulled the image.
_WAIT_S: Final = 600.0
_POLL_S: Final = 0.1
# No measurement lasts so long: what is older was left by one that was killed.
_STALE_S: Final = 6 * 3600


# Set when the process is told to end: threads that move bytes look at it after each block.
_STOPPED: Final = threading.Event()


class NotMeasuredError(Exception):
    """The measurement cannot be made; the text is a sentence."""


@dataclass(frozen=True)
class Place:
    """This node's files of one measurement: CLUSTER.PASS.NODE.SUFFIX in one directory."""

    directory: Path
    cluster: str
    name: str
    own: str
    nodes: tuple[str, ...]

    def path(self, node: str, suffix: object) -> Path:
        """Return a file of a node: of a stream by its number, or a sign for the others."""
        return self.directory / f"{self.cluster}.{self.name}.{node}.{suffix}"

    @property
    def writer(self) -> str:
        """The node whose files this node reads: the next one, so each file has one reader."""
        return self.nodes[(self.nodes.index(self.own) + 1) % len(self.nodes)]

    def streams(self, node: str) -> list[Path]:
        """List the files that a node writes."""
        return [self.path(node, number) for number in range(_STREAMS)]

    def signal(self, sign: str) -> None:
        """Signal to the others that this node is so far."""
        self.path(self.own, sign).touch()

    def are_all(self, sign: str) -> bool:
        """Say whether every node is so far."""
        return all(self.path(node, sign).exists() for node in self.nodes)

    def meet(self, sign: str) -> None:
        """Wait until every node is so far.

        Raises:
            NotMeasuredError: the others did not come; says which.
        """
        self.signal(sign)
        deadline = time.monotonic() + _WAIT_S
        while not self.are_all(sign):
            if time.monotonic() > deadline:
                missing = [node for node in self.nodes if not self.path(node, sign).exists()]
                raise NotMeasuredError(f"{', '.join(missing)} did not come within {_WAIT_S:.0f} s")
            time.sleep(_POLL_S)

    def delete(self, *, of: Sequence[str]) -> None:
        """Delete the files of these nodes; another one may be faster."""
        for node in of:
            prefix = f"{self.cluster}.{self.name}.{node}."
            for path in self._listed():
                if path.name.startswith(prefix):
                    path.unlink(missing_ok=True)

    def delete_leftovers(self) -> None:
        """Delete what earlier measurements of this cluster have left, and old ones of any."""
        for path in self._listed():
            cluster, _, rest = path.name.partition(".")
            with contextlib.suppress(OSError):  # another node was faster, or somebody else's
                is_stale = time.time() - path.stat().st_mtime > _STALE_S
                is_earlier = cluster == self.cluster and not rest.startswith(f"{self.name}.")
                if is_earlier or is_stale:
                    path.unlink()

    def _listed(self) -> list[Path]:
        return list(self.directory.iterdir())


@dataclass(frozen=True)
class Moved:
    """How many bytes went in how many seconds."""

    num_bytes: int
    seconds: float


def file_system_of(path: Path, mounts: str) -> str:
    """Return the type of a path's file system, by the text of /proc/mounts; "" if unknown."""
    found, longest = "", -1
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) < 3:
            continue
        mount = fields[1].replace("\\040", " ")
        is_above = path == Path(mount) or Path(mount) in path.parents
        if is_above and len(mount) >= longest:
            found, longest = fields[2], len(mount)
    return found


def write(paths: Sequence[Path], *, num_bytes: int, phase_s: float) -> Moved:
    """Write about `num_bytes` in all, one thread a file, and sync them to the servers."""
    each = max(1, num_bytes // len(paths) // _BLOCK_BYTES)

    def stream(path: Path) -> int:
        # Random bytes: the file system compresses what repeats within a block.
        block, blocks = os.urandom(_BLOCK_BYTES), 0
        with path.open("wb", buffering=0) as file:
            while blocks < each and time.monotonic() < deadline and not _STOPPED.is_set():
                file.write(block)
                blocks += 1
            if not _STOPPED.is_set():
                os.fsync(file.fileno())
        return blocks * _BLOCK_BYTES

    began = time.monotonic()
    deadline = began + phase_s
    with ThreadPoolExecutor(len(paths)) as pool:
        written = sum(pool.map(stream, paths))
    return Moved(written, time.monotonic() - began)


def read(paths: Sequence[Path], *, phase_s: float) -> tuple[Moved, Cache]:
    """Read the files whole, one thread each, and say how the page cache was kept out."""
    caches: set[Cache] = set()

    def stream(path: Path) -> int:
        descriptor, cache = _open_uncached(path)
        caches.add(cache)
        # O_DIRECT needs memory at the beginning of a page.
        with mmap.mmap(-1, _BLOCK_BYTES) as buffer:
            done = 0
            try:
                while time.monotonic() < deadline and not _STOPPED.is_set():
                    count = os.readv(descriptor, [buffer])
                    if count == 0:
                        break
                    done += count
            finally:
                os.close(descriptor)
        return done

    began = time.monotonic()
    deadline = began + phase_s
    with ThreadPoolExecutor(len(paths)) as pool:
        num_bytes = sum(pool.map(stream, paths))
    moved = Moved(num_bytes, time.monotonic() - began)
    worst = max(caches, key=("O_DIRECT", "posix_fadvise", "page cache").index)
    return moved, worst


def _open_uncached(path: Path) -> tuple[int, Cache]:
    """Open a descriptor that reads past the page cache, or drop the file's pages from it."""
    if hasattr(os, "O_DIRECT"):
        with contextlib.suppress(OSError):  # some file systems do not have it
            return os.open(path, os.O_RDONLY | os.O_DIRECT), "O_DIRECT"
    descriptor = os.open(path, os.O_RDONLY)
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        return descriptor, "posix_fadvise"
    return descriptor, "page cache"


def measure(place: Place, *, num_bytes: int) -> dict[str, object]:
    """Measure together with the other nodes, and leave nothing.

    Raises:
        NotMeasuredError: another node did not come.
        OSError: the file system refuses something.
    """
    kind = file_system_of(place.directory.resolve(), _mounts())
    phase_s = _PHASE_S if kind == LUSTRE else _OTHER_PHASE_S
    free = os.statvfs(place.directory)
    asked = num_bytes if kind == LUSTRE else min(num_bytes, _OTHER_NUM_BYTES)
    asked = min(asked, free.f_bavail * free.f_frsize // 10 // len(place.nodes))
    with _cleaned(place):
        place.delete_leftovers()
        place.meet("ready")
        written = write(place.streams(place.own), num_bytes=asked, phase_s=phase_s)
        place.meet("written")
        found, cache = read(place.streams(place.writer), phase_s=phase_s)
        for path in place.streams(place.writer):
            path.unlink(missing_ok=True)
        place.signal("done")
        if place.are_all("done"):
            place.delete(of=place.nodes)
    return {
        "stationmaster": 1,
        "kind": "file_system_speed",
        "node": place.own,
        "file_system": kind,
        "write": vars(written),
        "read": vars(found),
        "read_from": place.writer,
        "cache": cache,
    }


@contextlib.contextmanager
def _cleaned(place: Place) -> Iterator[None]:
    """Delete what this node wrote where the measurement fails or is stopped."""
    previous = signal.signal(signal.SIGTERM, _stop)
    try:
        yield
    except BaseException:
        place.delete(of=[place.own])
        raise
    finally:
        signal.signal(signal.SIGTERM, previous)


def _stop(*_: object) -> None:
    """Leave at once, before the kubelet kills what does not."""
    _STOPPED.set()
    sys.exit(143)


def _mounts() -> str:
    try:
        return Path("/proc/mounts").read_text(errors="replace")
    except OSError:
        return ""


def main(arguments: Sequence[str]) -> int:
    """Measure and print; return 1 with a sentence where that fails."""
    directory, cluster, name, own, num_bytes, *nodes = arguments
    place = Place(Path(directory), cluster, name, own, tuple(sorted(nodes)))
    try:
        result = measure(place, num_bytes=int(num_bytes))
    except (NotMeasuredError, OSError) as error:
        sys.stdout.write(f"the speed of the file system was not measured on {own}: {error}\n")
        return 1
    sys.stdout.write(json.dumps(result) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

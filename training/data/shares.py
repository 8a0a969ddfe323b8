"""Work that is divided among processes of any number, on any nodes, and done once each.

A share is done when its marker is there. Whoever has nothing to do takes any share that is neither
done nor locked; a process that is killed loses its lock, and another takes the share up again. So
the result does not depend on how many there were. Locks are file locks on the shared file system.
This module must not import torch.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import connection, get_context, parent_process
from pathlib import Path
from typing import Any, Final

from stationmaster.domain.errors import PermanentError
from training.files import locked, write_json

SHARES: Final = "shares"

# Others hold what is left: how often it is looked at whether they are still alive.
_LOOK_EVERY_S: Final = 1.0

Result = dict[str, Any]
"""The outcome of a share, as JSON."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """A part of the work; `weight` is its size in bytes."""

    name: str
    weight: int


@dataclass(frozen=True, slots=True)
class Pass:
    """Shares that any process may do; all of them are done before the next pass begins."""

    name: str
    """The name of the directory with their markers."""
    shares: list[Share]
    """The shares in an order that is always the same."""
    do: Callable[[Share], Result]
    """The call that does one of them."""


class Shares:
    """The shares of one piece of work, with their markers in a directory of its own."""

    def __init__(self, directory: Path, shares: Sequence[Share]) -> None:
        self._directory = directory
        self._shares = shares

    def done(self) -> dict[str, Result]:
        """List what is done so far, by the names of shares."""
        found = {}
        for share in self._shares:
            path = self._marker(share)
            if path.exists():
                found[share.name] = json.loads(path.read_text())
        return found

    def num_bytes_done(self) -> int:
        """Return the weight of what is done."""
        return sum(share.weight for share in self._shares if self._marker(share).exists())

    def work(self, do: Callable[[Share], Result]) -> None:
        """Do what nobody else does, until all is done."""
        self._directory.mkdir(parents=True, exist_ok=True)
        # Not all begin with the same one.
        first = hash((os.uname().nodename, os.getpid())) % max(1, len(self._shares))
        ordered = [*self._shares[first:], *self._shares[:first]]
        while True:
            ordered = [share for share in ordered if not self._marker(share).exists()]
            if not ordered:
                return
            is_idle = True
            for share in ordered:
                with locked(self._directory / f".{share.name}.lock", wait=False) as is_mine:
                    if is_mine and not self._marker(share).exists():
                        write_json(self._marker(share), do(share))
                        is_idle = False
            if is_idle:
                time.sleep(_LOOK_EVERY_S)

    def _marker(self, share: Share) -> Path:
        return self._directory / f"{share.name}.json"


def in_processes(work: Callable[[], None], *, number: int, meanwhile: Callable[[], None]) -> None:
    """Call `work` in several processes, and `meanwhile` every second until all have returned.

    Raises:
        PermanentError: a process was killed; what is done stays done.
        StationmasterError: what `work` raised in one of them.
    """
    with ProcessPoolExecutor(
        number, mp_context=get_context("spawn"), initializer=end_with_parent
    ) as pool:
        futures = [pool.submit(work) for _ in range(number)]
        try:
            for future in _until_done(futures, meanwhile):
                future.result()
        except BrokenProcessPool as exc:
            raise PermanentError(
                "a process that prepares data was killed, most often for lack of memory; another "
                "start continues"
            ) from exc
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _until_done(futures: Sequence[Any], meanwhile: Callable[[], None]) -> Iterator[Any]:
    left = set(futures)
    while left:
        try:
            for future in as_completed(left, timeout=_LOOK_EVERY_S):
                left.discard(future)
                yield future
        except TimeoutError:
            meanwhile()


def end_with_parent() -> None:
    """End this worker when its parent does; after a kill, nothing else ends it."""
    parent = parent_process()
    assert parent is not None

    def follow() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()

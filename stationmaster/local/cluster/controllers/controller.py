"""The loop under every controller: keys to reconcile, without duplicates, in one thread.

Subclasses say which keys a change concerns and what to do for a key. The loop sleeps until a change
or a due time; it never polls.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable

from stationmaster.local.cluster.api.errors import ApiError
from stationmaster.local.cluster.api.objects import Objects
from stationmaster.local.cluster.api.store import Change

logger = logging.getLogger(__name__)

Key = tuple[str, ...]
_RETRY_S = 0.5
_AFTER_BUG_S = 2.0


class Controller(ABC):
    """A reconciler over the objects."""

    name = "controller"

    def __init__(self, objects: Objects) -> None:
        self.objects = objects
        self._due: dict[Key, float] = {}
        self._condition = threading.Condition()
        self._stopping = False
        self._unsubscribe: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._run, name=f"cluster-{self.name}", daemon=True)

    @abstractmethod
    def keys_of(self, change: Change) -> Iterable[Key]:
        """Yield the keys to reconcile after a change. Called under the store's lock: be quick."""

    @abstractmethod
    def reconcile(self, key: Key) -> float | None:
        """Bring the world of one key in order; a number asks for another call after seconds."""

    def start(self) -> None:
        self._unsubscribe = self.objects.store.subscribe(self._on_change)
        self._thread.start()

    def stop(self) -> None:
        self._unsubscribe()
        with self._condition:
            self._stopping = True
            self._condition.notify_all()
        if self._thread.is_alive():
            self._thread.join(timeout=10)

    def enqueue(self, key: Key, *, after_s: float = 0.0) -> None:
        """Reconcile `key` soon, or after a while; the earlier of two requests counts."""
        due = time.monotonic() + after_s
        with self._condition:
            if due < self._due.get(key, float("inf")):
                self._due[key] = due
                self._condition.notify_all()

    def _on_change(self, change: Change) -> None:
        for key in self.keys_of(change):
            self.enqueue(key)

    def _next(self) -> Key | None:
        """Return the next key that is due; None when stopping."""
        with self._condition:
            while not self._stopping:
                if not self._due:
                    self._condition.wait()
                    continue
                key = min(self._due, key=self._due.__getitem__)
                left = self._due[key] - time.monotonic()
                if left <= 0:
                    del self._due[key]
                    return key
                self._condition.wait(left)
            return None

    def _run(self) -> None:
        while (key := self._next()) is not None:
            try:
                again_s = self.reconcile(key)
            except ApiError as exc:
                # Conflicts and vanished objects are everyday; the next look decides on fresh facts.
                logger.info("reconcile refused", extra={"controller": self.name, "error": str(exc)})
                again_s = _RETRY_S
            except Exception:
                # The boundary of the thread: one bad object must not stop the work on the others.
                logger.exception("reconcile failed", extra={"controller": self.name, "key": key})
                again_s = _AFTER_BUG_S
            if again_s is not None:
                self.enqueue(key, after_s=again_s)

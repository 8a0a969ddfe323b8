"""Objects in memory with one global resource version, and the stream of their changes.

It keeps order (a subscriber sees changes in the order of their resource versions) and history (a
ring for watch replay), and knows no object's meaning.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from stationmaster.local.cluster.api import errors
from stationmaster.local.cluster.api.resources import Object

FIRST_VERSION = 1000
"""Versions start here, so that a client that replays from 1 gets the answer that it is too old."""


@dataclass(frozen=True)
class Change:
    """One write. `type` is ADDED, MODIFIED or DELETED; `previous` is what a MODIFIED replaced."""

    version: int
    type: str
    resource: str
    object: Object
    previous: Object | None = None


Place = tuple[str, str]  # (namespace or "", name)


class Store:
    """All objects. Every method is atomic; `lock` makes several calls one step."""

    def __init__(self, *, history: int = 10_000) -> None:
        self.lock = threading.RLock()
        self._objects: dict[str, dict[Place, Object]] = {}
        self._version = FIRST_VERSION
        self._ring: deque[Change] = deque(maxlen=history)
        self._subscribers: list[Callable[[Change], None]] = []

    @property
    def version(self) -> int:
        return self._version

    @property
    def oldest(self) -> int:
        """The version that the history reaches back to."""
        with self.lock:
            return (self._ring[0].version if self._ring else self._version + 1) - 1

    def get(self, resource: str, namespace: str, name: str) -> Object | None:
        with self.lock:
            return self._objects.get(resource, {}).get((namespace, name))

    def list(self, resource: str, namespace: str = "") -> list[Object]:
        """Return objects in (namespace, name) order; all namespaces when `namespace` is empty."""
        with self.lock:
            places = self._objects.get(resource, {})
            return [places[place] for place in sorted(places) if namespace in ("", place[0])]

    def everything(self) -> Iterator[tuple[str, Object]]:
        """Yield a snapshot of all objects with their resource keys."""
        with self.lock:
            pairs = [(key, obj) for key, places in self._objects.items() for obj in places.values()]
        return iter(pairs)

    def put(self, resource: str, obj: Object) -> Object:
        """Insert or replace; stamps the resource version. `obj` belongs to the store afterwards."""
        metadata = obj["metadata"]
        place = (metadata.get("namespace", ""), metadata["name"])
        with self.lock:
            previous = self._objects.setdefault(resource, {}).get(place)
            self._version += 1
            metadata["resourceVersion"] = str(self._version)
            self._objects[resource][place] = obj
            kind = "ADDED" if previous is None else "MODIFIED"
            self._emit(Change(self._version, kind, resource, obj, previous))
        return obj

    def remove(self, resource: str, namespace: str, name: str) -> Object | None:
        """Take an object out; its last state, with a new resource version, goes to the watchers."""
        with self.lock:
            obj = self._objects.get(resource, {}).pop((namespace, name), None)
            if obj is None:
                return None
            self._version += 1
            last = {
                **obj,
                "metadata": {**obj["metadata"], "resourceVersion": str(self._version)},
            }
            self._emit(Change(self._version, "DELETED", resource, last, obj))
            return last

    def subscribe(
        self, deliver: Callable[[Change], None], *, resource: str = "", since: int | None = None
    ) -> Callable[[], None]:
        """Call `deliver` for each change of `resource` (all when empty), in order, under the lock.

        With `since`, the changes after that version are delivered first. `deliver` must not block.

        Returns:
            What ends the subscription.

        Raises:
            ApiError: 410 Expired when the history no longer reaches back to `since`.
        """

        def wanted(change: Change) -> None:
            if resource in ("", change.resource):
                deliver(change)

        with self.lock:
            if since is not None:
                self._replay(wanted, since)
            self._subscribers.append(wanted)

        def close() -> None:
            with self.lock:
                if wanted in self._subscribers:
                    self._subscribers.remove(wanted)

        return close

    def _replay(self, deliver: Callable[[Change], None], since: int) -> None:
        if since < self.oldest:
            raise errors.expired(since, self.oldest)
        for change in self._ring:
            if change.version > since:
                deliver(change)

    def _emit(self, change: Change) -> None:
        self._ring.append(change)
        for deliver in list(self._subscribers):
            deliver(change)

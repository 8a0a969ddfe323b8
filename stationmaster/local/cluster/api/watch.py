"""Watches: the stream of changes of one type, as the events that a client reads line by line.

Used by the REST layer, inside its event loop. Bridges the store's callbacks, which come from any
thread, to an asynchronous generator; it knows nothing of routes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from stationmaster.local.cluster.api.errors import ApiError
from stationmaster.local.cluster.api.resources import Object
from stationmaster.local.cluster.api.selectors import Predicate
from stationmaster.local.cluster.api.store import Change, Store

WatchEvent = tuple[str, Object]


@dataclass(frozen=True)
class WatchRequest:
    """What a client asked to watch."""

    resource: str
    namespace: str
    selector: Predicate | None
    since: str  # resource version; "" or "0" begins with what exists
    timeout_s: float | None


async def stream(
    store: Store, request: WatchRequest, closing: asyncio.Event
) -> AsyncIterator[WatchEvent]:
    """Yield (type, object) until the timeout, the client's departure or `closing`."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[Change | None] = asyncio.Queue()

    def deliver(change: Change) -> None:
        loop.call_soon_threadsafe(queue.put_nowait, change)

    with store.lock:
        existing: list[Object] = []
        since: int | None = None
        if request.since in ("", "0"):
            existing = store.list(request.resource, request.namespace)
        else:
            since = int(request.since)
        try:
            unsubscribe = store.subscribe(deliver, resource=request.resource, since=since)
        except ApiError as exc:
            unsubscribe, expired = None, exc.status()
    if unsubscribe is None:
        yield "ERROR", expired
        return
    closer = asyncio.create_task(_push_end(closing, queue))
    try:
        for obj in existing:
            if request.selector is None or request.selector(obj):
                yield "ADDED", obj
        async for event in _changes(request, queue):
            yield event
    finally:
        unsubscribe()
        closer.cancel()


async def _push_end(closing: asyncio.Event, queue: asyncio.Queue[Change | None]) -> None:
    await closing.wait()
    queue.put_nowait(None)


async def _changes(
    request: WatchRequest, queue: asyncio.Queue[Change | None]
) -> AsyncIterator[WatchEvent]:
    loop = asyncio.get_running_loop()
    deadline = None if request.timeout_s is None else loop.time() + request.timeout_s
    while True:
        left = None if deadline is None else deadline - loop.time()
        if left is not None and left <= 0:
            return
        try:
            change = await asyncio.wait_for(queue.get(), left)
        except TimeoutError:
            return
        if change is None:
            return
        event = _event_of(change, request.namespace, request.selector)
        if event is not None:
            yield event


def _event_of(change: Change, namespace: str, selector: Predicate | None) -> WatchEvent | None:
    """Return the change as this watcher sees it: crossing its selector adds or deletes."""
    if namespace and change.object["metadata"].get("namespace") != namespace:
        return None
    if selector is None:
        return change.type, change.object
    matched: Callable[[Object | None], bool] = lambda obj: obj is not None and selector(obj)  # noqa: E731
    now, before = matched(change.object), matched(change.previous)
    if change.type == "DELETED":
        return ("DELETED", change.object) if before else None
    if now:
        return ("MODIFIED" if before else "ADDED"), change.object
    return ("DELETED", change.object) if before else None

"""Events that wait: to be sent by a relay that leads, or to be needed by one that stands by.

A relay that stands by drops what the leader's lease says is on the bus. When it takes over it sends
the rest; ids make a second time harmless. relay/batching.py calls it under a lock.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain
from typing import Final

from stationmaster.domain.run.events import PodChanged, RelayEvent

# Lines of two streams of a log may be stamped a little out of order (as in relay/logs.py).
_DISORDER: Final = timedelta(seconds=5)
# Two relays see a change at nearly the same time; a watch that was cut is back within this.
_SEEN_LATER_S: Final = 30.0
MAX_LOGS: Final = 1_000  # in the lease: 60 bytes each, and annotations may have 256 KiB


@dataclass(frozen=True, slots=True)
class LogPlace:
    """The place of events in a log: the pod's uid, and the stamp of the line."""

    pod_uid: str
    stamp: str


@dataclass(frozen=True, slots=True)
class Waiting:
    event: RelayEvent
    num_bytes: int
    place: LogPlace | None
    """The place in a log; None for what was seen of jobs, pods, warnings and nodes."""
    seen_at: float
    """The monotonic time, in seconds."""


class Pending:
    """What waits, oldest first, and how far logs have been sent."""

    def __init__(self) -> None:
        self._waiting: deque[Waiting] = deque()
        self._under_way: list[Waiting] = []
        self._sent: OrderedDict[str, str] = OrderedDict()  # pod's uid: stamp, newest last
        self._horizons: dict[str, str] = {}  # of the leader: earlier lines are on the bus

    def __len__(self) -> int:
        return len(self._waiting)

    def add(
        self,
        events: Sequence[tuple[RelayEvent, int]],
        *,
        place: LogPlace | None,
        seen_at: float,
    ) -> None:
        """Add events with their bytes, in order; skip what the leader has sent."""
        if place is None or not self._is_sent(place):
            self._waiting.extend(Waiting(*each, place, seen_at) for each in events)

    def take(self, *, most: int, most_bytes: int) -> tuple[list[RelayEvent], int]:
        """Take events for one batch, and their bytes, until `arrived` or `back`."""
        events: list[RelayEvent] = []
        num_bytes = 0
        while self._waiting and len(events) < most:
            if events and num_bytes + self._waiting[0].num_bytes > most_bytes:
                break
            waiting = self._waiting.popleft()
            self._under_way.append(waiting)
            events.append(waiting.event)
            num_bytes += waiting.num_bytes + 1
        return events, num_bytes

    def arrived(self) -> int:
        """Note that what was taken is on the bus, and return how many events that were."""
        for waiting in self._under_way:
            if waiting.place is not None:
                self._note_sent(waiting.place.pod_uid, waiting.place.stamp)
        number = len(self._under_way)
        self._under_way.clear()
        return number

    def back(self) -> None:
        """Put what was taken and did not arrive, or not all of it, back in its place."""
        self._waiting.extendleft(reversed(self._under_way))
        self._under_way.clear()

    def behind_s(self, now: float) -> float:
        """Return for how long the oldest news of objects has waited; 0 for none."""
        of_objects = (w for w in chain(self._under_way, self._waiting) if w.place is None)
        return _longest_s(of_objects, now)

    def unsent(self, now: float) -> tuple[int, float]:
        """Return how many events are not on the bus, and how long the oldest has waited."""
        waited_s = _longest_s(chain(self._under_way, self._waiting), now)
        return len(self._under_way) + len(self._waiting), waited_s

    def sent_logs(self) -> Mapping[str, str]:
        """Return for each pod the stamp through which its log is on the bus."""
        return dict(self._sent)

    def lead(self, sent_logs: Mapping[str, str]) -> None:
        """Send from now on; `sent_logs` is how far the leader before came."""
        self.drop_sent(sent_logs, objects_before=None)
        for uid, stamp in sent_logs.items():
            self._note_sent(uid, stamp)
        self._horizons = {}
        self._waiting = deque(_without_superseded(self._waiting))

    def drop_sent(self, sent_logs: Mapping[str, str], *, objects_before: float | None) -> None:
        """Drop what the leader has sent.

        Args:
            objects_before: it has sent all that it saw of objects before this monotonic time.
        """
        self._horizons = {uid: _before(stamp) for uid, stamp in sent_logs.items()}
        limit = None if objects_before is None else objects_before - _SEEN_LATER_S
        self._waiting = deque(
            waiting
            for waiting in self._waiting
            if not (
                self._is_sent(waiting.place)
                if waiting.place is not None
                else limit is not None and waiting.seen_at < limit
            )
        )

    def _is_sent(self, place: LogPlace) -> bool:
        horizon = self._horizons.get(place.pod_uid, "")
        return bool(place.stamp) and place.stamp < horizon

    def _note_sent(self, uid: str, stamp: str) -> None:
        self._sent[uid] = max(stamp, self._sent.get(uid, ""))
        self._sent.move_to_end(uid)
        if len(self._sent) > MAX_LOGS:
            self._sent.popitem(last=False)


def _longest_s(waiting: Iterator[Waiting], now: float) -> float:
    """Return how long the first of them has waited; 0 for none."""
    first = next(waiting, None)
    return 0.0 if first is None else max(0.0, now - first.seen_at)


def _without_superseded(waiting: Iterable[Waiting]) -> list[Waiting]:
    """Drop states of pods that newer ones followed: the leader may have skipped them.

    They would be taken for the newest state. How a container ended is always kept.
    """
    kept: list[Waiting] = []
    followed: set[str] = set()
    for each in reversed(list(waiting)):
        event = each.event
        if isinstance(event, PodChanged):
            if event.exit_code is None and event.pod in followed:
                continue
            followed.add(event.pod)
        kept.append(each)
    return kept[::-1]


def _before(stamp: str) -> str:
    """Return a slightly earlier stamp; empty, which comes before every line, for no stamp."""
    try:
        moment = datetime.fromisoformat(stamp[:19] + "+00:00") - _DISORDER
    except (ValueError, OverflowError):
        return ""
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{stamp[20:29] or '0':0<9}Z"

"""Notices that the pods of a job train each for itself: two print at once what one rank prints.

torchrun names its rendezvous with LOGLEVEL=INFO only, so nothing else in a log says so.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from stationmaster.domain.run.events import PodsApart, RelayEvent, run_event_id
from stationmaster.relay.lines import LogLine, PodFacts

_MAX_PODS: Final = 256  # that are remembered, earlier ones of a place among them


@dataclass(slots=True)
class _Span:
    """From when until when a pod printed as the one rank."""

    name: str
    first: datetime
    last: datetime

    def overlaps(self, other: _Span) -> bool:
        is_other = other.name != self.name
        return is_other and self.first <= other.last and other.first <= self.last


class Together:
    """What the pods of a job have printed as the one rank; their threads share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spans: dict[str, _Span] = {}  # by the pod's uid
        self._reported = False

    def set_back(self, at: datetime) -> None:
        """Count nothing from before: another pod may have the rank once the workers start again."""
        with self._lock:
            self._spans = {uid: span for uid, span in self._spans.items() if span.first > at}

    def forget(self, pod: PodFacts) -> None:
        """Take what the pod prints from now on as that of another start."""
        with self._lock:
            self._spans.pop(pod.uid, None)

    def printed(self, pod: PodFacts, line: LogLine) -> list[RelayEvent]:
        """Take in a line that one rank of all prints; return the event if another pod does, too.

        One span within another's is no move of the rank from pod to pod: both print at once.
        """
        with self._lock:
            if self._reported:
                return []
            span = self._spans.setdefault(pod.uid, _Span(pod.name, line.at, line.at))
            span.first, span.last = min(span.first, line.at), max(span.last, line.at)
            other = next((each for each in self._spans.values() if span.overlaps(each)), None)
            while len(self._spans) > _MAX_PODS:
                del self._spans[next(iter(self._spans))]
            self._reported = other is not None
        if other is None:
            return []
        return [
            PodsApart(
                event_id=run_event_id(pod.run_id, "apart", pod.job),
                run_id=pod.run_id,
                at=line.at,
                job=pod.job,
                pods=(min(pod.name, other.name), max(pod.name, other.name)),
            )
        ]

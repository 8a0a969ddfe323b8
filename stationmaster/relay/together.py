"""Notices that the pods of a job train each for itself: two print at once what one rank prints,
or begin with the same losses of batches that should be their own.

torchrun names its rendezvous with LOGLEVEL=INFO only, so nothing else in a log says so.
"""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from stationmaster.domain.run.events import PodsApart, RelayEvent, run_event_id
from stationmaster.relay.lines import LogLine, PodFacts

# What HF's Trainer, accelerate and Lightning say on every rank that has no other.
_ALONE: Final = re.compile(
    r"distributed training: False|\bDistributed environment: (?:DistributedType\.)?NO\b"
    r"|GLOBAL_RANK: 0, MEMBER: 1/1\b"
)
_HINTS: Final = ("istributed", "MEMBER")  # without one of these a line is none of them
_SAME: Final = 3  # equal losses at a start: no chance, with six digits each
_MAX_PODS: Final = 256  # that are remembered, earlier ones of a place among them


@dataclass(slots=True)
class _Span:
    """From when until when a pod printed as the one rank."""

    name: str
    first: datetime
    last: datetime

    is_alone: bool = False
    """Whether it said that it trains alone."""

    def contradicts(self, other: _Span) -> bool:
        is_at_once = self.first <= other.last and other.first <= self.last
        return other.name != self.name and (is_at_once or (self.is_alone and other.is_alone))


class Together:
    """What the pods of a job have printed as the one rank; their threads share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spans: dict[str, _Span] = {}  # by the pod's uid
        self._begun: dict[str, tuple[str, list[tuple[int, float]]]] = {}  # name and first figures
        self._reported = False

    def set_back(self, at: datetime) -> None:
        """Count nothing from before: another pod may have the rank once the workers start again."""
        with self._lock:
            self._spans = {uid: span for uid, span in self._spans.items() if span.first > at}
            self._begun.clear()

    def forget(self, pod: PodFacts) -> None:
        """Take what the pod prints from now on as that of another start."""
        with self._lock:
            self._spans.pop(pod.uid, None)
            self._begun.pop(pod.uid, None)

    def printed(self, pod: PodFacts, line: LogLine) -> list[RelayEvent]:
        """Take in a line that one rank of all prints; return the event if another pod does, too.

        One span within another's is no move of the rank from pod to pod: both print at once.
        """
        return self._take(pod, line, is_alone=False)

    def read(self, pod: PodFacts, line: LogLine) -> list[RelayEvent]:
        """Take in any line; return the event if its process and another pod's train alone."""
        if not any(hint in line.text for hint in _HINTS) or not _ALONE.search(line.text):
            return []
        return self._take(pod, line, is_alone=True)

    def began(self, pod: PodFacts, line: LogLine, of: tuple[int, float]) -> list[RelayEvent]:
        """Take in step and loss of a rank's own batch; return the event if another's are the same.

        Only the first count: ranks that have joined have batches of their own from the first on.
        """
        with self._lock:
            _, first = self._begun.setdefault(pod.uid, (pod.name, []))
            if self._reported or len(first) == _SAME:
                return []
            first.append(of)
            known = [(name, theirs) for name, theirs in self._begun.values() if name != pod.name]
            other = next((n for n, theirs in known if len(first) == _SAME and theirs == first), "")
            while len(self._begun) > _MAX_PODS:
                del self._begun[next(iter(self._begun))]
            self._reported = bool(other)
        return [_apart(pod, line, other)] if other else []

    def _take(self, pod: PodFacts, line: LogLine, *, is_alone: bool) -> list[RelayEvent]:
        with self._lock:
            if self._reported:
                return []
            span = self._spans.setdefault(pod.uid, _Span(pod.name, line.at, line.at))
            span.first, span.last = min(span.first, line.at), max(span.last, line.at)
            span.is_alone = span.is_alone or is_alone
            other = next((each for each in self._spans.values() if span.contradicts(each)), None)
            while len(self._spans) > _MAX_PODS:
                del self._spans[next(iter(self._spans))]
            self._reported = other is not None
        return [_apart(pod, line, other.name)] if other is not None else []


def _apart(pod: PodFacts, line: LogLine, other: str) -> PodsApart:
    return PodsApart(
        event_id=run_event_id(pod.run_id, "apart", pod.job),
        run_id=pod.run_id,
        at=line.at,
        job=pod.job,
        pods=(min(pod.name, other), max(pod.name, other)),
    )

"""Events, log tails and heartbeats on their way to the bus: the relay's only way out.

Watchers and log followers put events in, one sender thread puts batches on EventBridge. The batcher
is bounded: when the bus is slow, `put` waits, and with it the follower that reads the log, so that
nothing is dropped. While another relay leads, it keeps what the leader may not have sent
(relay/pending.py).
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from time import monotonic
from typing import Final

from stationmaster.domain.bus import LogTail, RelayBatch
from stationmaster.domain.ids import RunId
from stationmaster.domain.run.events import ProgressReported, RelayEvent, run_event_id
from stationmaster.relay.bus import BusSender
from stationmaster.relay.leases import Sent
from stationmaster.relay.pending import LogPlace, Pending

logger = logging.getLogger(__name__)

FLUSH_AFTER_S: Final = 0.25
# Steps and log lines wait for a part of the time that the relay has led so far, up to a limit: a
# run that has just begun is seen at once, and a long one sends at most 300 batches an hour.
PATIENCE: Final = 1 / 60
LONGEST_PATIENCE_S: Final = 15.0
MAX_BATCH_EVENTS: Final = 200
# An EventBridge entry may have 256 KiB with its envelope; see also bus.MAX_CALL_BYTES.
MAX_BATCH_BYTES: Final = 200_000
CAPACITY_EVENTS: Final = 4_000
KEPT_EVENTS: Final = 20_000  # by a relay that stands by; a kilobyte each at most, as a rule
HEARTBEAT_EVERY_S: Final = 20.0
TAIL_EVERY_S: Final = 2.0
TAIL_LINES: Final = 60
TAIL_LINE_CHARS: Final = 500
# What a trainer reports is shown as a sentence; once it is cut nothing can read it.
OWN_LINE_CHARS: Final = 4_000
MAX_TAIL_BYTES: Final = 40_000
# Above this many pods, tails are sent less often, so that they never crowd out events.
PODS_AT_FULL_TAIL_RATE: Final = 8


@dataclass
class _Tail:
    lines: deque[tuple[str, datetime]] = field(default_factory=lambda: deque(maxlen=TAIL_LINES))
    at: datetime = datetime(1970, 1, 1, tzinfo=UTC)
    changed: bool = False
    due: float = 0.0  # monotonic time before which it is not sent again


@dataclass(frozen=True)
class Traffic:
    """How much was read and sent, and how late that is. Where another relay leads none waits."""

    num_lines: int
    num_sent: int
    num_waiting: int
    behind_s: float
    newest: ProgressReported | None


class Batcher:
    """What waits to be sent, and the thread that sends it."""

    def __init__(
        self,
        *,
        run_id: RunId,
        sender: BusSender,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._run_id = run_id
        self._sender = sender
        self._job_may_exist: Callable[[], bool] = lambda: True
        self._blind_s: Callable[[], float] = lambda: 0.0
        self._now = now
        self._condition = threading.Condition()
        self._pending = Pending()
        self._leads = False
        self._tails: dict[str, _Tail] = {}
        self._flush_at: float | None = None  # when what waits must go
        self._led_at = self._heartbeat_at = monotonic()
        self._closing = False
        self._num_lines = self._num_sent = 0
        self._newest: ProgressReported | None = None
        self._thread = threading.Thread(target=self._run, name="sender", daemon=True)

    def start(
        self,
        *,
        job_may_exist: Callable[[], bool] = lambda: True,
        blind_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """Start the sender, which waits until `lead`.

        Heartbeats continue while `job_may_exist` says so; `blind_s` says for how long a watch has
        been cut. Both are called under the batcher's lock and must take none themselves.
        """
        self._job_may_exist = job_may_exist
        self._blind_s = blind_s
        self._thread.start()

    def lead(self, sent: Sent | None) -> None:
        """Send from now on; the first batch is a heartbeat. Repeating it does no harm.

        `sent` is what the leader before this one has sent, or None.
        """
        with self._condition:
            if sent is not None:
                self._pending.lead(sent.logs)
            if not self._leads:
                self._leads = True
                self._led_at = self._heartbeat_at = monotonic()
                self._condition.notify_all()

    def learn(self, sent: Sent, *, written_after: float | None) -> None:
        """Note that another relay leads and has sent so much, written after this monotonic time."""
        objects_before = None
        if written_after is not None and sent.behind_s is not None:
            objects_before = written_after - sent.behind_s
        with self._condition:
            self._leads = False
            self._pending.drop_sent(sent.logs, objects_before=objects_before)
            self._condition.notify_all()

    def sent(self) -> Sent:
        """Return what this relay, which leads, has put on the bus."""
        with self._condition:
            behind_s = max(self._pending.behind_s(monotonic()), self._blind_s())
            return Sent(behind_s=behind_s, logs=self._pending.sent_logs())

    def traffic(self) -> Traffic:
        """Return how much went through, and what waits."""
        with self._condition:
            unsent = self._pending.unsent(monotonic()) if self._leads else (0, 0.0)
            behind_s = max(unsent[1], self._blind_s())
            return Traffic(self._num_lines, self._num_sent, unsent[0], behind_s, self._newest)

    def put(
        self, events: Sequence[RelayEvent], *, urgent: bool = False, place: LogPlace | None = None
    ) -> bool:
        """Hand over events, in order; waits while the batcher is full. `place`: of a log's events.

        Returns:
            False when the relay is going down and the events were not taken: a later relay reads
                them again.
        """
        sized = [(event, len(event.model_dump_json().encode())) for event in events]
        with self._condition:
            while len(self._pending) >= self._capacity and not self._closing:
                self._condition.wait()
            if self._closing:
                return False
            was_below = len(self._pending) < MAX_BATCH_EVENTS
            self._pending.add(sized, place=place, seen_at=monotonic())
            now_full = was_below and len(self._pending) >= MAX_BATCH_EVENTS
            now = monotonic()
            can_wait = all(event.is_frequent for event in events)
            wait_s = self._patience_s(now) if can_wait else FLUSH_AFTER_S
            self._flush_by(now + (0.0 if urgent else wait_s), wake=now_full)
            steps = (e for e in (self._newest, *events) if isinstance(e, ProgressReported))
            self._newest = max(steps, key=lambda step: (step.at, step.seq), default=None)
        return True

    def keep_line(self, pod: str, text: str, at: datetime) -> None:
        """Keep a log line of a pod for its tail."""
        with self._condition:
            self._num_lines += 1
            tail = self._tails.setdefault(pod, _Tail())
            is_own = '"stationmaster"' in text
            tail.lines.append((text[: OWN_LINE_CHARS if is_own else TAIL_LINE_CHARS], at))
            tail.at = max(tail.at, at)
            if not tail.changed:
                tail.changed = True
                now = monotonic()
                self._flush_by(max(tail.due, now + self._patience_s(now)), wake=False)

    def end_of_log(self, pod: str) -> None:
        """Send the last lines of a pod that has ended at once."""
        with self._condition:
            tail = self._tails.get(pod)
            if tail is not None and tail.changed:
                tail.due = 0.0
                self._flush_by(monotonic(), wake=True)

    def forget_pod(self, pod: str) -> None:
        """Forget a pod that is gone once its tail is sent."""
        with self._condition:
            tail = self._tails.get(pod)
            if tail is not None and not tail.changed:
                del self._tails[pod]

    def close(self, *, timeout_s: float) -> bool:
        """Send what waits and stop; False when the time was not enough.

        A relay that stands by sends nothing: what it keeps is the other's to send.
        """
        deadline = monotonic() + timeout_s
        with self._condition:
            self._closing = True
            self._condition.notify_all()
        self._sender.stop_retrying_at(deadline)
        if self._thread.ident is not None:
            self._thread.join(max(0.0, deadline - monotonic()))
        with self._condition:
            left = len(self._pending) if self._leads else 0
        if self._thread.is_alive() or left:
            logger.warning("stopped before everything was sent", extra={"events_left": left})
            return False
        return True

    @property
    def _capacity(self) -> int:
        return CAPACITY_EVENTS if self._leads else KEPT_EVENTS

    def _patience_s(self, now: float) -> float:
        """Return how long steps and log lines may wait at a time."""
        return min(max(FLUSH_AFTER_S, PATIENCE * (now - self._led_at)), LONGEST_PATIENCE_S)

    def _flush_by(self, at: float, *, wake: bool) -> None:
        """Let the sender run at `at` at the latest; the caller holds the lock."""
        if self._flush_at is None or at < self._flush_at:
            self._flush_at = at
            wake = True
        if wake:
            self._condition.notify_all()

    def _run(self) -> None:
        while True:
            with self._condition:
                self._wait_until_due()
                closing = self._closing
                batches = self._take_batches() if self._leads else []
                self._condition.notify_all()  # there is room again
            arrived = not batches or self._sender.send(batches)
            with self._condition:
                if arrived:
                    self._num_sent += self._pending.arrived()
                else:
                    self._pending.back()
                    # Going down, and the bus did not take them in time; or the lease was lost.
                    self._leads = closing = self._closing
            if closing and not (batches and arrived):
                return

    def _wait_until_due(self) -> None:
        while not self._closing:
            if not self._leads:
                self._condition.wait()
                continue
            wait_s = self._due_in_s(monotonic())
            if wait_s <= 0:
                return
            self._condition.wait(wait_s)

    def _due_in_s(self, now: float) -> float:
        if len(self._pending) >= MAX_BATCH_EVENTS:
            return 0.0
        due = self._heartbeat_at
        return (due if self._flush_at is None else min(due, self._flush_at)) - now

    def _take_batches(self) -> list[RelayBatch]:
        now = monotonic()
        tails = self._take_tails(now)
        # One that is due before the next batch goes with this one.
        soon_s = self._patience_s(now) if tails or len(self._pending) else 0.0
        heartbeat = now + soon_s >= self._heartbeat_at
        if heartbeat:
            self._heartbeat_at = now + HEARTBEAT_EVERY_S
            heartbeat = self._job_may_exist()
        batches: list[RelayBatch] = []
        while len(batches) < self._sender.max_batches:
            events, size = self._pending.take(most=MAX_BATCH_EVENTS, most_bytes=MAX_BATCH_BYTES)
            some_tails: list[LogTail] = []
            while tails and size + tails[-1][1] <= MAX_BATCH_BYTES:
                tail, tail_size = tails.pop()
                some_tails.append(tail)
                size += tail_size
            if not events and not some_tails and not heartbeat:
                break
            batches.append(self._batch(events, some_tails, heartbeat=heartbeat))
            heartbeat = False
        for tail, _ in tails:  # no room in this call: again in the next
            self._tails[tail.pod].changed = True
            self._tails[tail.pod].due = 0.0
        self._flush_at = self._next_flush(now)
        return batches

    def _take_tails(self, now: float) -> list[tuple[LogTail, int]]:
        every_s = TAIL_EVERY_S * max(1.0, len(self._tails) / PODS_AT_FULL_TAIL_RATE)
        taken = []
        for pod, tail in self._tails.items():
            if tail.changed and (tail.due <= now or self._closing):
                tail.changed = False
                tail.due = now + every_s
                taken.append(_capped(_as_sent(pod, tail)))
        return taken

    def _next_flush(self, now: float) -> float | None:
        times = [max(now, tail.due) for tail in self._tails.values() if tail.changed]
        if len(self._pending):
            times.append(now)
        return min(times, default=None)

    def _batch(
        self, events: list[RelayEvent], tails: list[LogTail], *, heartbeat: bool
    ) -> RelayBatch:
        at = self._now()
        identity: list[str] = [event.event_id for event in events]
        identity += [f"{tail.pod} {tail.at.isoformat()} {len(tail.lines)}" for tail in tails]
        if heartbeat:
            identity.append(at.isoformat())
        return RelayBatch(
            run_id=self._run_id,
            batch_id=run_event_id(self._run_id, "batch", *identity),
            at=at,
            events=events,
            log_tails=tails,
            heartbeat=heartbeat,
        )


def _as_sent(pod: str, tail: _Tail) -> LogTail:
    ages_s = [int((tail.at - at).total_seconds()) for _, at in tail.lines]
    return LogTail(pod=pod, at=tail.at, lines=[text for text, _ in tail.lines], ages_s=ages_s)


def _capped(tail: LogTail) -> tuple[LogTail, int]:
    """Cut a tail that is too large as JSON, oldest lines first; return it with its size."""
    while True:
        size, number = len(tail.model_dump_json().encode()), len(tail.lines)
        if size <= MAX_TAIL_BYTES or number <= 1:
            return tail, size
        cut = max(1, number // 4)
        tail = tail.model_copy(update={"lines": tail.lines[cut:], "ages_s": tail.ages_s[cut:]})

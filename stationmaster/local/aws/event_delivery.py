"""Delivers EventBridge events to rule targets in the background, in order, with retries.

The patch of moto's rules hands matching events over here, so that PutEvents never waits for a
handler. One queue and one thread serve each target of each rule.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass

logger = logging.getLogger(__name__)

# First attempt and three retries, in real seconds; EventBridge itself retries for up to 24 hours.
_BACK_OFFS_S = (0.1, 0.3, 0.9)


class DeliveryError(Exception):
    """One attempt to deliver failed."""


@dataclass(frozen=True)
class Delivery:
    """One event on its way to one target."""

    rule: str
    target_arn: str
    payload: bytes
    event_id: str


class RuleDelivery:
    """One first-in first-out worker a target."""

    def __init__(
        self,
        *,
        send: Callable[[Delivery], None],
        discard: Callable[[Delivery, str, int], None],
    ) -> None:
        """`send` makes one attempt and raises `DeliveryError` when it fails.

        `discard` gets what was tried in vain, why the last attempt failed, and how many there were.
        """
        self._send = send
        self._discard = discard
        self._queues: dict[tuple[str, str], queue.Queue[Delivery | None]] = {}
        self._guard = threading.Lock()
        self._pending = 0
        self._stopped = threading.Event()

    def submit(self, delivery: Delivery) -> None:
        """Queue an event; returns at once."""
        if self._stopped.is_set():
            return
        key = (delivery.rule, delivery.target_arn)
        with self._guard:
            self._pending += 1
            waiting = self._queues.get(key)
            if waiting is None:
                waiting = self._queues[key] = queue.Queue()
                threading.Thread(
                    target=self._work, args=(waiting,), name=f"rule-{delivery.rule}", daemon=True
                ).start()
        waiting.put(delivery)

    @property
    def idle(self) -> bool:
        """Whether everything submitted was delivered or dropped."""
        with self._guard:
            return self._pending == 0

    def stop(self) -> None:
        """End the workers; what is still queued is lost."""
        self._stopped.set()
        with self._guard:
            for waiting in self._queues.values():
                waiting.put(None)

    def _work(self, waiting: queue.Queue[Delivery | None]) -> None:
        while (delivery := waiting.get()) is not None and not self._stopped.is_set():
            try:
                self._deliver(delivery)
            finally:
                with self._guard:
                    self._pending -= 1

    def _deliver(self, delivery: Delivery) -> None:
        for back_off_s in (*_BACK_OFFS_S, None):
            try:
                self._send(delivery)
                return
            except DeliveryError as exc:
                reason = str(exc)
            if self._stopped.wait(back_off_s or 0):
                return  # whatever keeps what was in vain stops as well
        logger.error(
            "event dropped after its retries",
            extra={
                "rule": delivery.rule,
                "target": delivery.target_arn,
                "event_id": delivery.event_id,
                "reason": reason,
            },
        )
        self._discard(delivery, reason, len(_BACK_OFFS_S) + 1)

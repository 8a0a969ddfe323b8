"""What goes otherwise at first: new things that nobody knows yet, answers that get lost.

Calls are counted instead of seconds, so that the same happens at every speed. Each fault has its
source in `local.faults`.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import Final

# What a run is made of; the answers that the product's own records get are not lost.
_SERVICES: Final = frozenset({"ec2", "eks", "fsx"})


class FirstCalls:
    """Thread-safe record of what is new, and of what has been asked how often."""

    def __init__(self, faults: set[str]) -> None:
        self._faults = faults
        self._guard = threading.Lock()
        self._new: set[str] = set()
        self._asked: Counter[tuple[str, str]] = Counter()

    def made(self, identity: str) -> None:
        """Note that something was created a moment ago."""
        if "eventual-consistency" in self._faults:
            with self._guard:
                self._new.add(identity)

    def settle(self, identity: str) -> None:
        """Note that something has been there for long enough to be known everywhere."""
        with self._guard:
            self._new.discard(identity)

    def is_unknown(self, identity: str, *, to: str) -> bool:
        """Say whether the operation `to` does not know something in this call."""
        with self._guard:
            return identity in self._new and self._is_early(identity, to)

    def is_in_use(self, identity: str) -> bool:
        """Say whether a placement group whose instances are gone still counts as used."""
        with self._guard:
            return "placement-group-in-use" in self._faults and self._is_early(identity, "", 2)

    def loses_answer(self, service: str, operation: str) -> bool:
        """Say whether a call's answer is lost: it took effect, and the client cannot know."""
        creates = service in _SERVICES and operation.startswith("Create")
        with self._guard:
            return "lost-answers" in self._faults and creates and self._is_early(service, operation)

    def _is_early(self, about: str, operation: str, times: int = 1) -> bool:
        """Count a call, and say whether it is one of the first."""
        self._asked[about, operation] += 1
        return self._asked[about, operation] <= times

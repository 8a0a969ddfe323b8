"""Whose answers get lost: the request took effect, and the connection ends before the answer.

With the fault "lost-answers" the first request of each creating operation is such a one; the client
cannot know, and asks again. Source: EC2 developer guide, "Ensuring idempotency in Amazon EC2 API
requests".
"""

from __future__ import annotations

import threading
from typing import Final

FAULT: Final = "lost-answers"
# What a run is made of; the product's own records are not lost.
_SERVICES: Final = frozenset({"ec2", "eks", "fsx"})


class LostAnswers:
    """Thread-safe record of the operations whose first answer was lost."""

    def __init__(self, faults: set[str]) -> None:
        self._faults = faults
        self._guard = threading.Lock()
        self._lost: set[tuple[str, str]] = set()

    def take(self, service: str, operation: str) -> bool:
        """Say whether this answer gets lost."""
        if FAULT not in self._faults or service not in _SERVICES:
            return False
        if not operation.startswith("Create"):
            return False
        with self._guard:
            is_first = (service, operation) not in self._lost
            self._lost.add((service, operation))
            return is_first

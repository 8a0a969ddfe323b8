"""How long something new is unknown elsewhere in the account: EC2 is consistent only after a while.

With the fault "eventual-consistency", the first request of each operation that names a new security
group or launch template does not know it yet. Requests are counted instead of seconds, so that the
same happens at every speed. Source: EC2 developer guide, "Eventual consistency in the Amazon EC2
API".
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

FAULT: Final = "eventual-consistency"
# An operation knows something new when it has been asked for it this often.
UNKNOWN_TIMES: Final = 1
# A placement group is free when its deletion has been refused this often.
IN_USE_TIMES: Final = 2


class Propagation:
    """Thread-safe record of what is new, and of who has asked for it."""

    def __init__(self, faults: set[str]) -> None:
        self._faults = faults
        self._guard = threading.Lock()
        self._new: set[str] = set()
        self._asked: dict[tuple[str, str], int] = {}
        self._is_deploying = False

    @contextmanager
    def deploying(self) -> Iterator[None]:
        """Let what is made meanwhile be known at once: a deployment is older than its runs."""
        self._is_deploying = True
        try:
            yield
        finally:
            self._is_deploying = False

    def made(self, identity: str) -> None:
        """Note that something was created a moment ago."""
        if FAULT in self._faults and not self._is_deploying:
            with self._guard:
                self._new.add(identity)

    def settle(self, identity: str) -> None:
        """Note that something has been there for long enough to be known everywhere."""
        with self._guard:
            self._new.discard(identity)

    def is_in_use(self, identity: str) -> bool:
        """Say whether a placement group whose instances are gone still counts as used.

        Only with the fault "placement-group-in-use".
        """
        with self._guard:
            if "placement-group-in-use" not in self._faults:
                return False
            asked = self._asked[identity, ""] = self._asked.get((identity, ""), 0) + 1
            return asked <= IN_USE_TIMES

    def is_unknown(self, identity: str, *, to: str) -> bool:
        """Say whether the operation `to` does not know it in this request."""
        with self._guard:
            if FAULT not in self._faults or identity not in self._new:
                return False
            asked = self._asked[identity, to] = self._asked.get((identity, to), 0) + 1
            return asked <= UNKNOWN_TIMES

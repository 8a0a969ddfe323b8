"""Records every API call and makes chosen ones fail, so that tests can break each of them; and what
goes otherwise at the first calls.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass
from typing import Final

from stationmaster.local.aws.wire import ApiError

# Injected as an error code, it closes the connection instead of answering.
CONNECTION_CLOSED = "ConnectionClosed"
# What a run is made of; the answers that the product's own records get are not lost.
_SERVICES: Final = frozenset({"ec2", "eks", "fsx"})


@dataclass
class _Rule:
    service: str
    operation: str
    error: ApiError
    times: int
    after: int


class FaultInjector:
    """Thread-safe list of calls seen and of errors to inject."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._rules: list[_Rule] = []
        self._calls: list[tuple[str, str]] = []

    @property
    def calls(self) -> list[tuple[str, str]]:
        """A copy of the (service, operation) pairs seen so far, in order."""
        with self._guard:
            return list(self._calls)

    def forget_calls(self) -> None:
        """Empty the record of calls."""
        with self._guard:
            self._calls.clear()

    def clear(self) -> None:
        """Drop every error that is still to be injected."""
        with self._guard:
            self._rules.clear()

    def inject(
        self,
        service: str,
        operation: str,
        code: str,
        *,
        times: int = 1,
        after: int = 0,
        message: str = "injected by a test",
    ) -> None:
        """Make the next `times` calls fail, once `after` matching calls have passed.

        `service` is the endpoint prefix or signing name ("eks", "ec2", "states", ...),
        `operation` the API name ("CreateCluster"); "*" matches any. The code
        `CONNECTION_CLOSED` closes the connection instead of answering.
        """
        if times < 1 or after < 0:
            raise ValueError(f"times={times}, after={after}: expected times >= 1 and after >= 0")
        error = ApiError(code, message)
        with self._guard:
            self._rules.append(_Rule(service, operation, error, times, after))

    def check(self, service: str, operation: str) -> ApiError | None:
        """Record a call; return the error that it must fail with, or None."""
        with self._guard:
            self._calls.append((service, operation))
            for rule in self._rules:
                if rule.service not in ("*", service) or rule.operation not in ("*", operation):
                    continue
                if rule.after > 0:
                    rule.after -= 1
                    continue
                rule.times -= 1
                if rule.times == 0:
                    self._rules.remove(rule)
                return rule.error
        return None


class FirstCalls:
    """What goes otherwise at first: new things that nobody knows yet, answers that get lost.

    Calls are counted instead of seconds, so that the same happens at every speed. Each fault has
    its source in `local.faults`.
    """

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

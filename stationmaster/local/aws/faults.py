"""Records every API call and makes chosen ones fail, so that tests can break each of them."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from stationmaster.local.aws.wire import ApiError

# Injected as an error code, it closes the connection instead of answering.
CONNECTION_CLOSED = "ConnectionClosed"


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

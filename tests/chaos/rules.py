"""What can be done to the calls of one run: they break, are repeated or wait.

`tests.chaos.runtime` applies them.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from stationmaster.local.aws.runtime import error_payload

FOR_GOOD: Final = 1_000_000
# Ends a hang; no machine is so slow.
HELD_S: Final = 1800.0


@dataclass
class Fault:
    """Calls of one function that end in an error.

    `only` must be part of the payload and `without` must not be a key of it; `lost` lets the
    handler do its work and loses its answer.
    """

    function: str
    error: str = "PermanentError"
    message: str = "broken by the test"
    times: int = FOR_GOOD
    only: Mapping[str, Any] = field(default_factory=dict)
    without: str = ""
    lost: bool = False

    def matches(self, function: str, payload: Mapping[str, Any]) -> bool:
        """Whether a call is one of those that fail."""
        return self.times > 0 and _fits(self, function, payload)

    def answer(self) -> tuple[bytes, bool]:
        """What Lambda answers for it."""
        return error_payload(error_type=self.error, message=self.message), True


class Way(StrEnum):
    """What becomes of a call that is disturbed."""

    REFUSED = "refused"
    """It has no effect."""
    ANSWERED_BADLY = "answered badly"
    """It takes effect, and the caller gets an error."""
    RESENT = "resent"
    """Its answer is lost, and the client sends the same request again."""


@dataclass
class ApiFault:
    """Calls of one operation, made by a run's functions, that do not go as they should.

    `code` is what AWS answers; of `kubernetes` it is the HTTP status.
    """

    service: str
    operation: str
    code: str = ""
    times: int = FOR_GOOD
    way: Way = Way.REFUSED

    def takes(self, service: str, operation: str, *ways: Way) -> bool:
        """Whether a call is one of those; one that is counts as used."""
        is_one = (
            self.times > 0
            and (self.service, self.operation) == (service, operation)
            and self.way in ways
        )
        self.times -= is_one
        return is_one


@dataclass
class Hold:
    """The first call of a function waits until it is let go: before it begins or, with `after`,
    before it answers.

    `having` must be a key of its payload, `without` must not be one, and `only` is part of it.
    """

    function: str
    having: str = ""
    without: str = ""
    only: Mapping[str, Any] = field(default_factory=dict)
    after: bool = False
    is_taken: bool = False
    reached: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)

    def matches(self, function: str, payload: Mapping[str, Any]) -> bool:
        """Whether a call is the one that waits here."""
        is_had = not self.having or self.having in payload
        return not self.is_taken and is_had and _fits(self, function, payload)

    def wait(self) -> None:
        """Called by the runtime, on the function's thread."""
        self.reached.set()
        assert self.released.wait(HELD_S), f"nobody let {self.function} go"


def _fits(rule: Fault | Hold, function: str, payload: Mapping[str, Any]) -> bool:
    has_all = all(payload.get(key) == value for key, value in rule.only.items())
    return function == rule.function and has_all and rule.without not in payload

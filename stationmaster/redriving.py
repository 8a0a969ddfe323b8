"""Sending dead letters again: each to the function that it was for, in the same words.

Functions take in everything any number of times, so a letter that is sent twice does no harm. What
fails again stays where it is. The command line calls this with a person's own credentials.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from stationmaster.aws.dead_letters import (
    DeadLetter,
    DeadLetterQueue,
    Functions,
    RecordsExpired,
    read_records,
)
from stationmaster.aws.set_aside_store import SetAside, SetAsideStore
from stationmaster.domain.errors import StationmasterError
from stationmaster.domain.frozen import Frozen

TABLE: Final = "the table"


class Outcome(StrEnum):
    """What became of a letter."""

    WAITS = "waits"
    SENT = "sent again"
    FAILED = "failed again"
    EXPIRED = "expired"
    UNKNOWN = "not understood"


class Redriven(Frozen):
    """One letter, as the command line prints it."""

    where: str
    id: str
    sent_at: str
    function: str
    what: str
    reason: str
    outcome: Outcome
    error: str = ""


@dataclass(frozen=True)
class Redriver:
    """The places where letters lie, and the functions that get them."""

    queues: Sequence[DeadLetterQueue]
    set_aside: SetAsideStore
    functions: Functions
    streams: Any
    prefix: str = ""
    """Before a function's name in the registry: the deployment and a dash; nothing locally."""
    wait_s: int = 2

    def look(self) -> list[Redriven]:
        """Return every letter, all of which stay as they are."""
        found = []
        for queue in self.queues:
            letters = [*queue.receive(wait_s=self.wait_s)]
            for letter in letters:
                queue.release(letter)
                outcome = Outcome.WAITS if letter.function else Outcome.UNKNOWN
                found.append(_line(letter, outcome))
        return found + [_entry_line(entry, Outcome.WAITS) for entry in self.set_aside.list()]

    def send_again(self) -> Iterator[Redriven]:
        """Send each letter once; what was taken in is deleted, the rest waits for another time."""
        for queue in self.queues:
            kept = []
            try:
                for letter in queue.receive(wait_s=self.wait_s):
                    outcome, error = self._send_letter(letter)
                    if outcome in (Outcome.SENT, Outcome.EXPIRED):
                        queue.delete(letter)
                    else:
                        kept.append(letter)
                    yield _line(letter, outcome, error=error)
            finally:
                for letter in kept:  # only now, so that none is received twice
                    queue.release(letter)
        for entry in [*self.set_aside.list()]:
            yield self._send_entry(entry)

    def _send_letter(self, letter: DeadLetter) -> tuple[Outcome, str]:
        if not letter.function:
            return Outcome.UNKNOWN, ""
        payload = letter.payload
        if letter.records is not None:
            try:
                payload = {"Records": read_records(self.streams, letter.records)}
            except RecordsExpired as exc:
                # Cards and receipts are drawn from the table every minute, posts in threads not.
                return Outcome.EXPIRED, str(exc)
            except StationmasterError as exc:
                return Outcome.FAILED, str(exc)
        return self._invoke(letter.function, payload)

    def _send_entry(self, entry: SetAside) -> Redriven:
        if entry.is_cut:
            error = "it was too long to keep whole; see the function's logs"
            return _entry_line(entry, Outcome.FAILED, error=error)
        function = f"{self.prefix}{entry.function}"
        outcome, error = self._invoke(function, json.loads(entry.payload))
        if outcome is Outcome.SENT:
            self.set_aside.delete(entry.item_id)
        return _entry_line(entry, outcome, error=error)

    def _invoke(self, function: str, payload: Any) -> tuple[Outcome, str]:
        try:
            answer, error = self.functions.invoke(function, payload)
        except StationmasterError as exc:
            return Outcome.FAILED, str(exc)
        if not error and isinstance(answer, dict) and answer.get("set_aside"):
            error = "it became a dead letter again"
        return (Outcome.FAILED, error) if error else (Outcome.SENT, "")


def _line(letter: DeadLetter, outcome: Outcome, *, error: str = "") -> Redriven:
    return Redriven(
        where=letter.queue,
        id=letter.message_id,
        sent_at=letter.sent_at.isoformat(timespec="seconds"),
        function=letter.function.rpartition(":")[2],
        what=_what(letter),
        reason=letter.reason,
        outcome=outcome,
        error=error,
    )


def _entry_line(entry: SetAside, outcome: Outcome, *, error: str = "") -> Redriven:
    return Redriven(
        where=TABLE,
        id=entry.item_id,
        sent_at=entry.at.isoformat(timespec="seconds"),
        function=entry.function,
        what=entry.what,
        reason=entry.reason,
        outcome=outcome,
        error=error,
    )


def _what(letter: DeadLetter) -> str:
    if letter.records is not None:
        return f"records {letter.records.first} to {letter.records.last} of the table's stream"
    payload = letter.payload
    if not letter.function or not isinstance(payload, dict):
        return "a message"
    detail = payload.get("detail")
    of = ""
    if isinstance(detail, dict):
        named = (detail.get(key) for key in ("run_id", "cluster_id", "name"))
        of = next((f" of {name}" for name in named if name), "")
    return f"{payload.get('detail-type') or 'an invocation'}{of}"

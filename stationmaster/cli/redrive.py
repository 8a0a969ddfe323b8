"""What `stationmaster redrive` does: lists the dead letters of a deployment, or sends each again to
the function that it was for, in the same words.

The deployment is named with --deployment, and reached with the credentials of whoever types it;
without a name it is that of a local mode that runs. Functions take in everything any number of
times, so a letter that is sent twice does no harm. What fails again stays where it is.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from stationmaster.aws.calls import make_client
from stationmaster.aws.dead_letters import (
    DeadLetter,
    DeadLetterQueue,
    Functions,
    RecordsExpired,
    read_records,
)
from stationmaster.aws.set_aside_store import SetAside, SetAsideStore
from stationmaster.cli.deployed import local_settings
from stationmaster.domain.errors import StationmasterError
from stationmaster.domain.frozen import Frozen
from stationmaster.domain.names import DEAD_LETTER_QUEUES
from stationmaster.settings import PREFIX

# Any function of a deployment knows its table; this one is also invoked.
_RECORDER: Final = "recorder"


def redrive(arguments: argparse.Namespace) -> int:
    """List or send again; 0 when nothing is left that failed."""
    redriver = _redriver(arguments)
    if arguments.dry_run:
        found = redriver.look()
    else:
        found = []
        for one in redriver.send_again():
            found.append(one)
            if not arguments.json:
                print(f"{one.outcome.value}: {one.what}{f': {one.error}' if one.error else ''}")
    if arguments.json:
        print(json.dumps([one.model_dump(mode="json") for one in found], indent=2))
    elif not found:
        print("no dead letters")
    elif arguments.dry_run:
        _print_table(found)
    return 1 if any(one.outcome in _FAILED for one in found) else 0


def _redriver(arguments: argparse.Namespace) -> Redriver:
    deployment = arguments.deployment
    if deployment:
        functions = Functions(_client("lambda"))
        prefix = f"{deployment}-"
        table = functions.variables(f"{prefix}{_RECORDER}").get(f"{PREFIX}TABLE_NAME", "")
    else:
        settings = local_settings(arguments)
        functions, prefix = Functions(_client("lambda")), ""
        deployment, table = settings.deployment, settings.table_name
    return Redriver(
        queues=[
            DeadLetterQueue(f"{deployment}-{name}", _client("sqs")) for name in DEAD_LETTER_QUEUES
        ],
        set_aside=SetAsideStore(table, _client("dynamodb")),
        functions=functions,
        streams=_client("dynamodbstreams"),
        prefix=prefix,
    )


def _client(service: str) -> Any:
    return make_client(service, region=None)


def _print_table(found: list[Redriven]) -> None:
    table = Table("since", "for", "what", "why", "where", box=None)
    for one in found:
        table.add_row(one.sent_at, one.function or "?", one.what, one.reason, one.where)
    Console(width=None if sys.stdout.isatty() else 200).print(table)


TABLE: Final = "the table"


class Outcome(StrEnum):
    """What became of a letter."""

    WAITS = "waits"
    SENT = "sent again"
    FAILED = "failed again"
    EXPIRED = "expired"
    UNKNOWN = "not understood"


_FAILED: Final = frozenset({Outcome.FAILED, Outcome.UNKNOWN})


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

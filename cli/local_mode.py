"""What `stationmaster local up` and `stationmaster local run` do with a local mode.

`run` acts as a person: it types the command into the local Slack, prints the channel as it changes,
and waits for the teardown's receipt.
"""

from __future__ import annotations

import argparse
import errno
import json
import logging
import math
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TextIO

from rich.console import Console
from rich.markup import escape

from local.mode import DEFAULT_SPEED, LocalMode, LocalOptions, describe_endpoints
from local.slack import ApiCall
from local.stop_signals import StopSignals
from stationmaster.commands import view_run
from stationmaster.domain.cluster.events import ClusterEvent
from stationmaster.domain.commands.table import SUBCOMMANDS
from stationmaster.domain.errors import StationmasterError
from stationmaster.domain.ids import RunId
from stationmaster.domain.run.events import RunEvent
from stationmaster.domain.run.view import RunView
from stationmaster.services import Services
from stationmaster.steps.leftovers import find_left

OK, NO, BAD_INPUT = 0, 1, 2
# After a stop at the time limit, the teardown gets this long before `run` gives up on it.
TEARDOWN_GRACE_S: Final = 120.0
# A command line that waits anyway must not lose a run to the 3 s that Slack gives the bot.
_ANSWER_WITHIN_S: Final = 120.0
HISTORY_GONE: Final = (
    "runs and messages of the last start are gone: local mode keeps them in memory only"
)


def up(arguments: argparse.Namespace) -> int:
    """Serve until Ctrl-C or SIGTERM."""
    console = Console()
    try:
        with (
            StopSignals() as signals,
            LocalMode(_options(arguments, _Record(None))) as mode,
        ):
            if signals.asked():
                return OK
            places = describe_endpoints(mode)
            console.print(f"[bold]Stationmaster[/] is up: [link]{places.pop('page')}[/link]")
            for name, place in places.items():
                console.print(f"  {name:<13}{place}", highlight=False)
            if mode.state.used_before:
                console.print(HISTORY_GONE)
            console.print("type [bold]/train tiny-llama nodes=2 steps=60[/] there; Ctrl-C ends it")
            signals.wait()
            console.print("stopping, every pod ends with it")
        _name_left(mode)
    except (OSError, ValueError) as exc:
        return _refused(exc, arguments.state_dir)
    return OK


def run(arguments: argparse.Namespace) -> int:
    """Type one command and wait for its receipt; see `_verdict` for the exit code."""
    word, _, text = arguments.command.strip().partition(" ")
    if word != "/train":
        return _refused(ValueError(f'command "{word}": expected /train, e.g. "/train help"'))
    started = time.monotonic()
    try:
        with (
            StopSignals() as signals,
            _Record(arguments.json) as record,
            LocalMode(_options(arguments, record, answer_within_s=_ANSWER_WITHIN_S)) as mode,
        ):
            watch = _Watch(record, signals)
            mode.on_event(watch.event)
            mode.slack.subscribe(watch.slack)
            if mode.state.used_before:
                watch.print_line("state", HISTORY_GONE)
            code = _one_command(mode, watch, text=text, arguments=arguments, started=started)
        _name_left(mode)
    except (OSError, ValueError) as exc:
        return _refused(exc, arguments.state_dir)
    if signals.asked():
        if not mode.processes_left:
            print(
                "stationmaster: interrupted; local mode and every pod were ended", file=sys.stderr
            )
        return NO
    return code


def _name_left(mode: LocalMode) -> None:
    for process in mode.processes_left:
        print(f"stationmaster: {process} could not be ended", file=sys.stderr)


def _options(
    arguments: argparse.Namespace, record: _Record, *, answer_within_s: float = 3.0
) -> LocalOptions:
    speed = DEFAULT_SPEED if arguments.speed is None else arguments.speed
    if not (speed >= 1 and math.isfinite(speed)):
        raise ValueError(f"--speed {speed:g}: expected 1 or more")
    state_dir = arguments.state_dir.absolute()

    def claimed() -> None:
        _log_to_file(state_dir / "local.log")
        record.open()

    return LocalOptions(
        state_dir=state_dir,
        port=arguments.port,
        speed=speed,
        faults=frozenset(arguments.fault),
        answer_within_s=answer_within_s,
        on_claimed=claimed,
    )


def _log_to_file(path: Path) -> None:
    """Keep what the endpoints log out of the terminal."""
    # A line that the disk has no room for is dropped, not answered with a traceback.
    logging.raiseExceptions = False
    logging.basicConfig(
        filename=path,
        filemode="w",
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
        force=True,
    )


def _refused(exc: Exception, state_dir: Path | None = None) -> int:
    sentence = str(exc)
    if isinstance(exc, OSError) and exc.strerror:
        sentence = f"{exc.filename}: {exc.strerror}" if exc.filename else exc.strerror
        if exc.errno in (errno.ENOSPC, errno.EDQUOT):
            sentence += f"; free space in {state_dir}"
    print(f"stationmaster: {sentence}", file=sys.stderr)
    return BAD_INPUT


def _one_command(
    mode: LocalMode,
    watch: _Watch,
    *,
    text: str,
    arguments: argparse.Namespace,
    started: float,
) -> int:
    if watch.signals.asked():
        return NO
    mode.slack.type_command(f"/train {text}".strip())
    assert mode.aws is not None
    # A new run arrives with the table's stream, which may be behind the bot's answer.
    mode.aws.settle()
    if not watch.requested.is_set():
        # Nothing was started: help, a list, or a mistake that the answer explains.
        return OK if _is_answer_only(text) else BAD_INPUT
    timed_out = not watch.signals.wait_for(watch.ended, limit_s=arguments.timeout)
    if watch.signals.asked():
        return NO
    if timed_out:
        watch.print_line("limit", f"{arguments.timeout:g} s are over; stopping the run")
        mode.slack.type_command(f"/train stop {watch.run_id}")
        watch.signals.wait_for(watch.ended, limit_s=TEARDOWN_GRACE_S)
    mode.aws.settle()
    return _verdict(mode, watch, timed_out=timed_out, started=started)


def _is_answer_only(text: str) -> bool:
    first = text.split(maxsplit=1)[0].lower() if text.split() else "help"
    return first in SUBCOMMANDS and not SUBCOMMANDS[first].changes


def _verdict(mode: LocalMode, watch: _Watch, *, timed_out: bool, started: float) -> int:
    """Write the result; 0 only if the run succeeded and nothing billable is left."""
    assert mode.settings is not None
    services = Services.create(mode.settings)
    view = view_run(services, services.runs.load(watch.run_id))
    cluster = view.cluster
    try:
        found = find_left(services, cluster.cluster_id) if cluster is not None else []
        left = [str(each) for each in found]
    except StationmasterError as exc:
        left = [f"unknown: {exc}"]
    result = _result(view, left, services, wall_s=time.monotonic() - started)
    watch.record.write(result)
    good = result["status"] == "succeeded" and not left and not timed_out
    cost = f"{result['cost_usd']:.4f} USD emulated"
    remains = "nothing billable is left" if not left else f"left behind: {', '.join(left)}"
    watch.print_line("result", f"{result['status']} in {result['wall_s']:.1f} s, {cost}, {remains}")
    return OK if good else NO


def _result(view: RunView, left: list[str], services: Services, *, wall_s: float) -> dict[str, Any]:
    run = view.run
    return {
        "kind": "result",
        "status": run.phase.value,
        "reason": run.reason,
        "run_id": run.run_id,
        "cluster_id": run.cluster_id,
        "phases": run.phase_names,
        "attempts": len(run.attempts),
        "steps": run.progress.step if run.progress else 0,
        "first_loss": run.first_loss_nats,
        "last_loss": run.progress.loss_nats if run.progress else None,
        "resumed_from_step": run.resumed_from_step,
        "cost_usd": view.cost_usd(services.now()),
        "teardown": view.teardown.value,
        "billable_resources_left": len(left),
        "left": left,
        "wall_s": round(wall_s, 2),
    }


def _event_line(event: RunEvent | ClusterEvent) -> dict[str, Any]:
    """The event with its `type`; its own `at` and `kind` make room for those of the line."""
    fields = event.model_dump(mode="json")
    fields["event_at"] = fields.pop("at")
    if "kind" in fields:
        fields["resource_kind"] = fields.pop("kind")
    return {"kind": "event", **fields}


def _block_texts(blocks: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The texts of Block Kit blocks, in the order in which a person reads them."""
    for block in blocks:
        parts = [block.get("text"), *block.get("fields", []), *block.get("elements", [])]
        for part in parts:
            if isinstance(part, dict) and isinstance(part.get("text"), str):
                yield part["text"]


class _Record:
    """The JSON Lines file; without a path nothing is written."""

    def __init__(self, path: Path | None) -> None:
        self._file: TextIO | None = None
        self._path = path
        self._guard = threading.Lock()

    def __enter__(self) -> _Record:
        return self

    def open(self) -> None:
        """Begin the file anew.

        Raises:
            ValueError: it cannot be written.
        """
        if self._path is not None:
            try:
                self._file = self._path.open("w")
            except OSError as exc:
                raise ValueError(f"--json {self._path}: {exc.strerror}") from exc

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            with suppress(OSError):  # what is left to write found no room
                self._file.close()

    def write(self, line: dict[str, Any]) -> None:
        """Write one line at once, so that a reader can follow."""
        if self._file is None or self._file.closed:
            return
        at = datetime.now(UTC).isoformat()
        with self._guard:
            try:
                self._file.write(json.dumps({"at": at, **line}) + "\n")
                self._file.flush()
            except OSError as exc:
                # The run continues: whoever reads the file sees that it has no result.
                print(
                    f"stationmaster: --json {self._path}: {exc.strerror}; nothing more is recorded",
                    file=sys.stderr,
                )
                self.__exit__()


class _Watch:
    """Follows one run from the outside: prints the channel, records it, knows when it is over."""

    def __init__(self, record: _Record, signals: StopSignals) -> None:
        self.record = record
        self.signals = signals
        self.run_id = RunId("")
        self._has_cluster = False
        self.requested = threading.Event()
        self.ended = threading.Event()
        self._console = Console()
        self._texts: dict[str, str] = {}

    def print_line(self, what: str, text: str) -> None:
        """One printed line, with the time of day."""
        clock = datetime.now().astimezone().strftime("%H:%M:%S")
        # A line stays whole where no terminal folds it, so that a log can be searched.
        self._console.print(
            f"[dim]{clock}[/] [bold]{what:<8}[/] {escape(text)}", highlight=False, soft_wrap=True
        )

    def event(self, event: RunEvent | ClusterEvent) -> None:
        """Take in an event of a run or of its cluster, as the table's stream delivers it."""
        self.record.write(_event_line(event))
        if event.type == "run.requested":
            self.run_id = event.run_id
            self.record.write({"kind": "phase", "run_id": event.run_id, "phase": "requested"})
            self.requested.set()
        elif event.type == "run.phase_changed":
            line = {"kind": "phase", "run_id": event.run_id, "phase": event.phase.value}
            self.record.write(line)
            if event.phase.is_terminal and not self._has_cluster:
                self.ended.set()  # there is nothing to tear down
        elif event.type == "attempt.started":
            self._has_cluster = True
        elif event.type in ("teardown.completed", "teardown.failed"):
            self.ended.set()

    def slack(self, call: ApiCall) -> None:
        """Take in a change of the channel; an edit that says nothing new is not printed."""
        self.record.write(
            {
                "kind": "slack",
                "method": call.method,
                "channel": call.channel,
                "ts": call.ts,
                "text": call.text,
            }
        )
        key = f"{call.channel}/{call.ts}"
        if self._texts.get(key) == call.text or not call.text:
            return
        what, shown = "edited" if key in self._texts else "posted", call.text
        if call.method == "command_response":
            # An answer is read once, so it is printed in full; everything else is a line.
            what, shown = "answer", "\n".join(_block_texts(call.blocks)) or call.text
        self._texts[key] = call.text
        self.print_line(what, shown)

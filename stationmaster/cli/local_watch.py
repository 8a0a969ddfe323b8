"""What `local run` sees of a local mode: prints the channel as it changes, and records it.

`local_script` types commands, asks what each has caused, and waits for its end.
"""

from __future__ import annotations

import json
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TextIO

from rich.console import Console
from rich.markup import escape

from stationmaster.domain.block_text import block_text, plain
from stationmaster.domain.cluster.events import (
    ClusterEvent,
    ClusterRequested,
    DeletionRequested,
    PassBegan,
)
from stationmaster.domain.commands.grammar import parse_command
from stationmaster.domain.commands.requests import ListClusters, Look, ShowCluster
from stationmaster.domain.errors import UserError
from stationmaster.domain.ids import ClusterId, RunId
from stationmaster.domain.run.events import PhaseChanged, RunEvent, RunRequested, StopRequested
from stationmaster.local.slack.records import ApiCall

# What an accepted command that starts, changes or ends something writes at once.
_EFFECTS: Final = frozenset(
    {
        "run.requested",
        "run.stop_requested",
        "cluster.requested",
        "cluster.keep_extended",
        "cluster.deletion_requested",
        "cluster.pass_began",
    }
)
# After one of these, a run or a cluster may have come to its end.
_TURNS: Final = ("run.phase_changed", "lease.", "cluster.phase_changed", "teardown.")


class Record:
    """The JSON Lines file; without a path nothing is written."""

    def __init__(self, path: Path | None) -> None:
        self._file: TextIO | None = None
        self._path = path
        self._guard = threading.Lock()

    def __enter__(self) -> Record:
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


class Watch:
    """Follows the channel and the table from the outside."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.turned = threading.Event()
        """Set whenever something may have ended; whoever waits clears it and looks."""
        self._console = Console()
        self._texts: dict[str, str] = {}
        self._effects: list[RunEvent | ClusterEvent] = []
        self._guard = threading.Lock()

    def take_effects(self) -> list[RunEvent | ClusterEvent]:
        """Return what commands have started, changed or ended since this was last asked."""
        with self._guard:
            taken, self._effects = self._effects, []
        return taken

    def print_line(self, what: str, text: str) -> None:
        """Print one line, with the time of day."""
        clock = datetime.now().astimezone().strftime("%H:%M:%S")
        # A line stays whole where no terminal folds it, so that a log can be searched.
        self._console.print(
            f"[dim]{clock}[/] [bold]{what:<8}[/] {escape(text)}", highlight=False, soft_wrap=True
        )

    def event(self, event: RunEvent | ClusterEvent) -> None:
        """Take in an event of a run or of its cluster, as the table's stream delivers it."""
        self.record.write(_event_line(event))
        if isinstance(event, RunRequested):
            self.record.write({"kind": "phase", "run_id": event.run_id, "phase": "requested"})
        elif isinstance(event, PhaseChanged):
            line = {"kind": "phase", "run_id": event.run_id, "phase": event.phase.value}
            self.record.write(line)
        if event.type in _EFFECTS:
            with self._guard:
                self._effects.append(event)
        if event.type.startswith(_TURNS):
            self.turned.set()

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
            what, shown = "answer", block_text(call.blocks) or call.text
        self._texts[key] = call.text
        self.print_line(what, plain(shown))


def _event_line(event: RunEvent | ClusterEvent) -> dict[str, Any]:
    """Return the event with its `type`; its own `at` and `kind` make room for those of the line."""
    fields = event.model_dump(mode="json")
    fields["event_at"] = fields.pop("at")
    if "kind" in fields:
        fields["resource_kind"] = fields.pop("kind")
    return {"kind": "event", **fields}


@dataclass
class Typed:
    """One command that was typed, and what it has caused."""

    text: str
    started: float
    at: datetime
    """When it was typed, by the clock of the events."""
    runs: list[RunId] = field(default_factory=list)
    clusters: list[ClusterId] = field(default_factory=list)
    """Those that it makes or changes: it ends when they are ready, or gone."""
    gone: list[ClusterId] = field(default_factory=list)
    """Those that it deletes: it ends when they are gone."""
    stopped: list[RunId] = field(default_factory=list)
    """Runs of earlier commands that it stops: it ends when they have."""
    is_accepted: bool = False
    is_question: bool = False
    timed_out: bool = False
    wall_s: float = 0.0


def take_in(typed: Typed, effect: RunEvent | ClusterEvent) -> None:
    """Remember what a command has caused; what an earlier run caused meanwhile is left out."""
    match effect:
        case RunRequested():
            typed.runs.append(effect.run_id)
        case StopRequested():
            typed.stopped.append(effect.run_id)
        case ClusterRequested(run_id=None):
            typed.clusters.append(effect.cluster_id)
        case PassBegan(user_id=user_id) if user_id:
            typed.clusters.append(effect.cluster_id)
        case DeletionRequested():
            typed.gone.append(effect.cluster_id)
        case ClusterRequested() | PassBegan():
            return  # by a run of an earlier command
    typed.is_accepted = True


def is_question(text: str) -> bool:
    """Say whether it only asks; a command that is refused is none."""
    try:
        return isinstance(parse_command(text), Look | ListClusters | ShowCluster)
    except UserError:
        return text.split(maxsplit=1)[:1] == ["plan"]

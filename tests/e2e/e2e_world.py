"""Whole local modes for the end-to-end tests: started on free ports, watched through run events."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import pytest

from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.cluster.events import ClusterEvent
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import RunEvent
from stationmaster.local.faults import DEFAULT_LIMITS
from stationmaster.local.mode import LocalMode, LocalOptions
from stationmaster.local.slack.records import TRAINING_CHANNEL_ID
from stationmaster.services import Services
from stationmaster.steps.parts.leftovers import find_left
from tests.chaos.direct_calls import without_connection
from tests.chaos.forked_programs import add_programs
from tests.support.patience import PATIENCE_S

# How soon a workflow looks again at pods that start anyhow: each look costs CPU that they need.
LOOK_S = 0.4
# How Chromium is started.
LAUNCH_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


class World:
    """A running local mode and everything that was seen of its runs."""

    def __init__(self, mode: LocalMode) -> None:
        self.mode = mode
        self.events: list[RunEvent | ClusterEvent] = []
        self._changed = threading.Condition()
        mode.on_event(self._take)

    def _take(self, event: RunEvent | ClusterEvent) -> None:
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()

    def type(self, text: str, **who: str):
        """Type a command as a person; the answer's text."""
        return self.mode.slack.type_command(text, **who)

    def start(self, text: str) -> str:
        """Type a command that starts a run; its id."""
        known = len(self.of_type("run.requested"))
        self.type(text)
        self.wait(lambda: len(self.of_type("run.requested")) > known, f"{text} starts a run")
        return self.of_type("run.requested")[-1].run_id

    def of_type(self, name: str) -> list[RunEvent | ClusterEvent]:
        """Events of one type, in order."""
        return [event for event in list(self.events) if event.type == name]

    def wait(self, condition: Callable[[], object], what: str, limit_s: float = PATIENCE_S) -> None:
        """Wait until `condition` holds, looking again at each event."""
        deadline = time.monotonic() + limit_s
        with self._changed:
            while not condition():
                left = deadline - time.monotonic()
                if left <= 0:
                    seen = [f"{event.type} {getattr(event, 'reason', '')}" for event in self.events]
                    pytest.fail(f"waited {limit_s:.0f} s in vain: {what}; seen: {seen[-15:]}")
                self._changed.wait(timeout=min(left, 0.5))

    def wait_for(self, name: str, limit_s: float = PATIENCE_S) -> RunEvent | ClusterEvent:
        """Wait for the first event of a type."""
        self.wait(lambda: self.of_type(name), f"an event {name}", limit_s)
        return self.of_type(name)[0]

    def wait_for_receipt(self, run_id: str) -> Run:
        """Wait until the run is torn down; the run as stored."""
        self.wait(
            lambda: any(
                event.type in ("teardown.completed", "teardown.failed")
                and event.cluster_id == run_id  # a run's own cluster has its id
                for event in list(self.events)
            ),
            f"the end of {run_id}'s teardown",
        )
        assert self.mode.aws is not None
        assert self.mode.aws.settle(timeout_s=PATIENCE_S)
        return self.services.runs.load(run_id)

    @property
    def services(self) -> Services:
        """The product's own view of the account."""
        assert self.mode.settings is not None
        return Services(self.mode.settings)

    def cluster(self, run_id: str) -> Cluster:
        """The run's own cluster, as stored."""
        return self.services.cluster_states.load(run_id)

    def left(self, run_id: str) -> list[str]:
        """What AWS still has of the run."""
        return [str(left) for left in find_left(self.services, run_id)]

    def card(self, run_id: str):
        """The run's card in the channel."""
        return next(
            message
            for message in self.mode.slack.messages(TRAINING_CHANNEL_ID)
            if run_id in str(message.blocks)
            and "receipt" not in message.text.lower()
            and not message.text.startswith("cluster ")  # its cluster's card names it, too
        )

    def thread_text(self, run_id: str) -> str:
        """Everything that was said in the run's thread."""
        replies = self.mode.slack.thread(TRAINING_CHANNEL_ID, self.card(run_id).ts)
        return "\n".join(f"{reply.text} {reply.blocks}" for reply in replies)


def processes() -> dict[int, tuple[int, str]]:
    """Every process as pid -> (parent's pid, command line)."""
    if not Path("/proc/self/stat").exists():  # macOS
        listing = subprocess.run(
            ["ps", "-axwwo", "pid=,ppid=,command="], capture_output=True, text=True, check=True
        ).stdout
        rows = (line.split(maxsplit=2) for line in listing.splitlines())
        return {int(row[0]): (int(row[1]), row[2]) for row in rows if len(row) == 3}
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # it ended meanwhile
        found[int(entry.name)] = (parent, command)
    return found


def torchruns(run_id: str) -> set[int]:
    """Processes that run the torchrun of one of the run's pods, started or forked."""
    return {
        pid
        for pid, (_, command) in processes().items()
        if "torchrun" in command and run_id in command
    }


@contextmanager
def world(state_dir: Path, *, forks: bool = False, **options: Any) -> Iterator[World]:
    """A local mode of its own, stopped at the end with every pod.

    With `forks` relays, trainers and the like are not started but forked, and the functions' calls
    of AWS are handed over without a connection, where neither is what the test is about.
    """
    if forks:
        programs = state_dir.parent / f"{state_dir.name}-programs"
        programs.mkdir()
        add_programs(programs, trains=True)
        options["extra_path"] = programs
    options["limits"] = DEFAULT_LIMITS | options.get("limits", {})
    options = {"port": 0, "answer_within_s": PATIENCE_S, "shortest_wait_s": LOOK_S} | options
    with LocalMode(LocalOptions(state_dir=state_dir, **options)) as mode:
        if forks:
            assert boto3.DEFAULT_SESSION is not None
            assert mode.aws is not None
            boto3.DEFAULT_SESSION.events.register("before-send", without_connection(mode.aws))
        yield World(mode)

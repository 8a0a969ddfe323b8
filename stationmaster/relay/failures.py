"""Turns what a container's log says of processes that ended badly into events. Pure.

The agent of torch elastic names the exit code of each worker that failed; a container without an
agent ends with a code of its own, and the last line that matters is in its log.
"""

from __future__ import annotations

import re
import signal
from typing import Any

from stationmaster.diagnosis.evidence import Evidence
from stationmaster.domain.run.events import (
    ProcessFailed,
    RelayEvent,
    WorkersRestarting,
    run_event_id,
)
from stationmaster.domain.run.failure_lines import FailureLines
from stationmaster.domain.run.failures import FOLLOWING_CODES
from stationmaster.relay.lines import LogLine, PodFacts

# Printed by torch/distributed/elastic/multiprocessing/api.py at level ERROR, always.
_WORKER_FAILED = re.compile(r"failed \(exitcode: (-?\d{1,5})\) local_rank: (\d{1,6}) ")
# Printed by torch/distributed/elastic/agent/server/api.py at level INFO, only with LOGLEVEL=INFO.
# Its other "will restart worker group" line (new nodes detected) is how an agent takes part in a
# restart that another one reported, so it is no fact of its own.
_GROUP_RESTARTS = re.compile(
    r"Worker group (?:FAILED|UNHEALTHY)\. (\d{1,6})/(\d{1,6}) attempts left;"
    r" will restart worker group"
)
# 128 + SIGKILL: who is killed from outside has printed nothing about it.
_KILLED = 137


class FailureReader:
    """Reads the lines of one pod's training container for bad ends, over its restarts."""

    def __init__(self, pod: PodFacts) -> None:
        self._pod = pod
        self._container_run = 0
        self._begin()

    def start_container_run(self, container_run: int) -> None:
        """Take what is read from now on as printed after the container's nth restart."""
        self._container_run = container_run
        self._begin()

    def _begin(self) -> None:
        self._lines, self._evidence = FailureLines(), Evidence()
        self._failures = self._restarts_reported = 0
        self._failure = ""
        self._reported = False

    def read(self, line: LogLine) -> list[RelayEvent] | None:
        """Return the events of a line of the agent, or None when it is none of its lines."""
        self._lines.take(line.text)
        if "orker group " not in line.text and "exitcode: " not in line.text:
            self._evidence.take(line.text)
            return None
        if match := _WORKER_FAILED.search(line.text):
            return self._worker_failed(line, code=int(match[1]), local_rank=int(match[2]))
        if match := _GROUP_RESTARTS.search(line.text):
            return self._restart(line, int(match[2]) - int(match[1]) + 1)
        return []

    def container_ended(self, *, exit_code: int | None, at: LogLine | None) -> list[RelayEvent]:
        """Return the event of a run of the container whose log was read to its end.

        There is none where it ended well, or where its agent named the worker that failed. An
        unknown exit code, of a pod that was gone before it could be looked at, counts as bad when a
        line of the log does.
        """
        lines = self._lines
        line = lines.cause or lines.peer
        if exit_code not in (None, _KILLED):
            line = line or lines.last
        if exit_code == 0 or self._reported or at is None or not line:
            return []
        self._reported = True
        return [
            self._failed(
                at,
                ("container failed", self._pod.uid, self._container_run),
                line=line,
                evidence=self._evidence.beside(line, is_named=bool(lines.cause)),
                lost_peer=not lines.cause and (bool(lines.peer) or exit_code in FOLLOWING_CODES),
            )
        ]

    def _worker_failed(self, line: LogLine, *, code: int, local_rank: int) -> list[RelayEvent]:
        self._failures += 1
        # Workers that follow are stopped (-15), or give up after a lost peer; gloo and NCCL's
        # watchdog abort them.
        is_aborted = code == -signal.SIGABRT and not self._lines.cause
        lost_peer = code == -signal.SIGTERM or code in FOLLOWING_CODES or is_aborted
        how = _describe_exit(code, local_rank=local_rank)
        self._failure = f"{how}: it lost another worker" if lost_peer else how
        said = self._lines.cause or self._lines.peer or (self._lines.last if code > 0 else "")
        # Who is killed from outside has printed nothing about it.
        is_own = not lost_peer and code != -signal.SIGKILL
        evidence = self._evidence.beside(said, is_named=bool(self._lines.cause)) if is_own else ""
        # What follows is of the next attempt, or of the agent.
        self._lines, self._evidence = FailureLines(), Evidence()
        self._reported = True
        failed = self._failed(
            line,
            ("process failed", self._pod.uid, line.stamp, line.ordinal),
            process=how,
            line=said,
            evidence=evidence,
            lost_peer=lost_peer,
        )
        if self._failures > (self._pod.max_restarts or 0):
            return [failed]  # no attempt is left, or it is not known: the INFO line would say
        return [failed, *self._restart(line, self._failures)]

    def _failed(self, at: LogLine, identity: tuple[object, ...], /, **said: Any) -> ProcessFailed:
        return ProcessFailed(
            event_id=run_event_id(self._pod.run_id, *identity),
            run_id=self._pod.run_id,
            at=at.at,
            pod=self._pod.name,
            restarts=self._container_run,
            **said,
        )

    def _restart(self, line: LogLine, restart: int) -> list[RelayEvent]:
        if restart <= self._restarts_reported:
            return []
        self._restarts_reported = restart
        # Every pod's agent reports the same restart: job and number identify it, not the pod.
        identity = run_event_id(
            self._pod.run_id, "workers restarting", self._pod.job, self._container_run, restart
        )
        return [
            WorkersRestarting(
                event_id=identity,
                run_id=self._pod.run_id,
                at=line.at,
                pod=self._pod.name,
                reason=self._failure or "the worker group failed",
            )
        ]


def _describe_exit(code: int, *, local_rank: int) -> str:
    if code >= 0:
        return f"process {local_rank} exited with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"process {local_rank} was killed by {name}"

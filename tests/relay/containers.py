"""A training container's log, read line by line. Shared by tests of what the relay makes of it."""

from __future__ import annotations

from typing import Any

from stationmaster.domain.run.events import RelayEvent
from stationmaster.relay.lines import LogLine, PodFacts
from stationmaster.relay.parsing import LineInterpreter

RUNS_ON = object()


def facts(**changed: Any) -> PodFacts:
    """What the specification of a worker says."""
    usual = {"run_id": "run-1", "job": "run-1", "name": "run-1-worker-0", "uid": "uid-0"}
    return PodFacts(**{"container": "pytorch"} | usual | changed)


def line(text: str, second: int = 5, ordinal: int = 0) -> LogLine:
    return LogLine(f"2026-01-02T03:{second // 60:02}:{second % 60:02}.678901234Z", ordinal, text)


def read(*texts: str, exit_code: Any = RUNS_ON, **changed: Any) -> list[RelayEvent]:
    """The events of a log, a line a second; with an exit code also those of its end."""
    interpreter = LineInterpreter(facts(**changed))
    events = []
    for second, text in enumerate(texts):
        events += interpreter.read(line(text, second))
    return events if exit_code is RUNS_ON else events + interpreter.container_ended(exit_code)


def worker_failed(code: int) -> str:
    """What torchrun says of a worker that failed."""
    return (
        "E1122 03:44:54.664000 26052 torch/distributed/elastic/multiprocessing/api.py:1002] "
        f"failed (exitcode: {code}) local_rank: 0 (pid: 26084) of binary: /usr/bin/python3"
    )

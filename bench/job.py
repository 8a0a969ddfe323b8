"""The main job, measured from outside: `stationmaster local run` as a person starts it.

The command writes its JSON Lines into a pipe, and every line is stamped when it comes out, since
the lines of events carry the time of the event and not of their writing. One run serves every
figure that is read from it. Nothing here imports the product.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Final

from bench.figures import AtLeast, AtMost, Figure, percentile

COMMAND: Final = "/train tiny-llama nodes=2 steps=60"
TIMEOUT_S: Final = 240
_REPOSITORY: Final = Path(__file__).resolve().parent.parent

Line = dict[str, Any]


@dataclass(frozen=True)
class JobRecord:
    """One run as it was shown: each line with the moment at which it came out of the command."""

    began: datetime
    ended: datetime
    exit_code: int
    lines: Sequence[tuple[datetime, Line]]

    @property
    def result(self) -> Line:
        """The last line.

        Raises:
            RuntimeError: the run did not come to its end.
        """
        last: Line = self.lines[-1][1] if self.lines else {}
        if self.exit_code or last.get("kind") != "result":
            raise RuntimeError(
                f'"{COMMAND}" exited {self.exit_code} after {len(self.lines)} lines, the last is '
                f"{last}; expected 0 and a result"
            )
        return last

    def events(self, kind: str, **fields: object) -> list[tuple[datetime, Line]]:
        """Return the lines of run events of a type, whose fields have the given values."""
        return [
            (seen, line)
            for seen, line in self.lines
            if line.get("type") == kind and all(line.get(k) == v for k, v in fields.items())
        ]

    def calls(self, method: str) -> list[tuple[datetime, Line]]:
        """Return the Slack calls of a method, by the moment at which Slack took them."""
        return [
            (seen, line)
            for seen, line in self.lines
            if line.get("kind") == "slack" and line.get("method") == method
        ]


@dataclass(frozen=True, kw_only=True)
class Stretches:
    """Where the wall clock of a run went, in seconds."""

    to_receipt: float
    to_command: float
    to_pods: float
    pods: float
    to_first_step: float
    after_pods: float

    @property
    def control_plane(self) -> float:
        """What is not the training pods themselves, the start of local mode included."""
        return self.to_receipt - self.pods


def stretches(record: JobRecord) -> Stretches:
    """Cut a run at its own lines.

    The pods run from the phase change to `running` (the operator reports the job as running, the
    same moment at which the kubelet started the containers, to 0.3 s) to the relay's last
    `pod.changed` to Succeeded of a training pod. That one has whole seconds, as Kubernetes keeps
    them, so the moment at which its line came out bounds it from above.

    Raises:
        RuntimeError: a line that every successful run has is missing.
    """
    (asked, _) = _only(record.events("run.requested"), "run.requested")
    (_, running) = _only(record.events("run.phase_changed", phase="running"), "phase running")
    ends = record.events("pod.changed", phase="Succeeded")
    steps = record.events("progress.reported")
    receipts = [seen for seen, line in record.calls("chat.postMessage") if _is_receipt(line)]
    if not (ends and steps and receipts):
        raise RuntimeError(
            f"{len(ends)} pods succeeded, {len(steps)} progress lines, {len(receipts)} receipts; "
            "expected at least one of each"
        )
    started, first_step = _time(running["event_at"]), _time(steps[0][1]["event_at"])
    ended = max(_end_of_second(seen, _time(line["event_at"])) for seen, line in ends)
    return Stretches(
        to_receipt=(receipts[-1] - record.began).total_seconds(),
        to_command=(asked - record.began).total_seconds(),
        to_pods=(started - asked).total_seconds(),
        pods=(ended - started).total_seconds(),
        to_first_step=(first_step - started).total_seconds(),
        after_pods=(receipts[-1] - ended).total_seconds(),
    )


def line_delays_s(record: JobRecord) -> list[float]:
    """Measure from the trainer's own stamp in a progress line to its event out of the stream."""
    return [
        (seen - _time(line["event_at"])).total_seconds()
        for seen, line in record.events("progress.reported")
    ]


def busiest_minute(moments: Sequence[datetime]) -> int:
    """Return the most moments in any 60 seconds."""
    window: deque[datetime] = deque()
    most = 0
    for moment in sorted(moments):
        window.append(moment)
        while (moment - window[0]).total_seconds() >= 60:
            window.popleft()
        most = max(most, len(window))
    return most


def measure_job() -> list[Figure]:
    """Return the wall clock of the main job, where it went, and how fast lines travel."""
    record = run_main_job()
    result = record.result
    parts = stretches(record)
    delays = line_delays_s(record)
    return [
        Figure(
            name="main-job to receipt",
            value=parts.to_receipt,
            unit="s",
            target=AtMost(60),
            note=f"{result['steps']} steps, {result['billable_resources_left']} resources left",
        ),
        Figure(
            name="main-job control plane",
            value=parts.control_plane,
            unit="s",
            target=AtMost(8),
            note=f"start of local mode {parts.to_command:.1f}, command to pods {parts.to_pods:.1f},"
            f" last pod to receipt {parts.after_pods:.1f}",
        ),
        Figure(
            name="main-job pods",
            value=parts.pods,
            unit="s",
            note=f"{parts.to_first_step:.1f} of them to the first step",
        ),
        Figure(
            name="log line to table, p95",
            value=percentile(delays, 95),
            unit="s",
            target=AtMost(1),
            note=f"of {len(delays)}, read back from the stream; median "
            f"{percentile(delays, 50):.2f}, worst {max(delays):.2f}",
        ),
    ]


def measure_slack_calls() -> list[Figure]:
    """Return how often the card is edited, and whether it ends on the final state."""
    record = run_main_job()
    edits = record.calls("chat.update")
    ends = f"{record.result['status']}"
    endings = sum(ends in line["text"] for _, line in edits[-1:])
    return [
        Figure(
            name="slack-calls chat.update, busiest minute",
            value=busiest_minute([seen for seen, _ in edits]),
            unit="calls",
            target=AtMost(50),
            note=f"{len(edits)} edits and {len(record.calls('chat.postMessage'))} posts in all",
        ),
        Figure(
            name="slack-calls final state delivered",
            value=endings,
            unit="",
            target=AtLeast(1),
            note=f"the card's last edit: {edits[-1][1]['text']}" if edits else "no edit",
        ),
    ]


@cache
def run_main_job() -> JobRecord:
    """Run the main job once in a process; its output is read line by line as it happens."""
    program = Path(sys.executable).with_name("stationmaster")
    with tempfile.TemporaryDirectory(prefix="bench-job-") as state:
        reading, writing = os.pipe()
        options = ["--state-dir", state, "--json", f"/dev/fd/{writing}"]
        options += ["--timeout", str(TIMEOUT_S)]
        began = datetime.now(UTC)
        deadline = time.monotonic() + TIMEOUT_S
        with subprocess.Popen(
            [program, "local", "run", COMMAND, *options],
            pass_fds=(writing,),
            stdout=subprocess.DEVNULL,
            cwd=_REPOSITORY,
        ) as process:
            os.close(writing)
            # The pipe ends with the command, which has a limit of its own.
            with os.fdopen(reading) as pipe:
                lines = [(datetime.now(UTC), json.loads(text)) for text in pipe]
            exit_code = process.wait(timeout=max(1.0, deadline - time.monotonic()))
    return JobRecord(began=began, ended=datetime.now(UTC), exit_code=exit_code, lines=lines)


def _only(found: Sequence[tuple[datetime, Line]], what: str) -> tuple[datetime, Line]:
    if len(found) != 1:
        raise RuntimeError(f"{len(found)} lines of {what}, expected one")
    return found[0]


def _is_receipt(line: Line) -> bool:
    return str(line["text"]).startswith("receipt of ")


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _end_of_second(seen: datetime, whole: datetime) -> datetime:
    """Return a moment known to the second: as late as it can have been."""
    return min(seen, whole.replace(microsecond=999_999))

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
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any, Final

from bench.figures import Figure, percentile

COMMAND: Final = "/train tiny-llama nodes=2 steps=60"
TIMEOUT_S: Final = 240

Line = dict[str, Any]
Seen = tuple[datetime, Line]
"""A line, and when it came out of the command."""


@dataclass(frozen=True)
class JobRecord:
    """One run as it was shown."""

    began: datetime
    exit_code: int
    lines: Sequence[Seen]

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

    def found(self, **fields: object) -> list[Seen]:
        """Return the lines whose fields have the given values."""
        return [one for one in self.lines if fields.items() <= one[1].items()]


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
    posts = record.found(kind="slack", method="chat.postMessage")
    of_kind = {
        "requests": record.found(type="run.requested"),
        "starts of the pods": record.found(type="run.phase_changed", phase="running"),
        "pods succeeded": record.found(type="pod.changed", phase="Succeeded"),
        "progress lines": record.found(type="progress.reported"),
        "receipts": [one for one in posts if str(one[1]["text"]).startswith("receipt of ")],
    }
    if not all(of_kind.values()):
        counts = ", ".join(f"{len(found)} {what}" for what, found in of_kind.items())
        raise RuntimeError(f"{counts}; expected at least one of each")
    [(asked, _), *_], [starting, *_], ends, [step, *_], receipts = of_kind.values()
    started, receipt = happened(starting), receipts[-1][0]
    ended = max(min(one[0], happened(one).replace(microsecond=999_999)) for one in ends)
    return Stretches(
        to_receipt=(receipt - record.began).total_seconds(),
        to_command=(asked - record.began).total_seconds(),
        to_pods=(started - asked).total_seconds(),
        pods=(ended - started).total_seconds(),
        to_first_step=(happened(step) - started).total_seconds(),
        after_pods=(receipt - ended).total_seconds(),
    )


def happened(one: Seen) -> datetime:
    """Return when the event of a line happened."""
    return datetime.fromisoformat(one[1]["event_at"])


def busiest_minute(moments: Sequence[datetime]) -> int:
    """Return the most moments in any 60 seconds."""
    minute = timedelta(minutes=1)
    return max(sum(begin <= one < begin + minute for one in moments) for begin in moments)


def measure_job() -> list[Figure]:
    """Return the wall clock of the main job, where it went, and how fast lines travel."""
    record = run_main_job()
    result = record.result
    parts = stretches(record)
    # From the trainer's own stamp in a progress line to its event out of the stream.
    reported = record.found(type="progress.reported")
    delays = [(one[0] - happened(one)).total_seconds() for one in reported]
    return [
        Figure(
            name="main-job to receipt",
            value=parts.to_receipt,
            unit="s",
            at_most=60,
            note=f"{result['steps']} steps, {result['billable_resources_left']} resources left",
        ),
        Figure(
            name="main-job control plane",
            value=parts.control_plane,
            unit="s",
            at_most=8,
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
            at_most=1,
            note=f"of {len(delays)}, read back from the stream; median "
            f"{percentile(delays, 50):.2f}, worst {max(delays):.2f}",
        ),
    ]


def measure_slack_calls() -> list[Figure]:
    """Return how often the card is edited, and whether it ends on the final state."""
    record = run_main_job()
    edits = record.found(kind="slack", method="chat.update")
    last = str(edits[-1][1]["text"]) if edits else "no edit"
    posts = record.found(kind="slack", method="chat.postMessage")
    return [
        Figure(
            name="slack-calls chat.update, busiest minute",
            value=busiest_minute([seen for seen, _ in edits]) if edits else 0,
            unit="calls",
            at_most=50,
            note=f"{len(edits)} edits and {len(posts)} posts in all",
        ),
        Figure(
            name="slack-calls final state delivered",
            value=record.result["status"] in last,
            unit="",
            at_least=1,
            note=f"the card's last edit: {last}",
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
        with subprocess.Popen(
            [program, "local", "run", COMMAND, *options],
            pass_fds=(writing,),
            stdout=subprocess.DEVNULL,
            cwd=Path(__file__).parents[1],
        ) as process:
            os.close(writing)
            # The pipe ends with the command, which has a limit of its own.
            with os.fdopen(reading) as pipe:
                lines = [(datetime.now(UTC), json.loads(text)) for text in pipe]
    return JobRecord(began=began, exit_code=process.returncode, lines=lines)

"""How long a run stands still after a sudden death: from the kill to the first step after it.

Two nodes with one worker each, as processes of this machine, the demo's model with one small batch
a step, so that what is measured is noticing, meeting again, loading libraries and resuming. Agents
are started again at once, where a cluster adds the kubelet's 10 s of back-off and, for a node that
is gone, a new node.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from bench.figures import Figure
from bench.gang import Gang, Lines, Pod, etcd_server, newest_start, num_starts

_LIMIT_S: Final = 10.0
_KEYS: Final = (
    *("sequence_length=64", "global_batch_size=4", "steps=1000000"),
    *("checkpoint_every=20", "log_every=1"),
)


def measure_recovery() -> list[Figure]:
    """Worker and agent deaths under c10d, and under etcd where it is installed."""
    return [*_measure("c10d"), *(_measure("etcd-v2") if shutil.which("etcd") else [])]


def _measure(backend: str) -> list[Figure]:
    environ = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        # Without it a restarted worker may dial a port of the dead generation.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
    with (
        tempfile.TemporaryDirectory(prefix="bench-recovery-") as name,
        nullcontext() if backend == "c10d" else etcd_server(Path(name)) as endpoint,
        Gang(
            ["-m", "training", "tiny-llama", *_KEYS, "--output-dir", f"{name}/out"],
            environ=environ,
            directory=Path(name),
            nnodes="2:2",
            backend=backend,
            endpoint=endpoint,
            max_restarts=10,
        ) as gang,
    ):
        gang.add(2)
        first, second = gang.pods
        workers = [_stood_still_s(gang, pod, Pod.kill_worker) for pod in (first, second, first)]
        agents = [_stood_still_s(gang, pod, Pod.kill_agent) for pod in (second, first)]
    return [
        _figure(f"kill -9 of a worker, {backend}", workers),
        _figure(f"kill -9 of an agent, {backend}", agents),
    ]


def _stood_still_s(gang: Gang, pod: Pod, kill: Callable[[Pod], None]) -> float:
    starts = num_starts(gang.wait_for_save(start=1))
    gang.wait_for_save(start=starts)
    kill(pod)
    killed_at = datetime.now(UTC)

    def goes_on(lines: Lines) -> bool:
        return num_starts(lines) > starts and _first_step_at(lines) is not None

    first_step_at = _first_step_at(gang.wait_for(goes_on, what=f"a step after {pod.name}'s death"))
    assert first_step_at is not None
    return (first_step_at - killed_at).total_seconds()


def _first_step_at(lines: Lines) -> datetime | None:
    for line in newest_start(lines):
        if line["kind"] == "progress":
            return datetime.fromisoformat(line["at"])
    return None


def _figure(what: str, seconds: list[float]) -> Figure:
    return Figure(
        name=f"first step after {what}",
        value=statistics.median(seconds),
        unit="s",
        at_most=_LIMIT_S,
        note=f"median of {', '.join(f'{one:.1f}' for one in seconds)}",
    )

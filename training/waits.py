"""What the others wait for: the time that each rank computes and reads, and how busy its GPU is.

All ranks take a step together, so the time of a step says nothing of one of them. Measured is what
no other rank is waited for in: the blocks' forward passes between FSDP's exchanges, by events of
the GPU or the clock, and reading a batch. Ranks that split products or share sequences wait for
each other inside of blocks as well, and look alike.

How much of the time a GPU runs kernels, nvidia-smi measures. A GPU that waits in a collective for
another rank is busy, because NCCL waits in a kernel: one that is idle waits for its own process,
mostly for data. So the lowest of all ranks counts. The DCGM exporter would need an add-on and a way
to each node.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import median_low
from typing import Any, Final, TypedDict

import torch
from torch import nn

from training.agreement import gathered
from training.parallel import Ranks, gather_over_ranks, least_over_ranks

# Between two progress lines; of more, the first ones stand for the rest.
_MAX_PASSES: Final = 512
_EVERY_S: Final = 2  # the driver itself averages over the last second at most


class RankTimeFields(TypedDict):
    """What a progress line says of them."""

    data_wait: float
    slowest: float | None
    slowest_rank: int | None
    slowest_node: str


class RankTimes:
    """Measures this rank between two progress lines, and compares all ranks at each line."""

    def __init__(self, blocks: Sequence[nn.Module], ranks: Ranks) -> None:
        """Every rank calls it, once its blocks are sharded: FSDP's own hooks stay outside."""
        self._ranks = ranks
        self._nodes = gathered(os.environ.get("NODE_NAME") or socket.gethostname(), ranks)
        self._passes: list[tuple[Any, Any]] = []
        self._began: Any = None
        self._waited_s = 0.0
        self._steps = 0
        if ranks.world_size > 1:
            for block in blocks:
                block.register_forward_pre_hook(self._enter)
                block.register_forward_hook(self._leave, prepend=True)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Count what happens inside as the wait for the data of one step."""
        began = time.perf_counter()
        yield
        self._waited_s += time.perf_counter() - began
        self._steps += 1

    def take(self, *, step_time_s: float) -> RankTimeFields:
        """Compare the ranks since the last call; every rank calls it, and gets the same."""
        wait = self._waited_s / max(step_time_s * self._steps, self._waited_s, 1e-9)
        mine = [sum(self._seconds(*each) for each in self._passes), wait]
        times, waits = zip(*gather_over_ranks(mine, self._ranks), strict=True)
        self._passes, self._waited_s, self._steps = [], 0.0, 0
        usual, rank = median_low(times), times.index(max(times))
        is_known = usual > 0
        return {
            "data_wait": round(max(waits), 4),
            "slowest": round(times[rank] / usual, 3) if is_known else None,
            "slowest_rank": rank if is_known else None,
            "slowest_node": self._nodes[rank] if is_known else "",
        }

    def _enter(self, block: nn.Module, _inputs: object) -> None:
        if block.training and len(self._passes) < _MAX_PASSES:
            self._began = self._now()

    def _leave(self, _block: nn.Module, _inputs: object, _outputs: object) -> None:
        if self._began is not None:
            self._passes.append((self._began, self._now()))
            self._began = None

    def _now(self) -> Any:
        if self._ranks.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _seconds(self, began: Any, ended: Any) -> float:
        if self._ranks.device.type != "cuda":
            return float(ended - began)
        return float(began.elapsed_time(ended)) / 1000


class GpuUse:
    """Collects what a command prints, one percentage a line, until it ends or `close` is called."""

    def __init__(self, command: Sequence[str] | None) -> None:
        """Start the command; without one, or where it cannot be started, nothing is known."""
        self._lock = threading.Lock()
        self._sum = self._count = 0
        self._process: subprocess.Popen[str] | None = None
        if command is None:
            return
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                errors="replace",
            )
        except OSError:
            return
        # A process that is killed leaves a pipe without a reader, which ends the command as well.
        self._reader = threading.Thread(target=self._read, args=[self._process], daemon=True)
        self._reader.start()

    def take(self) -> float | None:
        """Return the mean since the last call, 0 to 1; None where nothing was printed since."""
        with self._lock:
            taken, count = self._sum, self._count
            self._sum = self._count = 0
        return taken / count / 100 if count else None

    def take_least(self, ranks: Ranks) -> float | None:
        """Return `take` of the rank whose GPU is idle most: the others wait for it, busily.

        Every rank calls it, and gets the same.
        """
        if ranks.device.type != "cuda":
            return None
        least = least_over_ranks(self.take(), ranks)
        return None if least is None else round(least, 3)

    def close(self) -> None:
        """End the command."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._reader.join()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                percent = line.strip()
                if not (percent.isascii() and percent.isdigit() and len(percent) <= 3):
                    continue  # "[N/A]", as of a part of a GPU
                with self._lock:
                    self._sum += int(percent)
                    self._count += 1


def watch_gpu(device: torch.device) -> GpuUse:
    """Measure a rank's device, where it is a GPU and the image has nvidia-smi."""
    program = shutil.which("nvidia-smi")
    if device.type != "cuda" or program is None:
        return GpuUse(None)
    uuid = str(torch.cuda.get_device_properties(device).uuid).removeprefix("GPU-")
    return GpuUse(
        [
            program,
            f"--id=GPU-{uuid}",
            "--query-gpu=utilization.gpu",
            "--format=csv,noheader,nounits",
            f"--loop={_EVERY_S}",
        ]
    )

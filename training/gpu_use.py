"""How much of the time the GPU of this rank runs kernels, as nvidia-smi measures it.

Used by the trainer for its progress lines. A GPU that waits in a collective for another rank is
busy, because NCCL waits in a kernel: one that is idle waits for its own process, mostly for data.
So the lowest of all ranks counts. The DCGM exporter would need an add-on and a way to each node.
"""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Sequence
from typing import Final

import torch

from training.parallel import Ranks, least_over_ranks

_EVERY_S: Final = 2  # the driver itself averages over the last second at most


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

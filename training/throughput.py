"""How fast a run goes: tokens, samples and seconds between two progress lines, memory and MFU.

It only measures; it must not touch tensors or ranks.
"""

from __future__ import annotations

import resource
import sys
import time
from typing import Final, TypedDict

import torch

from stationmaster.domain.catalogue.models import LanguageModel
from stationmaster.domain.catalogue.recipes import Recipe
from stationmaster.domain.catalogue.sharing import FLOAT8
from stationmaster.domain.planning.estimate import flops_per_sample

# Dense bfloat16 FLOP/s of the SXM parts. Source: NVIDIA's A100, H100, H200 and B200 data sheets.
_PEAK_FLOPS: Final = {"A100": 312e12, "H100": 989e12, "H200": 989e12, "B200": 2250e12}


class Rates(TypedDict):
    """What a progress line says of speed and memory."""

    tokens_per_s: float | None
    samples_per_s: float
    step_time_s: float
    memory_gib: float
    mfu: float | None


class Throughput:
    """Counts what all ranks did since the last progress line."""

    def __init__(self, recipe: Recipe, *, world_size: int) -> None:
        self._flops_per_sample = flops_per_sample(recipe)
        self._has_one_peak = recipe.own_training.precision != FLOAT8
        self._reads_tokens = isinstance(recipe.model, LanguageModel)
        self._world_size = world_size
        self.start()

    def start(self) -> None:
        """Begin a window: nothing counted yet."""
        self._started = time.perf_counter()
        self._steps = self._samples = 0
        self._targets = 0.0

    def add_step(self, *, targets: float, samples: int) -> None:
        """Count one step; `targets` (tokens or images) and `samples` are sums over all ranks."""
        self._steps += 1
        self._targets += targets
        self._samples += samples

    def leave_out(self, seconds: float) -> None:
        """Leave out time that was spent on something else than steps, e.g. evaluation."""
        self._started += seconds

    def take(self, device: torch.device) -> Rates:
        """Return the rates of the window as fields of a progress line; a new window starts.

        `mfu` is the recipe's FLOPs a sample (`stationmaster.domain.planning.estimate`) times
        samples a second over the peak bfloat16 FLOP/s of all GPUs; null on a CPU or an unknown GPU,
        and with products in float8: they have another peak than the rest.
        """
        elapsed = time.perf_counter() - self._started
        samples_per_s = self._samples / elapsed
        rates: Rates = {
            "tokens_per_s": round(self._targets / elapsed, 1) if self._reads_tokens else None,
            "samples_per_s": round(samples_per_s, 3),
            "step_time_s": round(elapsed / self._steps, 4),
            "memory_gib": round(peak_memory_bytes(device) / 2**30, 3),
            "mfu": self._mfu(samples_per_s, device),
        }
        self.start()
        return rates

    def _mfu(self, samples_per_s: float, device: torch.device) -> float | None:
        peak = peak_flops(device)
        if peak is None or not self._has_one_peak:
            return None
        return round(samples_per_s * self._flops_per_sample / (peak * self._world_size), 4)


def peak_flops(device: torch.device) -> float | None:
    """Return dense bfloat16 FLOP/s of the GPU's data sheet; None on a CPU or an unknown GPU."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((flops for part, flops in _PEAK_FLOPS.items() if part in name), None)


def peak_memory_bytes(device: torch.device) -> int:
    """Return the most memory this rank has held: reserved on a GPU, resident on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024

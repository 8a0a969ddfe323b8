"""How fast a run goes: tokens, samples and seconds between two progress lines, memory and MFU.

Called by the trainer after every step. It only measures; it must not touch tensors or ranks.
"""

from __future__ import annotations

import resource
import sys
import time
from typing import Final

import torch

from stationmaster.domain.models import LanguageModel

# Dense bfloat16 FLOP/s of the SXM parts. Source: NVIDIA's A100, H100 and H200 data sheets.
_PEAK_FLOPS: Final = {"A100": 312e12, "H100": 989e12, "H200": 989e12}


class Throughput:
    """Counts what all ranks did since the last progress line."""

    def __init__(self, shape: LanguageModel, *, sequence_length: int, world_size: int) -> None:
        self._flops_per_token = flops_per_token(shape, sequence_length=sequence_length)
        self._world_size = world_size
        self.start()

    def start(self) -> None:
        """Begin a window: nothing counted yet."""
        self._started = time.perf_counter()
        self._steps = self._samples = 0
        self._tokens = 0.0

    def add_step(self, *, tokens: float, samples: int) -> None:
        """Count one step; `tokens` and `samples` are sums over all ranks."""
        self._steps += 1
        self._tokens += tokens
        self._samples += samples

    def take(self, device: torch.device) -> dict[str, float | None]:
        """The rates of the window as fields of a progress line; a new window starts."""
        elapsed = time.perf_counter() - self._started
        tokens_per_s = self._tokens / elapsed
        fields = {
            "tokens_per_s": round(tokens_per_s, 1),
            "samples_per_s": round(self._samples / elapsed, 3),
            "step_time_s": round(elapsed / self._steps, 4),
            "memory_gib": round(peak_memory_bytes(device) / 2**30, 3),
            "mfu": self._mfu(tokens_per_s, device),
        }
        self.start()
        return fields

    def _mfu(self, tokens_per_s: float, device: torch.device) -> float | None:
        if device.type != "cuda":
            return None
        name = torch.cuda.get_device_name(device)
        peak = next((flops for part, flops in _PEAK_FLOPS.items() if part in name), None)
        if peak is None:
            return None
        return round(tokens_per_s * self._flops_per_token / (peak * self._world_size), 4)


def flops_per_token(shape: LanguageModel, *, sequence_length: int) -> float:
    """Forward and backward FLOPs a token: 6 (N - N_embedding) + 12 L d T, attention not halved.

    Source: torchtitan's convention, which reproduces its published MFU figures.
    """
    embedding = shape.vocab_size * shape.hidden_size
    num_weights = shape.num_parameters - (0 if shape.tied_embeddings else embedding)
    return 6.0 * num_weights + 12.0 * shape.layers * shape.hidden_size * sequence_length


def peak_memory_bytes(device: torch.device) -> int:
    """The most memory this rank has held: reserved on a GPU, resident on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024

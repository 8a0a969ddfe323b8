"""How long training stands still for a checkpoint, against writing the same state at once.

Through the trainer's own `Checkpointer`, alone on a mesh of one, for the demo's model and for one
with a state of about 300 MB.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Final

import torch
from torch.distributed.checkpoint.state_dict_saver import save

from bench.figures import AtMost, Figure
from training.checkpoint import Checkpointer, State
from training.config import Launch
from training.parallel import Ranks, joined_ranks

ROUNDS: Final = 9
_MIB: Final = 2**20
# Weights and AdamW's two moments of tiny-llama, and of a model of 26 M parameters.
_SIZES_MIB: Final = {"tiny-llama": 21, "26 M parameters": 300}
_NUM_TENSORS: Final = 120


def measure_checkpoints() -> list[Figure]:
    """The stall of an asynchronous save over the time of a synchronous one, for two sizes."""
    launch = Launch(rank=0, local_rank=0, world_size=1, elastic=False)
    with joined_ranks(launch) as ranks:
        return [_measure(name, size_mib, ranks) for name, size_mib in _SIZES_MIB.items()]


def _measure(name: str, size_mib: int, ranks: Ranks) -> Figure:
    state = _state(size_mib)
    stalls: list[float] = []
    syncs: list[float] = []
    with tempfile.TemporaryDirectory(prefix="bench-checkpoint-") as directory:
        checkpointer = Checkpointer(Path(directory, "async"), ranks=ranks, kept=1)
        checkpointer.newest_complete_step()
        # The first save starts threads and is not counted.
        for step in range(ROUNDS + 1):
            checkpointer.start_save(step, state)
            saved = checkpointer.completed(wait=True)
            assert saved is not None
            stalls.append(saved.stall_s)
            syncs.append(_save_at_once(Path(directory, "sync"), state, ranks))
    stall_s, sync_s = statistics.median(stalls[1:]), statistics.median(syncs[1:])
    return Figure(
        name=f"checkpoint stall, {name}",
        value=stall_s / sync_s,
        unit="of a save",
        held=AtMost(0.10),
        note=f"{1000 * stall_s:.1f} of {1000 * sync_s:.0f} ms for {size_mib} MiB; medians of "
        f"{ROUNDS}, best {1000 * min(stalls[1:]):.1f} of {1000 * min(syncs[1:]):.0f}",
    )


def _save_at_once(path: Path, state: State, ranks: Ranks) -> float:
    shutil.rmtree(path, ignore_errors=True)
    began = time.monotonic()
    save(state, checkpoint_id=path, process_group=ranks.checkpoint_group)
    return time.monotonic() - began


def _state(size_mib: int) -> State:
    """As many tensors as a small model has with its moments, the given size together."""
    elements = size_mib * _MIB // 4 // _NUM_TENSORS
    return {"model": {f"tensor-{n}": torch.rand(elements) for n in range(_NUM_TENSORS)}}

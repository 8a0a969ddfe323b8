"""What one step did, on request: `profile=N` writes a trace of step N, and its use of memory.

Rank 0 alone records: what it waits for from others is in its trace. `trace.json.gz` is of
torch.profiler, for ui.perfetto.dev or chrome://tracing; `memory.pickle`, on a GPU only, is for
pytorch.org/memory_viz. A profile that cannot be written is only a warning in the log.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import torch
from torch.profiler import ProfilerActivity, profile

from stationmaster.domain.results import PROFILE_MEMORY, PROFILE_TRACE
from training.files import whole_file
from training.parallel import Ranks, sum_over_ranks

# Allocations that are remembered with their stacks; a step of a large model has about 100,000.
_MOST_ALLOCATIONS: Final = 1_000_000

logger = logging.getLogger(__name__)


@contextmanager
def recorded(directory: Path, *, ranks: Ranks) -> Iterator[None]:
    """Record what happens inside; every rank leaves when that is written, and not before.

    Args:
        directory: where to write; made if it does not exist.
        ranks: all of which enter together.
    """
    if ranks.rank == 0:
        with _recording(directory, on_gpu=ranks.device.type == "cuda"):
            yield
    else:
        yield
    sum_over_ranks([0.0], ranks)


@contextmanager
def _recording(directory: Path, *, on_gpu: bool) -> Iterator[None]:
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * on_gpu
    if on_gpu:
        torch.cuda.memory._record_memory_history(max_entries=_MOST_ALLOCATIONS)
    try:
        with profile(activities=activities, record_shapes=True, profile_memory=True) as found:
            yield
            if on_gpu:
                torch.cuda.synchronize()
        _write(found, directory, on_gpu=on_gpu)
    finally:
        if on_gpu:
            torch.cuda.memory._record_memory_history(enabled=None)


def _write(found: profile, directory: Path, *, on_gpu: bool) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if on_gpu:
            with whole_file(directory / PROFILE_MEMORY) as begun:
                torch.cuda.memory._dump_snapshot(str(begun))
        with whole_file(directory / PROFILE_TRACE) as begun:
            found.export_chrome_trace(str(begun))
    except (OSError, RuntimeError) as exc:
        logger.warning("the profile could not be written to %s: %s", directory, exc)
        return
    logger.info("profile: %s", directory)

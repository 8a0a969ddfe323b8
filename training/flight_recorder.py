"""PyTorch's record of what each rank did last with the others, kept with the run.

The watchdog's thread of a rank that stands still writes it before the process ends: PyTorch would
write it only when a collective gives up, minutes later, and to a place that goes with the pod.
`torchfrtrace --prefix nccl_trace_rank_ DIRECTORY` reads it, and names the rank that others wait
for.
"""

from __future__ import annotations

import logging
from pathlib import Path

import torch._C._distributed_c10d as c10d

logger = logging.getLogger(__name__)


def record_directory(output_dir: Path) -> Path:
    """Return the place of records: on the file system that outlives pods."""
    return output_dir / "flight-recorder"


def write_record(output_dir: Path, last_step: int | None, *, rank: int) -> Path | None:
    """Write this rank's record to a directory of its last step; None where that failed.

    The backends of GPUs and of hosts keep one each; the record of NCCL counts where there is one.
    """
    directory = record_directory(output_dir) / f"step-{last_step or 0:08d}"
    path = directory / f"nccl_trace_rank_{rank}"
    dump = getattr(c10d, "_dump_nccl_trace", None) or c10d._dump_fr_trace  # type: ignore[attr-defined]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        path.write_bytes(dump())
    except (OSError, RuntimeError) as exc:
        logger.warning("the record of collectives could not be written to %s: %s", path, exc)
        return None
    logger.error("record of collectives: %s; read it with torchfrtrace", path)
    return path

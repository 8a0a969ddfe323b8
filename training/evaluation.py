"""The loss on held-out samples, and `best.json`, which names the checkpoint with the lowest one.

The file is written, whole or not at all, when its checkpoint is complete, and the best one before
is removed only then: a process that is killed at any moment leaves the one or the other.
"""

from __future__ import annotations

import logging
import math
from pathlib import Path

import torch
from pydantic import ValidationError

from stationmaster.domain.checkpoints import Manifest
from stationmaster.domain.progress_lines import EvaluatedLine
from training.files import write_whole
from training.manifest import checkpoint_path, read_manifest, remove_old
from training.parallel import Ranks, sum_over_ranks
from training.sharding import ParallelModel
from training.task import Task
from training.watchdog import Watchdog

logger = logging.getLogger(__name__)


def evaluate(
    task: Task, parallel: ParallelModel, ranks: Ranks, watchdog: Watchdog
) -> EvaluatedLine | None:
    """Return means over all targets, on all ranks, for any step; None where nothing is held out."""
    targets = 0
    loss_sum = torch.zeros((), dtype=torch.float64, device=ranks.device)
    counts: dict[str, torch.Tensor] = {}
    parallel.module.eval()
    with torch.no_grad(), watchdog.paused("an evaluation"):
        for batch in task.source.evaluation_batches():
            forward = task.forward(parallel.module, batch.to(ranks.device))
            loss_sum += forward.reported_sum
            targets += batch.count_targets()
            for name, count in forward.correct.items():
                counts[name] = counts[name] + count if name in counts else count
            watchdog.step_done()
    parallel.module.train()
    loss_total, num_targets, *correct = sum_over_ranks(
        [float(loss_sum), float(targets), *(float(count) for count in counts.values())], ranks
    )
    if not num_targets:
        return None
    loss_nats = loss_total / num_targets
    accuracy = {
        name: round(count / num_targets, 6) for name, count in zip(counts, correct, strict=True)
    }
    return EvaluatedLine(
        step=0,
        loss_nats=round(loss_nats, 6),
        perplexity=None if counts else round(math.exp(min(loss_nats, 700.0)), 4),
        targets=int(num_targets),
        top1=accuracy.get("top1"),
        top5=accuracy.get("top5"),
    )


def read_best(directory: Path) -> tuple[EvaluatedLine, Manifest] | None:
    """Return the best checkpoint's evaluation and manifest; None where it is not known or gone."""
    try:
        best = EvaluatedLine.model_validate_json((directory / "best.json").read_bytes())
    except (FileNotFoundError, ValidationError):
        return None
    found = read_manifest(checkpoint_path(directory, best.step))
    return (best, found) if isinstance(found, Manifest) else None


def write_best(directory: Path, best: EvaluatedLine, *, kept: int) -> None:
    """Note the best checkpoint, which is complete, and remove the one that was best before."""
    try:
        write_whole(directory / "best.json", best.text() + "\n")
        remove_old(directory, kept=kept, best=best.step)
    except OSError as exc:
        logger.warning("step %d is not noted as the best one: %s", best.step, exc)

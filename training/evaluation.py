"""The loss and accuracy on held-out samples: means over all their targets, on all ranks."""

from __future__ import annotations

import math

import torch

from stationmaster.domain.progress_lines import EvaluatedLine
from training.parallel import Ranks, sum_over_ranks
from training.sharding import ParallelModel
from training.task import Task
from training.watchdog import Watchdog


def evaluate(
    task: Task,
    parallel: ParallelModel,
    ranks: Ranks,
    watchdog: Watchdog,
    *,
    step: int,
    total_steps: int,
) -> EvaluatedLine | None:
    """Measure the model after a step; None where nothing is held out."""
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
        step=step,
        total_steps=total_steps,
        loss_nats=round(loss_nats, 6),
        perplexity=None if counts else round(math.exp(min(loss_nats, 700.0)), 4),
        targets=int(num_targets),
        top1=accuracy.get("top1"),
        top5=accuracy.get("top5"),
    )

"""The learning rate as a pure function of the step, so that a resumed run needs no scheduler state.

Called by the trainer. It must not know the optimizer.
"""

from __future__ import annotations

import math

from stationmaster.domain.training_config import TrainingConfig


def learning_rate(step: int, training: TrainingConfig) -> float:
    """The rate of optimizer step `step`, counted from 1: linear warm-up, then a half cosine.

    The last warm-up step has the peak rate and the last step has `min_learning_rate`, exactly.
    """
    peak, floor = training.learning_rate, training.min_learning_rate
    if step <= training.warmup_steps:
        return peak * step / training.warmup_steps
    decay_steps = training.steps - training.warmup_steps
    progress = min(1.0, (step - training.warmup_steps) / decay_steps)
    return floor + (peak - floor) * 0.5 * (1.0 + math.cos(math.pi * progress))

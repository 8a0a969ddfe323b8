"""The learning rate as a pure function of the step: a resumed run needs no scheduler state."""

from __future__ import annotations

import math

from stationmaster.domain.catalogue.training_config import TrainingConfig


def learning_rate(step: int, training: TrainingConfig) -> float:
    """Return the rate of step `step`, counted from 1: linear warm-up, then the schedule.

    The last warm-up step has the peak rate. `cosine` and `linear` fall from there to
    `min_learning_rate` at the last step, exactly; `step` multiplies by `decay_factor` after every
    `decay_every` steps, warm-up included; `constant` stays.
    """
    peak, floor = training.learning_rate, training.min_learning_rate
    if step <= training.warmup_steps:
        return peak * step / training.warmup_steps
    # At most 1 where a run continues past its schedule, and no division where all of it is warm-up.
    decay_steps = max(1, training.steps - training.warmup_steps)
    progress = min(1.0, (step - training.warmup_steps) / decay_steps)
    match training.schedule:
        case "cosine":
            return floor + (peak - floor) * 0.5 * (1.0 + math.cos(math.pi * progress))
        case "linear":
            return peak + (floor - peak) * progress
        case "step":
            return peak * training.decay_factor ** ((step - 1) // training.decay_every)
        case "constant":
            return peak

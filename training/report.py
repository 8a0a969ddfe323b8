"""Reports how far a program of your own is: one file, standard library only.

Save it beside your script (`stationmaster snippet torch > report.py`), then call `report`:

    from report import report
    report(step=10, total_steps=100, loss=2.5)

A Trainer of Hugging Face takes `callbacks=[for_transformers()]`, one of Lightning
`callbacks=[for_lightning()]`.
"""

from __future__ import annotations

import json
import math
import os
import sys
from typing import Any


def report(
    *, step: int, total_steps: int = 0, loss: float | None = None, **figures: float | None
) -> None:
    """Print a progress line; on every rank but the first, nothing.

    Args:
        step: steps taken so far, from 0.
        total_steps: how many there will be; 0 where nobody knows.
        loss: the mean loss in nats; without one, the card shows the step only.
        figures: learning_rate, grad_norm, tokens_per_s, samples_per_s, step_time_s, memory_gib
            or mfu.
    """
    if int(os.environ.get("RANK") or 0) != 0:
        return
    line: dict[str, Any] = {
        "stationmaster": 1,
        "kind": "progress",
        "step": int(step),
        "total_steps": int(total_steps),
        "loss_nats": None if loss is None else _figure(loss),
    }
    line |= {name: _figure(value) for name, value in figures.items() if value is not None}
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def _figure(value: float) -> float | str:
    """Return a number as JSON has it; one that is not finite as a word."""
    number = float(value)
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def for_transformers() -> Any:
    """Make a callback for a Trainer of Hugging Face, TRL or axolotl."""
    from transformers import TrainerCallback

    class Report(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            logs = logs or {}
            loss = logs.get("loss", logs.get("train_loss"))
            if loss is not None and state.is_world_process_zero:
                report(
                    step=state.global_step,
                    total_steps=state.max_steps,
                    loss=loss,
                    learning_rate=logs.get("learning_rate"),
                    grad_norm=logs.get("grad_norm"),
                )

    return Report()


def for_lightning(every: int = 10) -> Any:
    """Make a callback for a Trainer of Lightning that reports every so many steps."""
    from lightning.pytorch import Callback

    class Report(Callback):
        def on_train_batch_end(
            self, trainer: Any, module: Any, outputs: Any, batch: Any, index: int
        ) -> None:
            step = trainer.global_step
            if step % every or not trainer.is_global_zero:
                return
            loss = outputs["loss"] if isinstance(outputs, dict) else outputs
            total = trainer.estimated_stepping_batches
            total = int(total) if total != float("inf") else 0
            report(step=step, total_steps=total, loss=None if loss is None else float(loss))

    return Report()

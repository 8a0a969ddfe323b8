"""Real faults of the product's own trainer, in pods for which the kubelet names some."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

_TRAINER = "training.trainer"
_STEP = 60  # there is something to compare with by then
_SLOW_S = 3.5  # with a line for each step, of which ten have to last


class WhenTrainerIsImported:
    """An import hook that lets each `Trainer` of this process have faults."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> Any:
        if name != _TRAINER:
            return None
        sys.meta_path.remove(self)
        spec: Any = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def execute_and_change(module: Any) -> None:
            execute(module)
            train = module.Trainer.train

            def train_with_faults(trainer: Any) -> Any:
                for each in self._names:
                    _FAULTS[each](trainer)
                return train(trainer)

            module.Trainer.train = train_with_faults

        spec.loader.exec_module = execute_and_change
        return spec


def _change_batches(trainer: Any, change: Callable[[Any], Any]) -> None:
    read = trainer._task.source.micro_batches
    trainer._task.source.micro_batches = lambda samples_seen: map(change, read(samples_seen))


def _garble(trainer: Any) -> None:
    """Let frequent labels be rare ones, and the reverse."""

    def garbled(batch: Any) -> Any:
        labels = batch.targets.where(batch.targets < 0, batch.targets.max() - batch.targets)
        is_late = trainer._position.step + 1 >= _STEP
        return dataclasses.replace(batch, targets=labels) if is_late else batch

    _change_batches(trainer, garbled)


def _read(batch: Any) -> Any:
    time.sleep(_SLOW_S)
    return batch


def _compute_slowly(trainer: Any, *, after: int) -> None:
    trainer._task.blocks[0].register_forward_pre_hook(
        lambda *_: time.sleep(_SLOW_S if trainer._position.step >= after else 0)
    )


def _save_slowly(trainer: Any) -> None:
    stager = trainer._checkpointer._stager
    start = stager.start

    def start_slowly(*state: Any, **changing: Any) -> Any:
        time.sleep(_SLOW_S)
        return start(*state, **changing)

    stager.start = start_slowly


def _lose_loss(trainer: Any) -> None:
    step = trainer._train_step

    def step_from_nan() -> Any:
        if trainer._position.step + 1 >= _STEP:
            trainer._optimizer.param_groups[0]["params"][0].data.mul_(float("nan"))
        return step()

    trainer._train_step = step_from_nan


def _fill_disk(_trainer: Any) -> None:
    shutil: Any = sys.modules["shutil"]
    usage = shutil.disk_usage(".")
    shutil.disk_usage = lambda _path: usage._replace(free=2**20)


def _once(trainer: Any, fail: Callable[[], None]) -> None:
    """Fail at a step, and not again once torchrun has started the workers anew."""
    step = trainer._train_step

    def step_or_fail() -> Any:
        if trainer._position.step == _STEP and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            fail()
        return step()

    trainer._train_step = step_or_fail


def _lose_gpu() -> None:
    raise RuntimeError("NVRM: Xid (PCI:0000:10:1c): 79, GPU has fallen off the bus.")


_FAULTS: dict[str, Callable[[Any], None]] = {
    "bad-data": _garble,
    "slow-data": lambda trainer: _change_batches(trainer, _read),
    "slow-rank": lambda trainer: _compute_slowly(trainer, after=0),
    "slows-down": lambda trainer: _compute_slowly(trainer, after=_STEP),
    "slow-checkpoints": _save_slowly,
    "loss-not-finite": _lose_loss,
    "disk-fills": _fill_disk,
    "idle-gpus": lambda trainer: setattr(trainer._gpu_use, "take_least", lambda _ranks: 0.2),
    "memory-runs-out": lambda trainer: _once(trainer, lambda: os.kill(os.getpid(), signal.SIGKILL)),
    "gpu-falls-off": lambda trainer: _once(trainer, _lose_gpu),
    "rank-hangs": lambda trainer: _once(trainer, lambda: time.sleep(3600)),
}

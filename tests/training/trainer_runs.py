"""Starts the trainer, in this process or as a program, and reads its progress lines."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.patience import PATIENCE_S

if TYPE_CHECKING:
    from training.config import TrainerConfig
    from training.parallel import Ranks
    from training.trainer import Trainer

Lines = list[dict[str, Any]]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]

# Five sequences of 32 tokens: quick, and odd, so that two ranks do not get equal shares.
SMALL = ("sequence_length=32", "global_batch_size=5")


@dataclass(frozen=True)
class Workspace:
    """Where a test's runs read and write."""

    output_dir: Path
    cache_dir: Path
    text_dir: Path
    recipe: tuple[str, ...] = ("tiny-llama",)
    """Its name, and a preset."""

    def arguments(self, *overrides: str) -> list[str]:
        """Everything after `-m training`."""
        keys = [*SMALL, f"dataset={self.text_dir}", *overrides]
        return [*self.recipe, *keys, "--output-dir", str(self.output_dir)]

    def environ(self, **extra: str) -> dict[str, str]:
        """The environment of a pod's container, on this machine."""
        return {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONWARNINGS": "default",
            "STATIONMASTER_CACHE_DIR": str(self.cache_dir),
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            **extra,
        }

    def checkpoints(self) -> dict[int, Path]:
        """Checkpoint directories by step, complete or not."""
        found = self.output_dir.glob("checkpoints/*/step-*")
        return {int(path.name.removeprefix("step-")): path for path in found}

    def copy(self, output_dir: Path) -> Workspace:
        """The same state of the run in another place, to be spoiled."""
        shutil.copytree(self.output_dir, output_dir)
        return replace(self, output_dir=output_dir)


def train_here(workspace: Workspace, *overrides: str) -> Lines:
    """Train in this process, as the only rank, and return the progress lines."""
    from training.__main__ import main

    arguments = workspace.arguments(*overrides)
    before = signal.getsignal(signal.SIGTERM)
    with redirect_stdout(StringIO()) as out:
        code = main(arguments, workspace.environ())
    signal.signal(signal.SIGTERM, before)
    assert code == 0
    return parse_lines(out.getvalue())


def trainer_here(config: TrainerConfig, ranks: Ranks) -> Trainer:
    """A trainer of this process that reports nothing."""
    from training.build import build_trainer, prepare_data
    from training.progress import ProgressWriter
    from training.watchdog import Watchdog

    return build_trainer(
        config,
        prepared=prepare_data(config),
        ranks=ranks,
        progress=ProgressWriter(run_id="local", rank=1),
        stop=threading.Event(),
        watchdog=Watchdog(config.watchdog, on_stall=lambda _stall: None),
    )


def parse_lines(text: str) -> Lines:
    """The figures of standard output, without what was waited for; all of it is progress lines."""
    lines = [json.loads(line) for line in text.splitlines()]
    return [line for line in lines if line["kind"] != "preparing"]


def losses(lines: Lines) -> dict[int, float]:
    """Loss by step."""
    return {line["step"]: line["loss_nats"] for line in lines if line["kind"] == "progress"}


def gradient_norms(lines: Lines) -> dict[int, float]:
    """Gradient norm by step: Adam and the clip hide a wrong scale from the loss, not from here."""
    return {line["step"]: line["grad_norm"] for line in lines if line["kind"] == "progress"}


def of_kind(lines: Lines, kind: str) -> Lines:
    """The lines of one kind."""
    return [line for line in lines if line["kind"] == kind]


def wait_until(condition: Callable[[], bool], *, what: str, timeout_s: float = PATIENCE_S) -> None:
    """Poll a condition; fail with `what` when it does not come true in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}"
        threading.Event().wait(0.05)


def is_alive(pid: int) -> bool:
    """Tell whether a process runs; one that is dead and not yet reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False

"""TensorBoard and Weights & Biases as followers of a run, beside the progress lines.

Rank 0 opens them; both are optional packages, imported only when asked for. Nothing here may keep a
run from training: what fails is dropped by the writer, what hangs has a time limit.

A number is named after the kind of its line: `train/loss_nats`, `evaluation/perplexity`,
`checkpoint/stall_s`, against the step.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stationmaster.domain.errors import BadParameter
from stationmaster.domain.progress_lines import Kind
from training.progress import Field, ProgressSink

if TYPE_CHECKING:
    import wandb
    from torch.utils.tensorboard import SummaryWriter

_GROUPS: Final[Mapping[str, str]] = {
    "progress": "train",
    "evaluated": "evaluation",
    "checkpoint_saved": "checkpoint",
}
# The axis, and what is the same on every line.
_NOT_CHARTED: Final = {"step", "total_steps"}
_FLUSH_S: Final = 10
# Weights & Biases without a network: training starts after the one, ends after the other.
_INIT_TIMEOUT_S: Final = 30.0
_FINISH_TIMEOUT_S: Final = 30.0


def open_sinks(
    *, tensorboard: Path | None, wandb_project: str | None, output_dir: Path, run_id: str
) -> list[ProgressSink]:
    """Open the requested sinks. Nothing is imported or connected before the first line.

    Raises:
        BadParameter: the package of one is not installed; names what to install.
    """
    for package, value in (("tensorboard", tensorboard), ("wandb", wandb_project)):
        if value is not None and not _is_installed(package):
            raise BadParameter(
                f"--{package} {value} needs the package {package}, which is not installed; "
                f"install it with pip install {package}, or leave --{package} out"
            )
    sinks: list[ProgressSink] = []
    if tensorboard is not None:
        sinks.append(TensorBoardSink(tensorboard))
    if wandb_project is not None:
        sinks.append(WandbSink(wandb_project, directory=output_dir, run_id=run_id))
    return sinks


class TensorBoardSink:
    """Scalars in an event file of `directory`, one file for each start of the trainer."""

    name = "tensorboard"

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._writer: SummaryWriter | None = None

    def write(self, kind: Kind, fields: Mapping[str, Field]) -> None:
        """Add one point to every chart that the line has a number for."""
        if kind == "resumed":
            # TensorBoard forgets the steps that are about to be trained again.
            self._open(purge_step=_step(fields) + 1)
        numbers = charted(kind, fields)
        if numbers:
            writer = self._writer or self._open(purge_step=None)
            for name, value in numbers.items():
                writer.add_scalar(name, value, global_step=_step(fields))

    def close(self) -> None:
        """Write out what is buffered."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _open(self, *, purge_step: int | None) -> SummaryWriter:
        from torch.utils.tensorboard import SummaryWriter

        self.close()
        self._writer = SummaryWriter(
            str(self._directory), purge_step=purge_step, flush_secs=_FLUSH_S
        )
        return self._writer


class WandbSink:
    """A W&B run with the id of ours, which a restarted trainer continues.

    The account, the server and WANDB_MODE=offline are taken from W&B's own environment variables;
    offline runs lie in `directory`/wandb, for `wandb sync`.
    """

    name = "wandb"

    def __init__(self, project: str, *, directory: Path, run_id: str) -> None:
        self._project = project
        self._directory = directory
        self._run_id = run_id
        self._run: wandb.Run | None = None
        self._failed = False

    def write(self, kind: Kind, fields: Mapping[str, Field]) -> None:
        """Log one row; the `started` line becomes the run's configuration."""
        run = self._run or self._init()
        if kind == "started":
            run.config.update(dict(fields), allow_val_change=True)
        elif kind == "failed":
            self._failed = True
            run.summary["reason"] = fields.get("reason")
        numbers = charted(kind, fields)
        if numbers:
            run.log({"step": _step(fields), **numbers})

    def close(self) -> None:
        """Upload the rest, for half a minute at most; it stays on disk in any case."""
        if self._run is not None:
            self._run.finish(exit_code=1 if self._failed else 0)
            self._run = None

    def _init(self) -> wandb.Run:
        import wandb

        self._directory.mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(
            project=self._project,
            dir=str(self._directory),
            id=self._run_id,
            name=self._run_id,
            resume="allow",
            settings=wandb.Settings(
                # Standard output belongs to the progress lines.
                console="off",
                silent=True,
                init_timeout=_INIT_TIMEOUT_S,
                finish_timeout=_FINISH_TIMEOUT_S,
            ),
        )
        # A resumed run goes back to its checkpoint; W&B's own step counter cannot.
        self._run.define_metric("*", step_metric="step")
        return self._run


def charted(kind: Kind, fields: Mapping[str, Field]) -> dict[str, float]:
    """Return the numbers of a line under the names of their charts; none without a chart."""
    group = _GROUPS.get(kind)
    if group is None:
        return {}
    return {
        f"{group}/{name}": float(value)
        for name, value in fields.items()
        if name not in _NOT_CHARTED
        and isinstance(value, int | float)
        and not isinstance(value, bool)
    }


def _is_installed(package: str) -> bool:
    spec = importlib.util.find_spec(package)
    # Without an origin it is no package but a directory of that name, such as W&B's own output.
    return spec is not None and spec.origin is not None


def _step(fields: Mapping[str, Field]) -> int:
    step = fields.get("step")
    return step if isinstance(step, int) else 0

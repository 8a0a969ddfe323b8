"""TensorBoard, Weights & Biases and MLflow as followers of a run, beside the progress lines.

Rank 0 opens one; all are optional packages, imported only when asked for. Nothing here may keep a
run from training: what fails is dropped by the writer, what hangs has a time limit.

A number is named after the kind of its line: `train/loss_nats`, `evaluation/perplexity`,
`checkpoint/stall_s`, against the step.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stationmaster.domain.progress_lines import Kind
from stationmaster.domain.results import TENSORBOARD
from stationmaster.domain.trackers import Tracker
from training.progress import Field, ProgressSink

if TYPE_CHECKING:
    import wandb
    from mlflow import MlflowClient
    from torch.utils.tensorboard import SummaryWriter

_GROUPS: Final[Mapping[str, str]] = {
    "progress": "train",
    "evaluated": "evaluation",
    "checkpoint_saved": "checkpoint",
}
# Of a server of which only the address was typed.
_EXPERIMENT: Final = "stationmaster"
logger = logging.getLogger(__name__)
# The axis, and what is the same on every line.
_NOT_CHARTED: Final = {"step", "total_steps"}
_FLUSH_S: Final = 10
# Weights & Biases without a network: training starts after the one, ends after the other.
_INIT_TIMEOUT_S: Final = 30.0
_FINISH_TIMEOUT_S: Final = 30.0


def open_sinks(tracker: Tracker | None, *, output_dir: Path, run_id: str) -> list[ProgressSink]:
    """Open the requested sink. Nothing is imported or connected before the first line.

    Without its package there is none, and one warning: figures keep no run from training.
    """
    if tracker is None:
        return []
    if not _is_installed(tracker.kind):
        how = "pip install 'stationmaster[metrics]'"
        logger.warning("no figures go to %s, which is not installed; run: %s", tracker.kind, how)
        return []
    if tracker.kind == "tensorboard":
        return [TensorBoardSink(output_dir / TENSORBOARD)]
    if tracker.kind == "wandb":
        return [WandbSink(tracker.name, directory=output_dir, run_id=run_id)]
    return [MlflowSink(tracker, run_id=run_id)]


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
        """`project` may have a team before it, as TEAM/PROJECT."""
        self._team, _, self._project = project.rpartition("/")
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
            entity=self._team or None,
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


class MlflowSink:
    """An MLflow run with the name of ours, which a restarted trainer continues.

    Server and account are taken from MLflow's own variables, the server from the address where one
    was typed.
    """

    name = "mlflow"

    def __init__(self, tracker: Tracker, *, run_id: str) -> None:
        self._tracker = tracker
        self._name = run_id
        self._client: MlflowClient | None = None
        self._run = ""
        self._status = "FINISHED"

    def write(self, kind: Kind, fields: Mapping[str, Field]) -> None:
        """Log one row; the `started` line becomes the parameters of a new run."""
        from mlflow.entities import Metric, Param

        client, is_new = (self._client, False) if self._client is not None else self._open()
        if kind == "started" and is_new:
            params = [Param(name, str(value)) for name, value in fields.items()]
            client.log_batch(self._run, params=params)
        elif kind == "failed":
            self._status = "FAILED"
        now = int(time.time() * 1000)
        numbers = charted(kind, fields).items()
        if numbers:
            rows = [Metric(name, value, now, _step(fields)) for name, value in numbers]
            client.log_batch(self._run, metrics=rows)

    def close(self) -> None:
        """Say that the run has ended."""
        if self._client is not None:
            self._client.set_terminated(self._run, self._status)
            self._client = None

    def _open(self) -> tuple[MlflowClient, bool]:
        # A server that is away must not keep training from going on for minutes.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        # Standard output belongs to the progress lines.
        os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
        from mlflow import MlflowClient

        tracker = self._tracker
        client = MlflowClient(tracking_uri=tracker.name if tracker.is_address else None)
        name = _EXPERIMENT if tracker.is_address else tracker.name
        found = client.get_experiment_by_name(name)
        experiment = found.experiment_id if found is not None else client.create_experiment(name)
        runs = client.search_runs([experiment], f"attributes.run_name = '{self._name}'")
        run = runs[0] if runs else client.create_run(experiment, run_name=self._name)
        self._run = run.info.run_id
        self._client = client
        return client, not runs


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

"""What becomes of a run's lines: the metrics file, TensorBoard, W&B, and sinks that break."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from stationmaster.domain.progress_lines import (
    CheckpointSavedLine,
    EvaluatedLine,
    FailedLine,
    FinishedLine,
    Kind,
    Line,
    ProgressLine,
    ResumedLine,
    StartedLine,
)
from stationmaster.domain.trackers import Tracker, read_tracker
from training.progress import Field, MetricsFile, ProgressWriter
from training.sinks import MlflowSink, TensorBoardSink, WandbSink, open_sinks

PROGRESS: dict[str, Field] = {"step": 3, "total_steps": 9, "loss_nats": 2.5, "mfu": None}


class Recorded:
    """A sink that keeps what it is given, and fails at one kind of line."""

    name = "recorded"

    def __init__(self, fails_at: Kind | None = None) -> None:
        self.fails_at = fails_at
        self.taken: list[tuple[Kind, dict[str, Field]]] = []
        self.closed = 0

    def write(self, kind: Kind, fields: Mapping[str, Field]) -> None:
        if kind == self.fails_at:
            raise ConnectionError("the tracker is away")
        self.taken.append((kind, dict(fields)))

    def close(self) -> None:
        self.closed += 1
        if self.fails_at == "finished":
            raise TimeoutError("still uploading")


def test_progress_writer_of_rank_0_alone_prints_lines_and_gives_sinks_their_fields(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sink, metrics = Recorded(), MetricsFile(tmp_path / "out" / "metrics.jsonl")
    writer = ProgressWriter(run_id="r", rank=0, sinks=[sink], metrics=metrics)

    ProgressWriter(run_id="r", rank=1, sinks=[sink], metrics=metrics).emit(FinishedLine(step=1))
    writer.emit(ProgressLine(step=1, total_steps=9, loss_nats=float("inf")))
    writer.emit(EvaluatedLine(step=1, loss_nats=2.5, perplexity=12.5))
    writer.close()

    printed = capsys.readouterr().out
    assert sink.taken == [
        ("progress", {"step": 1, "total_steps": 9, "loss_nats": None}),
        ("evaluated", {"step": 1, "loss_nats": 2.5, "perplexity": 12.5}),
    ]
    assert [json.loads(line)["kind"] for line in printed.splitlines()] == ["progress", "evaluated"]
    assert (tmp_path / "out" / "metrics.jsonl").read_text() == printed
    assert sink.closed == 1


def test_progress_writer_sink_that_fails_or_cannot_close_is_one_warning(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    broken, sound, closing = map(Recorded, ("progress", None, "finished"))
    writer = ProgressWriter(run_id="r", rank=0, sinks=[broken, sound, closing])

    with caplog.at_level(logging.WARNING):
        for step in range(3):
            writer.emit(ProgressLine(step=step, total_steps=9, loss_nats=2.5))
        writer.close()
        writer.close()

    first, second = caplog.messages
    assert first == (
        "recorded failed and gets no more of this run: ConnectionError: the tracker is away"
    )
    assert "still uploading" in second
    assert len(capsys.readouterr().out.splitlines()) == 3
    assert [fields["step"] for _, fields in sound.taken] == [0, 1, 2]
    assert (broken.closed, sound.closed, closing.closed) == (0, 1, 1)


@pytest.mark.parametrize("text", ["tensorboard", "wandb:lab", "mlflow:lab"])
def test_sink_whose_package_is_missing_is_one_warning_and_training_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    package = text.partition(":")[0]
    (tmp_path / package).mkdir()  # such as W&B's own output: it is no package
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, package, raising=False)

    assert open_sinks(read_tracker(text), output_dir=tmp_path, run_id="r") == []

    (said,) = caplog.messages
    assert f"no figures go to {package}, which is not installed; run: pip install" in said


def test_mlflow_a_restarted_trainer_continues_the_run_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    mlflow = pytest.importorskip("mlflow", reason="mlflow-skinny is not installed")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "server").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    tracker = Tracker(kind="mlflow", name="lab")
    for world_size, steps in ((2, (1, 2)), (1, (3,))):
        sink = MlflowSink(tracker, run_id="run-17")
        sink.write("started", {"recipe": "tiny-llama", "world_size": world_size})
        for step in steps:
            sink.write("progress", {**PROGRESS, "step": step, "loss_nats": 8.0 / step})
        sink.close()

    client = mlflow.MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("lab").experiment_id])
    history = client.get_metric_history(run.info.run_id, "train/loss_nats")
    assert [(each.step, each.value) for each in history] == [(1, 8.0), (2, 4.0), (3, 8 / 3)]
    assert (run.info.run_name, run.info.status) == ("run-17", "FINISHED")
    assert run.data.params == {"recipe": "tiny-llama", "world_size": "2"}
    assert capfd.readouterr().out == ""


def test_tensorboard_a_resumed_run_shows_each_step_once(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for first_step, resumed_at in ((1, None), (3, 2)):
        sink = TensorBoardSink(tmp_path)
        sink.write("started", {"recipe": "tiny-llama", "world_size": 2})
        if resumed_at is not None:
            sink.write("resumed", {"step": resumed_at, "path": "/x"})
        for step in range(first_step, first_step + 4):
            sink.write("progress", {**PROGRESS, "step": step, "loss_nats": 8.0 / step})
        other = {"device": "cpu", "converged": True}
        sink.write("evaluated", {"step": first_step + 3, "perplexity": 20.5, **other})
        sink.close()

    events = EventAccumulator(str(tmp_path)).Reload()
    loss = [(event.step, event.value) for event in events.Scalars("train/loss_nats")]
    assert loss == [(step, pytest.approx(8.0 / step)) for step in range(1, 7)]
    assert set(events.Tags()["scalars"]) == {"train/loss_nats", "evaluation/perplexity"}
    assert events.Scalars("evaluation/perplexity")[-1].step == 6


def test_wandb_offline_run_holds_the_lines_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    wandb = pytest.importorskip("wandb", reason="wandb is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    sink = WandbSink("station", directory=tmp_path, run_id="run-17")

    sink.write("started", {"recipe": "tiny-llama", "world_size": 2})
    for step in (1, 2):
        sink.write("progress", {**PROGRESS, "step": step, "loss_nats": 8.0 / step})
    summary = dict(sink._run.summary) if sink._run else {}
    sink.close()
    wandb.teardown()

    (stored,) = (tmp_path / "wandb").glob("offline-run-*-run-17")
    data = (stored / "run-run-17.wandb").read_bytes()
    assert summary["train/loss_nats"] == 4.0
    assert b"train/loss_nats" in data
    assert b"tiny-llama" in data
    assert capfd.readouterr().out == ""


STARTED = StartedLine(total_steps=9)


def progress(step: int) -> ProgressLine:
    return ProgressLine(step=step, total_steps=9, loss_nats=9.0 - step)


def append(path: Path, *lines: Line) -> list[str]:
    """One start of the trainer; what the file has of each line then."""
    metrics = MetricsFile(path)
    for line in lines:
        metrics.append(line)
    return kinds(path)


def kinds(path: Path) -> list[str]:
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return [f"{line['kind']} {line.get('step', '')}".strip() for line in found]


@pytest.mark.parametrize(
    ("first", "then", "kept"),
    [
        (
            (
                *(STARTED, progress(1), progress(2), CheckpointSavedLine(step=2)),
                *(EvaluatedLine(step=2, loss_nats=1.0), progress(3)),
                *(EvaluatedLine(step=3, loss_nats=1.0), progress(4)),
                FailedLine(reason="a node was lost", step=4),
            ),
            (STARTED, ResumedLine(step=2), progress(3), FinishedLine(step=3)),
            [
                *("started", "progress 1", "progress 2", "checkpoint_saved 2", "evaluated 2"),
                "failed 4",
            ],
        ),
        ((STARTED, progress(1), progress(2)), (STARTED, progress(1)), ["started"]),
        (
            (STARTED, progress(1), EvaluatedLine(step=3, loss_nats=1.0)),
            (STARTED, ResumedLine(step=2), EvaluatedLine(step=3, loss_nats=1.0)),
            ["started", "progress 1"],
        ),
        (
            (STARTED, progress(4)),
            (STARTED, ResumedLine(step=5), progress(6)),
            ["started", "progress 4"],
        ),
    ],
    ids=["resumed", "begun anew", "resumed between figures", "resumed after the last line"],
)
def test_start_cuts_the_lines_of_steps_that_are_repeated(
    tmp_path: Path, first: tuple[Line, ...], then: tuple[Line, ...], kept: list[str]
) -> None:
    path = tmp_path / "metrics.jsonl"
    append(path, *first)
    inode = path.stat().st_ino

    found = append(path, *then)

    assert found == kept + append(tmp_path / "alone.jsonl", *then)
    assert len(kept) < len(first) or path.stat().st_ino == inode, "nothing was to be cut"


def test_line_that_a_kill_cut_off_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    append(path, progress(1))
    with path.open("ab") as file:
        file.write(b'{"stationmaster":1,"kind":"prog')

    found = append(path, progress(2))

    assert found == ["progress 1", "progress 2"]


def test_file_that_cannot_be_written_is_dropped_with_one_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "out").write_text("a file, not a directory")
    writer = ProgressWriter(run_id="r", rank=0, metrics=MetricsFile(tmp_path / "out" / "m.jsonl"))

    with caplog.at_level(logging.WARNING):
        writer.emit(progress(1))
        writer.emit(progress(2))

    (message,) = caplog.messages
    assert message.startswith("the metrics file gets no more lines of this start: ")
    assert len(capsys.readouterr().out.splitlines()) == 2

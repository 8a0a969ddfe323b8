"""The metrics file: each step once, in order, however often a run was started."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from stationmaster.domain.progress_lines import (
    CheckpointSavedLine,
    EvaluatedLine,
    FailedLine,
    FinishedLine,
    Line,
    ProgressLine,
    ResumedLine,
    StartedLine,
    read_line,
)
from training.metrics import MetricsFile
from training.progress import ProgressWriter

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


def test_lines_are_kept_as_they_are_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "out" / "metrics.jsonl"
    writer = ProgressWriter(run_id="r-1", rank=0, metrics=MetricsFile(path))

    writer.emit(STARTED)
    writer.emit(progress(1).model_copy(update={"loss_nats": float("inf")}))

    assert path.read_text() == capsys.readouterr().out
    assert read_line(path.read_text().splitlines()[1]) is not None


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
                "started",
                "progress 1",
                "progress 2",
                "checkpoint_saved 2",
                "evaluated 2",
                "failed 4",
            ],
        ),
        ((STARTED, progress(1), progress(2)), (STARTED, progress(1)), ["started"]),
        (
            (STARTED, progress(4)),
            (STARTED, ResumedLine(step=5), progress(6)),
            ["started", "progress 4"],
        ),
    ],
    ids=["resumed", "begun anew", "resumed after the last line"],
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

"""What a program of anybody's tells with the one file that is printed for it."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from stationmaster.cli.main import main
from stationmaster.domain.progress_lines import ProgressLine, read_line
from training.report import for_lightning, for_transformers, report


def said(capsys) -> list[ProgressLine]:
    lines = [read_line(line) for line in capsys.readouterr().out.splitlines()]
    assert all(isinstance(line, ProgressLine) for line in lines)
    return lines


@pytest.fixture(autouse=True)
def first_rank(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)


def test_report_prints_a_line_that_is_read(capsys):
    report(step=3, total_steps=10, loss=2.5, learning_rate=0.1, grad_norm=None)
    report(step=4, loss=float("nan"))
    report(step=5)

    first, broken, silent = said(capsys)
    assert (first.step, first.total_steps, first.loss_nats) == (3, 10, 2.5)
    assert (first.learning_rate, first.grad_norm) == (0.1, None)
    assert broken.loss_nats != broken.loss_nats
    assert (silent.step, silent.loss_nats) == (5, None)


def test_other_ranks_report_nothing(capsys, monkeypatch):
    monkeypatch.setenv("RANK", "3")
    report(step=3, loss=2.5)
    assert said(capsys) == []


def test_trainer_of_hugging_face_reports_what_it_logs(capsys):
    state = SimpleNamespace(is_world_process_zero=True, global_step=64, max_steps=8192)

    callback = for_transformers()
    callback.on_log(None, state, None, {"loss": 2.41, "grad_norm": 0.91})
    callback.on_log(None, state, None, {"eval_loss": 2.0})

    (line,) = said(capsys)
    assert (line.step, line.total_steps, line.loss_nats, line.grad_norm) == (64, 8192, 2.41, 0.91)


def test_trainer_of_lightning_reports_every_so_many_steps(capsys, monkeypatch):
    # The library is not installed: its callback is a class with hooks.
    library = ModuleType("lightning.pytorch")
    library.Callback = object
    monkeypatch.setitem(sys.modules, "lightning", ModuleType("lightning"))
    monkeypatch.setitem(sys.modules, "lightning.pytorch", library)

    callback = for_lightning(every=2)
    for step in (1, 2):
        trainer = SimpleNamespace(
            global_step=step, is_global_zero=True, estimated_stepping_batches=float("inf")
        )
        callback.on_train_batch_end(trainer, None, {"loss": 1.5}, None, 0)

    (line,) = said(capsys)
    assert (line.step, line.total_steps, line.loss_nats) == (2, 0, 1.5)


def test_snippet_is_the_file_itself(capsys):
    assert main(["snippet", "hf"]) == 0

    text = capsys.readouterr().out
    assert "callbacks=[for_transformers()]" in text.splitlines()[0]
    scope: dict = {}
    exec(text, scope)
    scope["report"](step=1, total_steps=2, loss=3.0)
    (line,) = said(capsys)
    assert line.loss_nats == 3.0

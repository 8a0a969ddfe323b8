"""Whole runs of the trainer: parity over ranks, exact resume, refusals, and the ends of a run."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from data_sets import pack_ids
from spoiling import turn_a_bit
from trainer_runs import (
    Lines,
    Workspace,
    losses,
    of_kind,
    parse_lines,
    train_here,
    trainer_here,
    wait_until,
)

from stationmaster.domain.errors import BadParameter, TrainingFailed
from tests.support.patience import PATIENCE_S
from training.__main__ import main
from training.build import build_task, prepare_data, with_known_steps
from training.config import parse_config
from training.parallel import joined_ranks

KEYS = ("steps=10", "checkpoint_every=5")
Run = tuple[Workspace, Lines]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, text_dir: Path, cache_dir: Path) -> Run:
    """An uninterrupted run of ten steps on one rank."""
    workspace = Workspace(tmp_path_factory.mktemp("alone") / "out", cache_dir, text_dir)
    return workspace, train_here(workspace, *KEYS)


def test_training_one_rank_learns_and_reports(alone: Run) -> None:
    _, lines = alone

    by_step = losses(lines)

    kinds = [line["kind"] for line in lines]
    assert (kinds[0], kinds[-1], kinds.count("progress")) == ("started", "finished", 10)
    assert [line["step"] for line in of_kind(lines, "checkpoint_saved")] == [5, 10]
    assert by_step[1] == pytest.approx(math.log(4096), abs=0.1)
    assert by_step[10] < by_step[1] - 1
    assert [line["seq"] for line in lines] == list(range(len(lines)))
    step = of_kind(lines, "progress")[-1]
    assert (step["total_steps"], step["mfu"]) == (10, None)
    assert step["tokens_per_s"] == pytest.approx(step["samples_per_s"] * 32, rel=1e-3)
    assert step["step_time_s"] > 0
    assert step["memory_gib"] > 0
    assert lines[-1]["samples_seen"] == 50


def test_resume_passes_over_a_damaged_checkpoint_and_equals_the_uninterrupted_run_bit_by_bit(
    alone: Run, tmp_path: Path
) -> None:
    interrupted = alone[0].copy(tmp_path / "out")
    damaged = interrupted.checkpoints()[10] / "ranks.pt"
    damaged.write_bytes(b"short")

    lines = train_here(interrupted, *KEYS)

    (resumed,) = of_kind(lines, "resumed")
    assert resumed["step"] == 5
    assert resumed["passed_over"].startswith(f"step 10: {damaged} has 5 of ")
    assert damaged.parent.with_name("step-00000010.damaged").joinpath("ranks.pt").exists()
    assert losses(lines) == {step: loss for step, loss in losses(alone[1]).items() if step > 5}
    assert lines[0]["seq"] > alone[1][-1]["seq"]
    written = parse_lines((interrupted.output_dir / "metrics.jsonl").read_text())
    assert list(losses(written)) == [line["step"] for line in of_kind(written, "progress")]
    assert list(losses(written)) == list(range(1, 11))


def test_epochs_become_the_steps_that_see_all_samples_and_a_later_start_goes_on(
    workspace: Workspace,
) -> None:
    keys = ("epochs=2", "eval_samples=1", "warmup_steps=9999", "checkpoint_every=1000")

    first = train_here(workspace, *keys)
    again = train_here(workspace, *keys)

    (started,) = of_kind(first, "started")
    steps = math.ceil(2 * started["dataset_samples"] / 5)
    assert (started["total_steps"], first[-1]["step"]) == (steps, steps)
    assert started["steps_per_epoch"] == started["dataset_samples"] / 5
    assert [line["step"] for line in of_kind(again, "resumed")] == [steps]
    config = parse_config(workspace.arguments("epochs=2", "profile=99"), {})
    assert with_known_steps(config, 12).recipe.own_training.profile == 5


def test_training_on_packed_files_with_a_turned_bit_is_refused(workspace: Workspace) -> None:
    data = pack_ids(workspace.output_dir / "packed", range(1000), shard_tokens=400, vocab_size=4096)
    turn_a_bit(data.paths[1])
    config = parse_config(workspace.arguments(f"dataset={data.directory}"), workspace.environ())

    prepared = prepare_data(config)
    with (
        joined_ranks(config.launch) as ranks,
        pytest.raises(BadParameter, match=r"tokens-00001.bin is not what was packed"),
    ):
        build_task(config, prepared, ranks)


def test_start_names_what_the_first_step_waits_for(
    alone: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    finished = alone[0].copy(tmp_path / "out")

    main(finished.arguments(*KEYS), finished.environ())

    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    data = f"data {finished.text_dir}"
    assert [line.get("waits_for", line["kind"]) for line in lines[:-1]] == [
        *(data, "tokenizer bpe", f"{data} to be packed", "libraries"),
        *("its ranks to join", "its model and first weights", "started", "resumed"),
    ]


def test_training_non_finite_gradient_is_refused_before_the_update(workspace: Workspace) -> None:
    config = parse_config(workspace.arguments(*KEYS), workspace.environ())
    with joined_ranks(config.launch) as ranks:
        trainer = trainer_here(config, ranks)
        weights = list(trainer.model.parameters())
        with torch.no_grad():
            weights[-1][0, 0] = math.inf
        before = [weight.clone() for weight in weights]

        with pytest.raises(TrainingFailed, match=r"step 1: loss nan.* the step was not applied"):
            trainer.train()

    assert all(torch.equal(old, new) for old, new in zip(before, weights, strict=True))
    assert workspace.checkpoints() == {}


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["dataset=/nowhere/text"], 'dataset="/nowhere/text" is not a directory on this machine'),
        ([], "cannot be written"),
    ],
)
def test_main_exits_1_with_one_sentence(
    workspace: Workspace, overrides: list[str], sentence: str, capfd: pytest.CaptureFixture[str]
) -> None:
    if not overrides:
        workspace.output_dir.write_text("a file, not a directory")

    code = main(workspace.arguments(*overrides), workspace.environ(STATIONMASTER_RUN_ID="r-7"))

    said = capfd.readouterr()
    assert code == 1
    assert sentence in said.err
    assert len(said.err.splitlines()) == 1
    for line in parse_lines(said.out):
        assert (line["kind"], line["run_id"], line["reason"]) == ("failed", "r-7", said.err.strip())


def test_main_sigterm_saves_the_finished_step_and_exits_143(
    workspace: Workspace, tmp_path: Path
) -> None:
    log = tmp_path / "stdout"
    keys = ("steps=100000", "checkpoint_every=100000")
    with log.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "training", *workspace.arguments(*keys)],
            env=workspace.environ(),
            stdout=out,
        )
    wait_until(lambda: '"step":3,' in log.read_text(), what="the third step")

    process.send_signal(signal.SIGTERM)
    code = process.wait(timeout=PATIENCE_S)

    lines = parse_lines(log.read_text())
    last_step = max(losses(lines))
    assert code == 143
    assert [line["step"] for line in of_kind(lines, "checkpoint_saved")] == [last_step]
    assert (workspace.checkpoints()[last_step] / "complete.json").exists()
    assert of_kind(lines, "finished") == []

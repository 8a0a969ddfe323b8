"""A run that continues from another one's result equals a run that was never interrupted."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from forked_ranks import train_on_ranks
from spoiling import contents_of, turn_a_bit
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.utils._pytree import tree_flatten
from trainer_runs import Lines, Workspace, gradient_norms, losses, of_kind, train_here

from stationmaster.domain.ids import RunId
from stationmaster.domain.restoring import ResumePoint
from training.__main__ import main

FIRST = RunId("tiny-llama-0000aaaa")
# Two sharded ranks with unequal shares of five sequences, and a rate that knows no end.
KEYS = ("schedule=constant", "warmup_steps=2", "checkpoint_every=100", "parallelism=full")
STEPS, MORE = 6, 5
POINT = ResumePoint(run_id=FIRST, step=STEPS)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, text_dir: Path, cache_dir: Path) -> Workspace:
    return Workspace(tmp_path_factory.mktemp("runs") / "first", cache_dir, text_dir)


@pytest.fixture(scope="module")
def saved(place: Workspace) -> Lines:
    """The lines of a run that ended, of whose checkpoint a result is made."""
    return train_on_ranks(place, *KEYS, f"steps={STEPS}", num_ranks=2)


class Resumed(Workspace):
    """A run that is started as its rendered job starts it."""

    def arguments(self, *overrides: str) -> list[str]:
        point = str(self.output_dir / POINT.directory)
        return [*super().arguments(*overrides), "--resume-from", point]


def brought_back(place: Workspace, name: str) -> Resumed:
    """The next run, once the saver's and the stager's Jobs have carried the checkpoint to it."""
    run = Resumed(place.output_dir.with_name(name), place.cache_dir, place.text_dir)
    shutil.copytree(place.checkpoints()[STEPS], run.output_dir / POINT.directory)
    return run


def state_of(run: Workspace, step: int, scratch: Path) -> list[object]:
    """Parameters, optimizer state and position in a checkpoint, and what belongs to ranks."""
    path = run.checkpoints()[step]
    whole = scratch / f"{run.output_dir.name}.pt"
    dcp_to_torch_save(path, whole)
    stored = [torch.load(one, weights_only=False) for one in (whole, path / "ranks.pt")]
    leaves, form = tree_flatten(stored)
    assert sum(isinstance(leaf, torch.Tensor) for leaf in leaves) > 100
    return [form, *(leaf.tolist() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves)]


def test_resumed_run_equals_an_uninterrupted_one_bit_by_bit(
    saved: Lines, place: Workspace, tmp_path: Path
) -> None:
    total = f"steps={STEPS + MORE}"
    whole = replace(place, output_dir=place.output_dir.with_name("whole"))
    uninterrupted = train_on_ranks(whole, *KEYS, total, num_ranks=2)
    resumed = brought_back(place, "resumed")

    lines = train_on_ranks(resumed, *KEYS, total, num_ranks=2)

    assert of_kind(lines, "resumed")[0]["step"] == STEPS
    assert of_kind(lines, "resumed")[0]["total_steps"] == STEPS + MORE
    for figures in (losses, gradient_norms):
        assert figures(saved) | figures(lines) == figures(uninterrupted)
    assert len(losses(lines)) == MORE
    for key in ("samples_seen", "tokens_seen", "loss_nats"):
        assert of_kind(lines, "finished")[0][key] == of_kind(uninterrupted, "finished")[0][key]
    ends = [state_of(run, STEPS + MORE, tmp_path) for run in (whole, resumed)]
    assert ends[0] == ends[1]
    weights = "model/model.safetensors"
    assert (resumed.output_dir / weights).read_bytes() == (whole.output_dir / weights).read_bytes()


def test_restart_of_a_resumed_run_goes_on_from_its_own_checkpoint(
    saved: Lines, place: Workspace
) -> None:
    run = brought_back(place, "restarted")
    train_here(run, *KEYS, f"steps={STEPS + 1}")

    lines = train_here(run, *KEYS, f"steps={STEPS + 2}")

    assert of_kind(lines, "resumed")[0]["step"] == STEPS + 1


def test_checkpoint_of_two_ranks_is_resumed_by_one_under_another_rate(
    saved: Lines, place: Workspace
) -> None:
    run = brought_back(place, "other-size")
    keys = ("schedule=linear", "learning_rate=8e-5", "min_learning_rate=0", "warmup_steps=0")

    lines = train_here(run, *keys, f"steps={STEPS + 2}", "checkpoint_every=100")

    assert of_kind(lines, "resumed")[0]["step"] == STEPS
    rates = [line["learning_rate"] for line in of_kind(lines, "progress")]
    assert rates == pytest.approx([1e-5, 0.0])
    manifest = json.loads((run.checkpoints()[STEPS + 2] / "complete.json").read_text())
    assert manifest["configuration"]["schedule"] == "linear"


@pytest.mark.parametrize(
    ("spoil", "key", "sentence"),
    [
        (lambda run: None, "beta2=0.9", "beta2 is 0.95 there and 0.9 here; give its values"),
        (
            lambda run: turn_a_bit(run.output_dir / POINT.directory / "__1_0.distcp"),
            "beta2=0.95",
            "__1_0.distcp is not what was written",
        ),
        (
            lambda run: shutil.rmtree(run.output_dir / POINT.directory),
            "beta2=0.95",
            "cannot be resumed from: it is not there",
        ),
    ],
    ids=["another configuration", "damaged", "not brought back"],
)
def test_checkpoint_that_cannot_be_resumed_from_stops_the_run_and_stays_as_it_is(
    saved: Lines,
    place: Workspace,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    spoil: Callable[[Resumed], None],
    key: str,
    sentence: str,
) -> None:
    run = brought_back(place, tmp_path.name)
    spoil(run)
    before = contents_of(run.output_dir / POINT.directory)

    code = main(run.arguments(*KEYS, f"steps={STEPS + 2}", key), run.environ())
    torch.distributed.destroy_process_group()  # which a trainer that fails leaves

    assert code == 1
    assert sentence in capsys.readouterr().err
    assert not run.checkpoints()
    assert contents_of(run.output_dir / POINT.directory) == before

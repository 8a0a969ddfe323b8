"""Image classifiers through the whole trainer: resume, evaluation, several ranks."""

from __future__ import annotations

import os
import signal
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from forked_ranks import results, start_ranks
from trainer_runs import Lines, parse_lines

from training.__main__ import main
from training.elastic import exit_now

pytestmark = pytest.mark.usefixtures("one_thread")


def _train(output_dir: Path, cache_dir: Path, *overrides: str) -> Lines:
    """Train the small resnet50 as the only rank; its progress lines."""
    arguments = ["resnet50", "preset=smoke", *overrides, "--output-dir", str(output_dir)]
    before = signal.getsignal(signal.SIGTERM)
    with redirect_stdout(StringIO()) as out:
        code = main(arguments, {"STATIONMASTER_CACHE_DIR": str(cache_dir)})
    signal.signal(signal.SIGTERM, before)
    assert code == 0
    return parse_lines(out.getvalue())


def _measured(lines: Lines, *, after: int) -> list[tuple[Any, ...]]:
    """What depends on weights, running means and data, of all steps after one."""
    return [
        (line["kind"], line["step"], line["loss_nats"], line.get("grad_norm"), line.get("top1"))
        for line in lines
        if line["kind"] in {"progress", "evaluated"} and line["step"] > after
    ]


def test_run_resumed_twice_is_equal_to_the_uninterrupted_one_and_reports_its_accuracy(
    tmp_path: Path, cache_dir: Path
) -> None:
    keys = ("checkpoint_every=2", "eval_every=3", "eval_samples=0")
    whole = _train(tmp_path / "whole", cache_dir, *keys, "steps=6")

    _train(tmp_path / "parts", cache_dir, *keys, "steps=2")
    second = _train(tmp_path / "parts", cache_dir, *keys, "steps=4", "data_workers=2")
    third = _train(tmp_path / "parts", cache_dir, *keys, "steps=6")

    resumed = [line["samples_seen"] for line in (*second, *third) if line["kind"] == "resumed"]
    assert resumed == [2 * 16, 4 * 16]
    assert _measured(third, after=4) == _measured(whole, after=4)
    between = [measured for measured in _measured(whole, after=2) if measured[1] < 4]
    assert _measured(second, after=2)[: len(between)] == between
    started, evaluated = whole[0], [line for line in whole if line["kind"] == "evaluated"]
    assert (started["dataset_images"], started["image_size"]) == (256, 32)
    assert [(line["step"], line["targets"], line["top5"]) for line in evaluated] == [
        (3, 64, 1.0),
        (6, 64, 1.0),
    ]
    assert {line["perplexity"] for line in evaluated} == {None}


def _train_as_rank(_rank: int, output_dir: Path, cache_dir: Path, keys: tuple[str, ...]) -> None:
    arguments = ["resnet50", "preset=smoke", *keys, "--output-dir", str(output_dir)]
    exit_now(main(arguments, {"STATIONMASTER_CACHE_DIR": str(cache_dir), **os.environ}))


def test_run_on_three_ranks_is_that_of_one_where_the_passes_are_the_same(
    tmp_path: Path, cache_dir: Path
) -> None:
    # Four passes of four images: on three ranks two each, and two of the six count for nothing.
    keys = ("norm_batch_size=4", "steps=3", "eval_every=0")
    alone = _train(tmp_path / "alone", cache_dir, *keys)

    results(start_ranks(_train_as_rank, tmp_path / "three", cache_dir, keys, world_size=3))

    shared = parse_lines((tmp_path / "three" / "metrics.jsonl").read_text())
    for name in ("loss_nats", "grad_norm"):
        one, three = (
            [line[name] for line in lines if line["kind"] == "progress"]
            for lines in (alone, shared)
        )
        assert len(one) == 3
        assert three == pytest.approx(one, rel=1e-4)

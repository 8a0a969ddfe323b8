"""Image classifiers through the whole trainer, in this process: resume, evaluation, refusals."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from forked_ranks import start_ranks
from trainer_runs import Lines, parse_lines

from training.__main__ import main
from training.data.images import IMAGE_SUFFIXES
from training.elastic import exit_now


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("image-cache")


def _train(output_dir: Path, cache: Path, *overrides: str) -> tuple[int, Lines, str]:
    """Train the small resnet50 as the only rank: exit code, progress lines, standard error."""
    arguments = ["resnet50", "preset=smoke", *overrides, "--output-dir", str(output_dir)]
    before = signal.getsignal(signal.SIGTERM)
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
        code = main(arguments, {"STATIONMASTER_CACHE_DIR": str(cache)})
    signal.signal(signal.SIGTERM, before)
    if dist.is_initialized():  # a failed run leaves its group, and ends with its process
        dist.destroy_process_group()
    return code, parse_lines(out.getvalue()), err.getvalue()


def _measured(lines: Lines, *, after: int) -> list[tuple[Any, ...]]:
    """What depends on weights, running means and data, of all steps after one."""
    return [
        (line["kind"], line["step"], line["loss_nats"], line.get("grad_norm"), line.get("top1"))
        for line in lines
        if line["kind"] in {"progress", "evaluated"} and line["step"] > after
    ]


def test_run_resumed_twice_within_an_epoch_is_equal_to_the_uninterrupted_one(
    tmp_path: Path, cache: Path
) -> None:
    # Of 256 images in steps of 16, the first epoch ends with step 16.
    keys = ("checkpoint_every=4", "eval_every=6", "eval_samples=0")
    _, whole, _ = _train(tmp_path / "whole", cache, *keys, "steps=18")

    _train(tmp_path / "parts", cache, *keys, "steps=5")
    _, second, _ = _train(tmp_path / "parts", cache, *keys, "steps=13", "data_workers=2")
    code, third, _ = _train(tmp_path / "parts", cache, *keys, "steps=18")

    assert code == 0
    assert [line["samples_seen"] for line in (*second, *third) if line["kind"] == "resumed"] == [
        5 * 16,
        13 * 16,
    ]
    assert _measured(third, after=13) == _measured(whole, after=13)
    between = [measured for measured in _measured(whole, after=5) if measured[1] < 13]
    assert _measured(second, after=5)[: len(between)] == between
    assert {measured[0] for measured in _measured(third, after=13)} == {"progress", "evaluated"}


def test_run_reports_its_images_and_accuracy(tmp_path: Path, cache: Path) -> None:
    code, lines, _ = _train(tmp_path, cache, "eval_samples=0")

    assert code == 0
    started = lines[0]
    assert (started["kind"], started["dataset_images"], started["image_size"]) == (
        "started",
        256,
        32,
    )
    evaluated = [line for line in lines if line["kind"] == "evaluated"]
    assert [(line["step"], line["targets"], line["top5"]) for line in evaluated] == [
        (4, 64, 1.0),
        (8, 64, 1.0),
    ]
    assert evaluated[-1]["top1"] > 0.4
    assert evaluated[-1]["perplexity"] is None
    assert lines[-1]["samples_seen"] == 8 * 16


def test_run_damaged_image_fails_with_a_sentence_that_names_it(tmp_path: Path, cache: Path) -> None:
    _train(tmp_path / "out", cache, "steps=1")  # draws the shapes
    shapes = tmp_path / "shapes"
    for path in (cache / "datasets" / "shapes").rglob(f"*{IMAGE_SUFFIXES[-1]}"):
        copy = shapes / path.relative_to(cache / "datasets" / "shapes")
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes()[: 60 if path.name == "007.png" else None])

    code, lines, err = _train(tmp_path / "out", cache, f"dataset={shapes}", "steps=16")

    assert code == 1
    assert lines[-1]["kind"] == "failed"
    assert "007.png cannot be read" in lines[-1]["reason"]
    assert "Traceback" not in err


def test_run_with_other_number_of_classes_is_refused_before_training(
    tmp_path: Path, cache: Path
) -> None:
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
        code = main(
            ["resnet50", "dataset=shapes", "--output-dir", str(tmp_path)],
            {"STATIONMASTER_CACHE_DIR": str(cache)},
        )

    assert code == 1
    assert "has 4 classes in" in err.getvalue()
    assert [line["kind"] for line in parse_lines(out.getvalue())] == ["failed"]


def _train_as_rank(_rank: int, output_dir: Path, cache: Path, keys: tuple[str, ...]) -> None:
    arguments = ["resnet50", "preset=smoke", *keys, "--output-dir", str(output_dir)]
    exit_now(main(arguments, {"STATIONMASTER_CACHE_DIR": str(cache), **os.environ}))


def test_run_on_three_ranks_is_that_of_one_where_the_passes_are_the_same(
    tmp_path: Path, cache: Path
) -> None:
    # Four passes of four images: on three ranks two each, and two of the six count for nothing.
    keys = ("norm_batch_size=4", "steps=3", "eval_every=0")
    _, alone, _ = _train(tmp_path / "alone", cache, *keys)

    start_ranks(_train_as_rank, tmp_path / "three", cache, keys, world_size=3)

    shared = parse_lines((tmp_path / "three" / "metrics.jsonl").read_text())
    for name in ("loss_nats", "grad_norm"):
        one, three = (
            [line[name] for line in lines if line["kind"] == "progress"]
            for lines in (alone, shared)
        )
        assert len(one) == 3
        assert three == pytest.approx(one, rel=1e-4)

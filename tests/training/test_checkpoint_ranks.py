"""Checkpoints written by some ranks and read by others, more or fewer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from checkpoint_ranks import TinyRun, checkpointer_in, results, run_ranks

from training.parallel import Ranks


def train_bound_to_gpus(
    ranks: Ranks, directory: Path, until: int, options: dict[str, Any]
) -> dict[str, Any]:
    """As `train_on`, with the default group marked as `init_process_group(device_id=)` marks it.

    Its backend for that device is gloo, which splits no communicators: torch fails where, with
    NCCL, it would wait for ever.
    """
    dist.distributed_c10d._get_default_group().bound_device_id = torch.device("cuda", ranks.rank)
    return train_on(ranks, directory, until, options, True)


def train_on(
    ranks: Ranks, directory: Path, until: int, options: dict[str, Any], rank_0_only: bool = False
) -> dict[str, Any]:
    """Resume if there is something, train, leave a checkpoint of the last step."""
    run = TinyRun(ranks, **options)
    checkpointer = checkpointer_in(directory, ranks, rank_0_only=rank_0_only)
    loaded = run.resume(checkpointer)
    began = run.steps
    losses = run.train_until(until, checkpointer=checkpointer, every=until)
    return {
        "began": began,
        "losses": losses,
        "data": loaded and loaded["data"],
        "rng": loaded and sorted(loaded["rng"]),
    }


def global_losses(ranks: list[dict[str, Any]]) -> list[float]:
    return [sum(shares) for shares in zip(*(rank["losses"] for rank in ranks), strict=True)]


def test_checkpoint_of_two_ranks_goes_on_with_three_and_then_one(tmp_path: Path) -> None:
    uninterrupted = global_losses(
        results(run_ranks(train_on, tmp_path / "whole", 12, {}, world_size=1))
    )

    parts = [
        results(run_ranks(train_on, tmp_path / "parts", until, {}, world_size=world_size))
        for until, world_size in ((4, 2), (8, 3), (12, 1))
    ]

    losses = [loss for part in parts for loss in global_losses(part)]
    assert [part[0]["began"] for part in parts] == [0, 4, 8]
    assert losses == pytest.approx(uninterrupted, abs=1e-5)
    for rank in parts[1]:  # entries of all ranks reach every rank
        assert set(rank["data"]) == {"stream", "lane-0", "lane-1", "shard-0", "shard-1"}
        assert rank["data"]["lane-1"].tolist() == [1, 4]
        assert rank["data"]["shard-1"] == {"file": "1.txt", "rows": [1, 2]}
    assert [rank["rng"] for rank in parts[1]] == [["rank-0"], ["rank-1"], []]
    manifest = json.loads((tmp_path / "parts/step-00000008/complete.json").read_text())
    writers = {name: file["rank"] for name, file in manifest["files"].items()}
    of_ranks = {f"__{rank}_0.distcp": rank for rank in range(3)}
    assert writers == of_ranks | {".metadata": 0, "ranks.pt": 0}
    assert manifest["verified"] is True


def test_checkpoint_resumed_by_as_many_ranks_goes_on_bit_by_bit(tmp_path: Path) -> None:
    options = {"dropout": 0.5}
    whole = results(run_ranks(train_on, tmp_path / "whole", 8, options, world_size=2))

    first = results(run_ranks(train_on, tmp_path / "parts", 4, options, world_size=2))
    second = results(run_ranks(train_on, tmp_path / "parts", 8, options, world_size=2))

    for rank in range(2):
        assert first[rank]["losses"] + second[rank]["losses"] == whole[rank]["losses"]
    assert whole[0]["losses"] != whole[1]["losses"]


def test_checkpoint_rank_0_only_writes_for_all(tmp_path: Path) -> None:
    options = {"dropout": 0.5, "replicated": True}
    whole = results(run_ranks(train_on, tmp_path / "whole", 8, options, True, world_size=2))

    first = results(run_ranks(train_on, tmp_path / "parts", 4, options, True, world_size=2))
    manifest = json.loads((tmp_path / "parts/step-00000004/complete.json").read_text())
    second = results(run_ranks(train_on, tmp_path / "parts", 8, options, True, world_size=2))

    assert sorted(manifest["files"]) == [".metadata", "__0_0.distcp", "ranks.pt"]
    assert manifest["world_size"] == 2
    for rank in range(2):
        assert first[rank]["losses"] + second[rank]["losses"] == whole[rank]["losses"]
        assert second[rank]["rng"] == [f"rank-{rank}"]


def test_rank_0_alone_writes_where_ranks_are_bound_to_gpus(tmp_path: Path) -> None:
    options = {"replicated": True}

    results(run_ranks(train_bound_to_gpus, tmp_path, 2, options, world_size=2))
    more = results(run_ranks(train_bound_to_gpus, tmp_path, 4, options, world_size=2))

    assert [rank["began"] for rank in more] == [2, 2]

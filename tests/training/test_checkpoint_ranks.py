"""Checkpoints of ranks: read by more or fewer of them, and of processes killed in a save.

A process kills itself from an audit hook, which the interpreter calls before it opens, renames or
removes a file.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from checkpoint_ranks import TinyRun, checkpointer_in, lone_rank
from forked_ranks import results, run_ranks
from spoiling import turn_a_bit

from stationmaster.domain.errors import PermanentError
from stationmaster.domain.progress_lines import EvaluatedLine
from training.checkpoint import Checkpointer
from training.manifest import complete_steps
from training.parallel import Ranks

Rule = Callable[[tuple[Any, ...]], object]

# At the save of step 6, with checkpoints of 2 and 4 there and two kept: the audit event, what its
# arguments look like, and the step to resume from.
MOMENTS: dict[str, tuple[str, Rule, int]] = {
    "a file is opened": ("open", lambda a: is_weights(a[0]) and a[2] & os.O_WRONLY, 4),
    "metadata are renamed": ("os.rename", lambda a: str(a[1]).endswith("06/.metadata"), 4),
    "manifest is renamed": ("os.rename", lambda a: str(a[1]).endswith("06/complete.json"), 4),
    "files are read back": ("open", lambda a: is_weights(a[0]) and not a[2] & os.O_WRONLY, 6),
    "old manifest goes": ("os.remove", lambda a: str(a[0]).endswith("02/complete.json"), 6),
    "old directory goes": ("shutil.rmtree", lambda a: str(a[0]).endswith("02"), 6),
    "old metadata go": ("os.remove", lambda a: str(a[0]) == ".metadata", 6),
}


def is_weights(path: object) -> bool:
    return str(path).endswith("06/__0_0.distcp")


def train_to_4(ranks: Ranks, directory: Path) -> tuple[TinyRun, Checkpointer]:
    run, checkpointer = TinyRun(ranks), checkpointer_in(directory, ranks)
    run.train_until(4, checkpointer=checkpointer, every=2)
    return run, checkpointer


def train_and_die(ranks: Ranks, directory: Path, moment: str) -> None:
    event, matches, _ = MOMENTS[moment]
    run, checkpointer = train_to_4(ranks, directory)

    def hook(happening: str, arguments: tuple[Any, ...]) -> None:
        if happening == event and matches(arguments):
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    run.train_until(6, checkpointer=checkpointer, every=2)


def train_and_die_writing(ranks: Ranks, directory: Path) -> None:
    run, checkpointer = train_to_4(ranks, directory)
    if ranks.rank == ranks.world_size - 1:
        # The kernel ends the process when a file grows beyond this: after half of the weights.
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))
    run.train_until(6, checkpointer=checkpointer, every=2)


def assert_resumes_from(
    directory: Path, step: int, *, tolerance: float = 0.0, damaged: int = 0
) -> None:
    """The weights are those of that step, and training and saving go on."""
    with lone_rank() as ranks:
        straight, resumed = TinyRun(ranks), TinyRun(ranks)
        straight.train_until(step)
        checkpointer = checkpointer_in(directory, ranks)
        assert resumed.resume(checkpointer) is not None

        assert resumed.steps == step
        for name, tensor in straight.state()["model"].items():
            found = resumed.state()["model"][name].to_local()
            torch.testing.assert_close(found, tensor.to_local(), rtol=0.0, atol=tolerance)
        assert {int(p.name[-8:]) for p in directory.iterdir()} == complete_steps(directory)

        resumed.train_until(8, checkpointer=checkpointer, every=2)
        aside = [path.name for path in directory.iterdir() if path.suffix]
        assert aside == ([f"step-{damaged:08d}.damaged"] if damaged else [])
        assert max(complete_steps(directory)) == 8
        assert len(complete_steps(directory)) == 2


@pytest.mark.parametrize("moment", list(MOMENTS))
def test_killed_process_leaves_the_newest_complete_checkpoint(tmp_path: Path, moment: str) -> None:
    (end,) = run_ranks(train_and_die, tmp_path, moment, world_size=1)

    assert end.exit_code == -signal.SIGKILL
    assert_resumes_from(tmp_path, MOMENTS[moment][2])


def test_killed_in_the_middle_of_its_file_one_rank_spoils_the_checkpoint_for_all(
    tmp_path: Path,
) -> None:
    ends = run_ranks(train_and_die_writing, tmp_path, world_size=2)

    torn = tmp_path / "step-00000006/__1_0.distcp"
    assert ends[1].exit_code == -signal.SIGXFSZ
    assert ends[0].exit_code != 0
    assert torn.stat().st_size == 8192
    assert_resumes_from(tmp_path, 4, tolerance=1e-6)  # two ranks trained, one compares


def train_on_a_bad_disk(ranks: Ranks, directory: Path) -> str:
    """A bit of the weights of step 6 turns after it was written."""
    run, checkpointer = train_to_4(ranks, directory)

    def hook(happening: str, arguments: tuple[Any, ...]) -> None:
        if happening == "os.rename" and str(arguments[1]).endswith("06/complete.json"):
            turn_a_bit(directory / "step-00000006/__0_0.distcp")

    sys.addaudithook(hook)
    try:
        run.train_until(6, checkpointer=checkpointer, every=2)
    except PermanentError as error:
        return str(error)
    return "no error"


def test_save_that_does_not_read_back_fails_and_removes_nothing(tmp_path: Path) -> None:
    (sentence,) = results(run_ranks(train_on_a_bad_disk, tmp_path, world_size=1))

    assert sentence.startswith("checkpoint step-00000006 did not survive being written")
    assert "__0_0.distcp is not what was written" in sentence
    assert complete_steps(tmp_path) == {2, 4, 6}
    assert_resumes_from(tmp_path, 4, damaged=6)


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


def test_checkpoint_that_rank_0_writes_for_all_goes_on_bit_by_bit(tmp_path: Path) -> None:
    options = {"dropout": 0.5, "replicated": True}
    whole = results(run_ranks(train_on, tmp_path / "whole", 8, options, True, world_size=2))

    first = results(run_ranks(train_bound_to_gpus, tmp_path / "parts", 4, options, world_size=2))
    manifest = json.loads((tmp_path / "parts/step-00000004/complete.json").read_text())
    second = results(run_ranks(train_bound_to_gpus, tmp_path / "parts", 8, options, world_size=2))

    assert sorted(manifest["files"]) == [".metadata", "__0_0.distcp", "ranks.pt"]
    assert manifest["world_size"] == 2
    for rank in range(2):
        assert first[rank]["losses"] + second[rank]["losses"] == whole[rank]["losses"]
        assert second[rank]["rng"] == [f"rank-{rank}"]


def keep_the_best(ranks: Ranks, directory: Path) -> tuple[list[list[int]], list[int | None]]:
    run, checkpointer = train_to_4(ranks, directory)
    checkpointer.mark_best(EvaluatedLine(step=4, loss_nats=2.0))
    run.train_until(10, checkpointer=checkpointer, every=2)
    there = [sorted(complete_steps(directory))]
    found = [best.step if (best := checkpointer.best(up_to=limit)) else None for limit in (10, 3)]
    dist.barrier()
    if ranks.rank == 0:
        turn_a_bit(directory / "step-00000004" / "__1_0.distcp")
    dist.barrier()
    again = checkpointer_in(directory, ranks)
    found.append(best.step if (best := again.best(up_to=10)) else None)
    checkpointer.mark_best(EvaluatedLine(step=10, loss_nats=1.0))
    dist.barrier()
    return [*there, sorted(complete_steps(directory))], found


def test_best_checkpoint_outlives_newer_ones_and_ranks_agree_on_it(tmp_path: Path) -> None:
    ranks = run_ranks(keep_the_best, tmp_path, world_size=2)

    assert results(ranks) == [([[4, 8, 10], [8, 10]], [4, None, None])] * 2

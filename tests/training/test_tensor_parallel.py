"""Tensor parallelism of a whole run: checkpoints and results do not depend on it.

The same losses and gradients are in `test_parallel_parity`. All of it is gloo on CPUs in float32:
NCCL, GPUs and bfloat16 are not run here.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest
import torch
from checkpoint_ranks import lone_rank
from forked_ranks import train_on_ranks
from torch.distributed.device_mesh import init_device_mesh
from trainer_runs import Workspace, losses, of_kind, train_here

from stationmaster.domain.catalogue.entries import CATALOGUE
from stationmaster.domain.errors import BadParameter
from stationmaster.domain.results import MODEL, PROFILE, PROFILE_TRACE
from training.config import parse_config
from training.models.architectures import build_model
from training.tensor_parallel import split_products

KEYS = ("schedule=constant", "warmup_steps=1", "eval_every=2", "eval_samples=5")


def test_checkpoint_goes_between_split_and_whole_products(
    workspace: Workspace, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    alone = Workspace(tmp_path / "alone", workspace.cache_dir, workspace.text_dir)
    expected = train_here(alone, *KEYS, "steps=6")

    split = (*KEYS, "tensor_parallel=2")
    lines = train_on_ranks(workspace, *split, "steps=2", "profile=2", num_ranks=2)
    lines += train_on_ranks(workspace, *KEYS, "steps=4", num_ranks=4)
    lines += train_on_ranks(workspace, *split, "steps=6", num_ranks=4)

    assert [line["step"] for line in of_kind(lines, "resumed")] == [2, 4]
    assert losses(lines) == pytest.approx(losses(expected), abs=1e-5)
    evaluated = [[line["loss_nats"] for line in of_kind(x, "evaluated")] for x in (lines, expected)]
    assert evaluated[0] == pytest.approx(evaluated[1], abs=1e-5)
    ends = [of_kind(x, "finished")[-1] for x in (lines, expected)]
    assert ends[0]["tokens_seen"] == ends[1]["tokens_seen"]
    assert ends[0]["samples_seen"] == ends[1]["samples_seen"] == 30
    _check_profile(workspace)
    ours, theirs = (
        AutoModelForCausalLM.from_pretrained(place.output_dir / MODEL).state_dict()
        for place in (workspace, alone)
    )
    assert ours.keys() == theirs.keys()
    for name, weight in theirs.items():
        torch.testing.assert_close(ours[name], weight, rtol=0, atol=2e-4, msg=name)


def _check_profile(workspace: Workspace) -> None:
    """Rank 0 has recorded the exchanges of a step between the ranks that split its products."""
    with gzip.open(workspace.output_dir / PROFILE / PROFILE_TRACE) as trace:
        names = Counter(event.get("name") for event in json.load(trace)["traceEvents"])
    assert names["gloo:all_gather"] >= 1
    assert [path.name for path in (workspace.output_dir / PROFILE).iterdir()] == [PROFILE_TRACE]


def test_node_of_too_few_processes_is_refused() -> None:
    words = ["tiny-llama", "tensor_parallel=2", "--output-dir", "out"]

    with pytest.raises(BadParameter, match="this one runs 1; start torchrun with --nproc-per-node"):
        parse_config(words, {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "1"})
    config = parse_config(words, {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4"})

    assert config.recipe.training.tensor_parallel == 2  # type: ignore[union-attr]


def test_architecture_that_nothing_splits_is_refused() -> None:
    smoke = CATALOGUE["mixtral-8x7b"].smoke
    assert smoke is not None
    model = build_model(smoke.model)  # type: ignore[arg-type]

    with lone_rank(), pytest.raises(BadParameter, match="llama and mistral, and this one is mixtr"):
        split_products(model, init_device_mesh("cpu", (1,)))

"""Context parallelism of a whole run: checkpoints and results do not depend on it.

The same losses and gradients are in `test_parallel_parity`. All of it is gloo on CPUs in float32:
NCCL, GPUs, bfloat16 and the kernel that only GPUs have are not run here.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from forked_ranks import train_on_ranks
from trainer_runs import Workspace, losses, of_kind, train_here

from stationmaster.domain.errors import BadParameter
from stationmaster.domain.results import MODEL
from training.config import parse_config

KEYS = ("schedule=constant", "warmup_steps=1", "eval_every=2", "eval_samples=5")


def test_checkpoint_goes_between_shared_and_whole_sequences(
    workspace: Workspace, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    keys = (*KEYS, "document_mask=true")
    alone = Workspace(tmp_path / "alone", workspace.cache_dir, workspace.text_dir)
    expected = train_here(alone, *keys, "steps=6")

    shared = (*keys, "context_parallel=2")
    lines = train_on_ranks(workspace, *shared, "steps=2", num_ranks=2)
    lines += train_on_ranks(workspace, *keys, "steps=4", num_ranks=4)
    lines += train_on_ranks(workspace, *shared, "tensor_parallel=2", "steps=6", num_ranks=4)

    assert [line["step"] for line in of_kind(lines, "resumed")] == [2, 4]
    assert losses(lines) == pytest.approx(losses(expected), abs=1e-5)
    evaluated = [[line["loss_nats"] for line in of_kind(x, "evaluated")] for x in (lines, expected)]
    assert evaluated[0] == pytest.approx(evaluated[1], abs=1e-5)
    ends = [of_kind(x, "finished")[-1] for x in (lines, expected)]
    assert ends[0]["tokens_seen"] == ends[1]["tokens_seen"]
    assert ends[0]["samples_seen"] == ends[1]["samples_seen"] == 30
    ours, theirs = (
        AutoModelForCausalLM.from_pretrained(place.output_dir / MODEL).state_dict()
        for place in (workspace, alone)
    )
    assert ours.keys() == theirs.keys()
    for name, weight in theirs.items():
        torch.testing.assert_close(ours[name], weight, rtol=0, atol=2e-4, msg=name)
    configurations = [
        json.loads((place.output_dir / MODEL / "config.json").read_text())
        for place in (workspace, alone)
    ]
    assert configurations[0] == configurations[1]


def test_job_whose_processes_do_not_come_out_even_is_refused() -> None:
    words = ["tiny-llama", "context_parallel=2", "tensor_parallel=2", "--output-dir", "out"]

    with pytest.raises(BadParameter, match=r"over 4 processes, and all nodes .* run 6; start 4 or"):
        parse_config(words, {"WORLD_SIZE": "6", "LOCAL_WORLD_SIZE": "2"})
    config = parse_config(words, {"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "2"})

    assert config.recipe.training.context_parallel == 2  # type: ignore[union-attr]

"""Models that are spread over ranks: checkpoints and results do not depend on how.

The same losses and gradients are in `test_parallel_parity`. All of it is gloo on CPUs in float32:
NCCL, GPUs, bfloat16 and kernels that only GPUs have are not run here.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

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
from training.expert_parallel import share_experts
from training.models.architectures import build_model
from training.tensor_parallel import split_products

KEYS = ("schedule=constant", "warmup_steps=1", "eval_every=2", "eval_samples=5")
TINY, MIXTRAL = ("tiny-llama",), ("mixtral-8x7b", "preset=smoke")


@pytest.mark.parametrize(
    ("recipe", "keys", "spread", "last"),
    [
        pytest.param(TINY, (), ("tensor_parallel=2",), (), id="split products"),
        pytest.param(MIXTRAL, (), ("expert_parallel=2",), (), id="shared experts"),
        pytest.param(
            TINY,
            ("document_mask=true",),
            ("context_parallel=2",),
            ("tensor_parallel=2",),
            id="shared sequences",
        ),
    ],
)
def test_checkpoint_goes_between_a_model_that_is_spread_and_a_whole_one(
    workspace: Workspace,
    tmp_path: Path,
    recipe: tuple[str, ...],
    keys: tuple[str, ...],
    spread: tuple[str, ...],
    last: tuple[str, ...],
) -> None:
    keys = (*KEYS, *keys)
    workspace = replace(workspace, recipe=recipe)
    alone = replace(workspace, output_dir=tmp_path / "alone")
    expected = train_here(alone, *keys, "steps=6")

    lines = train_on_ranks(workspace, *keys, *spread, "steps=2", "profile=2", num_ranks=2)
    lines += train_on_ranks(workspace, *keys, "steps=4", num_ranks=4)
    lines += train_on_ranks(workspace, *keys, *spread, *last, "steps=6", num_ranks=4)

    assert [line["step"] for line in of_kind(lines, "resumed")] == [2, 4]
    assert losses(lines) == pytest.approx(losses(expected), abs=1e-5)
    evaluated = [[line["loss_nats"] for line in of_kind(x, "evaluated")] for x in (lines, expected)]
    assert evaluated[0] == pytest.approx(evaluated[1], abs=1e-5)
    ends = [of_kind(x, "finished")[-1] for x in (lines, expected)]
    assert ends[0]["tokens_seen"] == ends[1]["tokens_seen"]
    assert ends[0]["samples_seen"] == ends[1]["samples_seen"] == 30
    assert exchanges_of(workspace)["gloo:all_gather" if recipe == TINY else "gloo:all_to_all"] >= 1
    directories = [place.output_dir / MODEL for place in (workspace, alone)]
    ours, theirs = map(published, directories)
    ids = torch.arange(40).view(2, 20)
    with torch.no_grad():
        torch.testing.assert_close(ours(ids).logits, theirs(ids).logits, rtol=0, atol=1e-3)
    configurations = [(directory / "config.json").read_text() for directory in directories]
    assert configurations[0] == configurations[1]


def exchanges_of(workspace: Workspace) -> Counter[str]:
    """What rank 0 has recorded of a step, by name: exchanges between ranks are among it."""
    assert [path.name for path in (workspace.output_dir / PROFILE).iterdir()] == [PROFILE_TRACE]
    with gzip.open(workspace.output_dir / PROFILE / PROFILE_TRACE) as trace:
        return Counter(event.get("name") for event in json.load(trace)["traceEvents"])


def published(directory: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(directory)


@pytest.mark.parametrize(
    ("ranks", "of_a_node", "keys", "sentence"),
    [
        (4, 1, ("tensor_parallel=2",), "one runs 1; start torchrun with --nproc-per-node"),
        (
            *(6, 2, ("context_parallel=2", "tensor_parallel=2")),
            "over 4 processes, and all nodes .* run 6; start 4 or",
        ),
        (3, 2, ("expert_parallel=2",), "no divisor of the 3 processes .*; use 1"),
        (6, 2, ("expert_parallel=4",), "no divisor of the 6 processes .*; use 1"),
        (8, 2, ("expert_parallel=4", "parallelism=hybrid"), "divisor of the 2 processes .*; use 2"),
    ],
)
def test_ranks_that_do_not_come_out_even_are_refused(
    ranks: int, of_a_node: int, keys: tuple[str, ...], sentence: str
) -> None:
    recipe = MIXTRAL if "expert" in keys[0] else TINY
    words = [*recipe, *keys, "--output-dir", "out"]

    with pytest.raises(BadParameter, match=sentence):
        parse_config(words, {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(of_a_node)})
    config = parse_config(words, {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4"})

    name, value = keys[0].split("=")
    assert getattr(config.recipe.training, name) == int(value)


@pytest.mark.parametrize(
    ("recipe", "spread", "sentence"),
    [
        ("mixtral-8x7b", split_products, "llama and mistral, and this one is mixtr"),
        ("tiny-llama", share_experts, "LlamaForCausalLM has none; leave"),
    ],
)
def test_architecture_that_cannot_be_spread_so_is_refused(
    recipe: str, spread: Callable[..., None], sentence: str
) -> None:
    small = CATALOGUE[recipe].smoke or CATALOGUE[recipe]
    model = build_model(small.model)  # type: ignore[union-attr]

    with lone_rank(), pytest.raises(BadParameter, match=sentence):
        spread(model, init_device_mesh("cpu", (1,)))

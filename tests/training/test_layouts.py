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
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_ranks import lone_rank
from forked_ranks import run_ranks, train_on_ranks
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.utils._python_dispatch import TorchDispatchMode
from trainer_runs import Workspace, losses, of_kind, train_here
from transformers.models.mixtral.configuration_mixtral import MixtralConfig
from transformers.models.mixtral.modeling_mixtral import MixtralExperts

from stationmaster.domain.catalogue.entries import CATALOGUE
from stationmaster.domain.errors import BadParameter
from stationmaster.domain.results import MODEL, PROFILE, PROFILE_TRACE
from training.config import parse_config
from training.expert_parallel import share_experts
from training.models.architectures import build_model
from training.parallel import Ranks
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


# Rank by rank: to which two of four experts each of its three tokens goes.
ROUTES = {
    "both ranks, unevenly": ([[0, 3], [1, 0], [0, 1]], [[2, 0], [0, 1], [3, 0]]),
    "only the first rank's experts": ([[0, 1], [1, 0], [0, 1]], [[1, 0], [0, 1], [0, 1]]),
    "one expert of the second rank": ([[0, 1], [1, 0], [3, 1]], [[1, 0], [3, 1], [0, 3]]),
}


def build_experts() -> MixtralExperts:
    config = MixtralConfig(
        hidden_size=8,
        intermediate_size=12,
        num_local_experts=4,
        num_experts_per_tok=2,
        experts_implementation="grouped_mm",
    )
    experts = MixtralExperts(config)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in experts.parameters():
            parameter.normal_(generator=generator)
    return experts


def inputs_of(rank: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 + rank)
    tokens = torch.randn(3, 8, generator=generator, requires_grad=True)
    weights = torch.rand(3, 2, generator=generator).requires_grad_()
    return tokens, weights


def gradients_of(experts: nn.Module, rank: int, routes: list[list[int]]) -> list[Tensor]:
    """The result for one rank's tokens, and the gradients of a sum over it."""
    tokens, weights = inputs_of(rank)
    mixed = experts(tokens, torch.tensor(routes), weights)
    (mixed * torch.arange(1.0, 9.0)).sum().backward()
    assert tokens.grad is not None
    assert weights.grad is not None
    return [mixed.detach(), tokens.grad, weights.grad]


class GroupEnds(TorchDispatchMode):
    """Keeps where each expert's rows end, of all products inside."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[list[int]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.ops.aten._grouped_mm.default:
            self.ends.append(args[2].tolist())
        return func(*args, **(kwargs or {}))


def mix(ranks: Ranks) -> dict[str, list[Tensor]]:
    mesh = init_device_mesh("cpu", (2,))
    found = {}
    for name, routes in ROUTES.items():
        experts = build_experts()
        share_experts(nn.ModuleList([experts]), mesh)
        with GroupEnds() as products:
            made = gradients_of(experts, ranks.rank, routes[ranks.rank])
        # No product is without rows: some GPUs fail then, or invent gradients.
        assert products.ends
        for ends in products.ends:
            assert all(end > start for start, end in pairwise([0, *ends]))
        found[name] = made + [p.grad.to_local() for p in experts.parameters()]  # type: ignore[union-attr]
    return found


def test_rows_travel_to_their_experts_and_back() -> None:
    found = [end.result for end in run_ranks(mix, world_size=2)]

    for name, routes in ROUTES.items():
        whole = build_experts()
        expected = [gradients_of(whole, rank, routes[rank]) for rank in range(2)]
        gate_up, down = (parameter.grad for parameter in whole.parameters())
        for rank in range(2):
            mine = slice(2 * rank, 2 * rank + 2)
            shares = [*expected[rank], gate_up[mine], down[mine]]  # type: ignore[index]
            for ours, theirs in zip(found[rank][name], shares, strict=True):
                torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5, msg=name)

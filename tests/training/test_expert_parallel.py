"""Expert parallelism: rows that travel to the ranks of their experts and back."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from checkpoint_ranks import run_ranks
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.models.mixtral.configuration_mixtral import MixtralConfig
from transformers.models.mixtral.modeling_mixtral import MixtralExperts

from training.expert_parallel import share_experts
from training.parallel import Ranks

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

"""One rank's part of spreading a model: wrapping, precision, recomputation, clipping, optimizer."""

from __future__ import annotations

import importlib.util
import math
import sys
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from parallel_runs import OperationCounts, Run, train_here
from torch import nn
from torch.distributed.tensor import DTensor

from stationmaster.domain.catalogue.training_config import TrainingConfig
from stationmaster.domain.errors import BadParameter
from stationmaster.domain.planning.recipe_lookup import get_recipe
from training.blocks import prepare_blocks
from training.float8 import multiply_in_float8, prepare_torchao
from training.optimizer import build_optimizer
from training.parallel import Ranks
from training.sharding import ParallelModel, parallelise
from training.throughput import Throughput

# The compiler looks at every tensor it meets; torch hides the warning, which pytest undoes.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")

WIDTH = 8


KEYS = {"precision": "float8", "sequence_length": "16"}
BF16 = {**KEYS, "precision": "bf16"}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, *, scale: float) -> torch.Tensor:
        return x + scale * self.down(torch.tanh(self.up(x)))


class Model(nn.Module):
    """Three blocks between an embedding and a head that is tied to it."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(16, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 16, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, scale=0.5)
        return self.head(self.norm(x))


def keys(**changed: Any) -> TrainingConfig:
    return get_recipe("tiny-llama").training.model_copy(update=changed)


def spread(ranks: Ranks, **changed: Any) -> ParallelModel:
    """The same model with the same weights, spread as the keys say."""
    with torch.device("meta"):
        model = Model()

    def initialise() -> None:
        model.to_empty(device="cpu")
        model.head.weight = model.embedding.weight
        generator = torch.Generator().manual_seed(1)
        for parameter in model.parameters():
            local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
            with torch.no_grad():
                local.normal_(0.0, 0.3, generator=generator)

    return parallelise(
        model,
        list(model.blocks),
        training=keys(**changed),
        ranks=ranks,
        initialise=initialise,
        compile_backend="aot_eager",
    )


def gradients(parallel: ParallelModel) -> list[torch.Tensor]:
    """Of one micro-batch, in the order of parameters."""
    tokens = torch.arange(12).reshape(3, 4)
    with parallel.micro_batch(last=True):
        logits = parallel.module(tokens)
        nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten()).backward()
    found = [parameter.grad for parameter in parallel.module.parameters()]
    return [g.to_local() if isinstance(g, DTensor) else g for g in found if g is not None]


@pytest.mark.parametrize("parallelism", ["full", "ddp"])
def test_lone_rank_in_fp32_pays_for_no_wrapper(ranks: Ranks, parallelism: str) -> None:
    parallel = spread(ranks, parallelism=parallelism)

    with OperationCounts() as operations:
        gradients(parallel)
        parallel.clip_gradients(1.0)

    assert type(parallel.module) is Model
    assert not any(isinstance(p, DTensor) for p in parallel.module.parameters())
    assert parallel.loss_scale == 1.0
    assert not operations.collectives


@pytest.mark.parametrize("parallelism", ["full", "ddp"])
def test_bf16_computes_in_bfloat16_and_keeps_fp32_weights(ranks: Ranks, parallelism: str) -> None:
    seen: list[torch.dtype] = []
    parallel = spread(ranks, parallelism=parallelism, precision="bf16")
    hook = lambda _module, _args, output: seen.append(output.dtype)  # noqa: E731
    parallel.module.blocks[0].up.register_forward_hook(hook)  # type: ignore[union-attr]

    own = gradients(parallel)

    assert seen == [torch.bfloat16]
    assert {p.dtype for p in parallel.module.parameters()} == {torch.float32}
    assert {gradient.dtype for gradient in own} == {torch.float32}
    assert_close(own, gradients(spread(ranks)), atol=0.01)


def test_full_checkpointing_computes_products_again_and_selective_does_not(ranks: Ranks) -> None:
    counts = {}
    expected = gradients(spread(ranks))
    for mode in ("off", "full", "selective"):
        with OperationCounts() as operations:
            actual = gradients(spread(ranks, activation_checkpointing=mode))
        counts[mode] = operations.counts
        assert_close(actual, expected, atol=0.0)

    products = {mode: count["aten::addmm"] for mode, count in counts.items()}
    assert products["off"] == products["selective"] < products["full"]
    assert counts["selective"]["aten::tanh"] == 2 * counts["off"]["aten::tanh"]


Counts = dict[str, Counter[str]]


@pytest.fixture
def statistics() -> Counts:
    """What the compiler counts from now on."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    return torch._dynamo.utils.counters


@pytest.mark.parametrize("mode", ["full", "selective"])
def test_compile_makes_one_graph_for_all_blocks(
    ranks: Ranks, statistics: Counts, mode: str
) -> None:

    compiled = spread(ranks, compile=True, activation_checkpointing=mode)
    actual = gradients(compiled)

    assert_close(actual, gradients(spread(ranks)), atol=1e-6)
    assert statistics["stats"]["unique_graphs"] == 1
    assert not statistics["graph_break"]
    assert list(compiled.module.state_dict()) == list(Model().state_dict())


def test_hybrid_uneven_nodes_are_refused(ranks: Ranks) -> None:
    with pytest.raises(BadParameter, match="same number of processes on every node"):
        spread(replace(ranks, local_world_size=2), parallelism="hybrid")


def test_compile_many_different_blocks_leaves_none_out(statistics: Counts) -> None:
    model = nn.Sequential(*(nn.Linear(2 + i, 3 + i) for i in range(12)))

    prepare_blocks(list(model), keys(compile=True), compile_backend="eager")
    model(torch.zeros(1, 2))

    assert statistics["stats"]["unique_graphs"] == 12


def test_cpu_offload_without_a_gpu_says_that_it_changes_nothing(
    ranks: Ranks, caplog: pytest.LogCaptureFixture
) -> None:
    spread(ranks, cpu_offload=True)

    assert "cpu_offload=true changes nothing here" in caplog.text


def test_clip_gradients_scales_to_the_limit_and_returns_the_norm_before(ranks: Ranks) -> None:
    parallel = spread(ranks)
    before = gradients(parallel)
    norm = math.sqrt(sum(float(gradient.square().sum()) for gradient in before))
    assert norm > 0.5

    assert parallel.clip_gradients(0.0) == pytest.approx(norm, rel=1e-6)
    assert parallel.clip_gradients(0.5) == pytest.approx(norm, rel=1e-6)
    assert parallel.clip_gradients(2.0) == pytest.approx(0.5, rel=1e-6)
    assert parallel.clip_gradients(0.0) == pytest.approx(0.5, rel=1e-6)
    next(parallel.module.parameters()).grad[0, 0] = math.inf  # type: ignore[index]
    assert not math.isfinite(parallel.clip_gradients(1.0))


def test_optimizer_decays_matrices_only_and_takes_tied_weights_once_and_frozen_ones_never() -> None:
    model = Model()
    model.blocks[0].requires_grad_(False)

    decayed, kept = build_optimizer(model, keys(weight_decay=0.3)).param_groups

    assert {p.ndim for p in decayed["params"]} == {2}
    assert {p.ndim for p in kept["params"]} == {1}
    assert (decayed["weight_decay"], kept["weight_decay"]) == (0.3, 0.0)
    assert sum(p is model.head.weight for p in decayed["params"]) == 1
    taken = {id(p) for p in (*decayed["params"], *kept["params"])}
    assert taken == {id(p) for p in model.parameters() if p.requires_grad}


@pytest.mark.parametrize(
    ("name", "numbers"),
    [("adamw", {"betas": (0.8, 0.9)}), ("sgd", {"momentum": 0.5, "nesterov": False})],
)
def test_optimizer_has_the_recipes_numbers(name: str, numbers: dict[str, Any]) -> None:
    training = keys(optimizer=name, learning_rate=0.1, momentum=0.5, beta1=0.8, beta2=0.9)

    defaults = build_optimizer(Model(), training).defaults

    assert defaults.items() >= (numbers | {"lr": 0.1}).items()


def test_optimizer_nothing_to_train_is_refused() -> None:
    model = Model().requires_grad_(False)

    with pytest.raises(BadParameter, match="no parameter to train"):
        build_optimizer(model, keys())


def assert_close(actual: list[torch.Tensor], expected: list[torch.Tensor], *, atol: float) -> None:
    torch.testing.assert_close(actual, expected, rtol=0.0, atol=atol)


@pytest.fixture
def torchao(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package, also where an earlier test has hidden it."""
    if sys.modules.get("torchao", ...) is None:
        monkeypatch.delitem(sys.modules, "torchao")
    if importlib.util.find_spec("torchao") is None:
        pytest.skip("needs PYTHONPATH=DIR: uv pip install --target DIR -c constraints.txt torchao")


@pytest.mark.filterwarnings("ignore")
def test_training_in_float8_learns_as_in_bfloat16(torchao: None) -> None:
    compiled = {"compile": "true", "activation_checkpointing": "selective", "steps": "2"}
    plain = train_here(Run(keys=BF16)).losses
    losses = train_here(Run(keys=KEYS, emulates_float8=True)).losses
    again = train_here(Run(keys=KEYS | compiled, emulates_float8=True)).losses

    assert again == pytest.approx(losses[:2], rel=1e-3)
    assert losses != plain
    assert losses == pytest.approx(plain, rel=0.05)
    assert losses[-1] < losses[0] - 0.2


@pytest.mark.filterwarnings("ignore")
def test_layers_whose_sizes_are_multiples_of_16_are_replaced_and_keep_their_weights(
    torchao: None,
) -> None:
    block = nn.ModuleList(nn.Linear(*sizes) for sizes in ((32, 48), (32, 8), (24, 32)))
    before = block.state_dict()

    multiply_in_float8([block], device=torch.device("cpu"), emulated=True)

    assert [type(part).__name__ for part in block] == ["Float8Linear", "Linear", "Linear"]
    for name, weight in block.state_dict().items():
        assert (type(weight), weight.dtype) == (torch.Tensor, torch.float32)
        assert torch.equal(weight, before[name])


def test_float8_without_a_gpu_or_torchao_is_refused_before_anything_is_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "torchao", None)

    with pytest.raises(BadParameter, match="this machine has no GPU; use precision=bf16"):
        multiply_in_float8([], device=torch.device("cpu"))
    with pytest.raises(BadParameter, match="needs the package torchao, which is not installed"):
        prepare_torchao(Run(keys=KEYS).config({}).recipe.training)


def test_torchao_is_not_found_where_float8_is_not_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "torchao", raising=False)

    prepare_torchao(Run(keys=BF16).config({}).recipe.training)

    assert importlib.util.find_spec("torchao") is None
    monkeypatch.delitem(sys.modules, "torchao")


def test_use_of_the_peak_is_not_reported_where_there_are_two(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _device: "NVIDIA H100 80GB HBM3")
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda _device: 0)
    shares = []
    for keys in (KEYS, BF16):
        throughput = Throughput(Run(keys=keys).config({}).recipe, world_size=1)
        throughput.add_step(targets=1.0, samples=1)
        shares.append(throughput.take(torch.device("cuda", 0))["mfu"])

    assert (shares[0], shares[1] is None) == (None, False)

"""Products in float8, emulated on CPUs: what is replaced, and what stays as it is.

torchao is no package of the development environment, because transformers imports it wherever it is
installed; where it is missing, the tests that need it are skipped. GPUs are not run here.
"""

from __future__ import annotations

import importlib.util
import sys

import pytest
import torch
from checkpoint_ranks import lone_rank
from parallel_runs import Run
from torch import nn

from stationmaster.domain.errors import BadParameter
from training.float8 import multiply_in_float8, prepare_torchao
from training.models.architectures import build_model
from training.models.initialisation import initialise
from training.sharding import parallelise
from training.throughput import Throughput

KEYS = {"precision": "float8", "sequence_length": "16"}
BF16 = {**KEYS, "precision": "bf16"}


@pytest.fixture
def torchao(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package, also where an earlier test has hidden it."""
    if sys.modules.get("torchao", ...) is None:
        monkeypatch.delitem(sys.modules, "torchao")
    if importlib.util.find_spec("torchao") is None:
        pytest.skip("needs PYTHONPATH=DIR: uv pip install --target DIR -c constraints.txt torchao")


def trained(keys: dict[str, str], steps: int = 6) -> tuple[nn.Module, list[float]]:
    """A small model after a few steps on one batch, as a lone rank of FSDP trains it."""
    config = Run(keys=keys).config({})
    recipe = config.recipe
    model = build_model(recipe.model)  # type: ignore[arg-type]
    blocks = list(model.model.layers)

    with lone_rank() as ranks:
        parallel = parallelise(
            model,
            blocks,
            training=recipe.training,
            ranks=ranks,
            initialise=lambda: initialise(model, seed=1, device=torch.device("cpu")),
            compile_backend="aot_eager",
            emulates_float8=True,
        )
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
        tokens = torch.arange(64).reshape(4, 16)
        losses = []
        for _step in range(steps):
            with parallel.micro_batch(last=True):
                logits = parallel.module(tokens, position_ids=torch.arange(16)[None]).logits.float()
                loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(float(loss))
    return model, losses


@pytest.mark.filterwarnings("ignore")
def test_training_in_float8_learns_as_in_bfloat16_and_keeps_its_weights(torchao: None) -> None:
    plain, expected = trained(BF16)
    model, losses = trained(KEYS)
    compiled = {"compile": "true", "activation_checkpointing": "selective"}
    _, again = trained(KEYS | compiled, steps=2)

    kinds = {name: type(part).__name__ for name, part in model.named_modules()}
    assert kinds["model.layers.0.self_attn.q_proj"] == "Float8Linear"
    assert kinds["lm_head"] == "Linear"
    assert again == pytest.approx(losses[:2], rel=1e-3)
    assert losses != expected
    assert losses == pytest.approx(expected, rel=0.05)
    assert losses[-1] < losses[0] - 0.2
    ours, theirs = model.state_dict(), plain.state_dict()
    assert {name: (weight.shape, weight.dtype, type(weight)) for name, weight in ours.items()} == {
        name: (weight.shape, weight.dtype, type(weight)) for name, weight in theirs.items()
    }


@pytest.mark.filterwarnings("ignore")
def test_layers_whose_sizes_are_no_multiples_of_16_stay(torchao: None) -> None:
    block = nn.ModuleList(nn.Linear(*sizes) for sizes in ((32, 48), (32, 8), (24, 32)))

    multiply_in_float8([block], device=torch.device("cpu"), emulated=True)

    assert [type(part).__name__ for part in block] == ["Float8Linear", "Linear", "Linear"]


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

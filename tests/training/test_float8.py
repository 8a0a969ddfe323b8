"""Products in float8, emulated on CPUs: what is replaced, and what stays as it is.

torchao is no package of the development environment, because transformers imports it wherever it is
installed; where it is missing, the tests that need it are skipped. GPUs are not run here.
"""

from __future__ import annotations

import importlib.util
import sys

import pytest
import torch
from parallel_runs import Run, train_here
from torch import nn

from stationmaster.domain.errors import BadParameter
from training.float8 import multiply_in_float8, prepare_torchao
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

"""The chunked cross-entropy: value and gradient against torch's own, memory, and its traps."""

from __future__ import annotations

import shutil

import pytest
import torch
from torch.nn import functional

from training.models.cross_entropy import sum_cross_entropy
from training.task import IGNORED_LABEL

# 300 x 4096 values are read in five parts, the last one shorter.
_ROWS, _VOCABULARY = 299, 4096


def sample() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    logits = 4.0 * torch.randn(_ROWS, _VOCABULARY, generator=generator)
    targets = torch.randint(0, _VOCABULARY, (_ROWS,), generator=generator)
    targets[::7] = IGNORED_LABEL
    logits[3, targets[3]] = 60.0  # so sure that the gradient nearly cancels
    return logits, targets


def reference(logits: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    logits = logits.double().requires_grad_()
    loss = functional.cross_entropy(logits, targets, ignore_index=IGNORED_LABEL, reduction="sum")
    (loss / 7.0).backward()
    assert logits.grad is not None
    return loss.detach(), logits.grad


def ours(
    logits: torch.Tensor,
    targets: torch.Tensor,
    *,
    overwrite: bool = True,
    compile_backend: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    leaf = logits.clone().requires_grad_()
    loss = sum_cross_entropy(
        leaf * 1.0, targets, overwrite=overwrite, compile_backend=compile_backend
    )
    (loss / 7.0).backward()
    assert leaf.grad is not None
    return loss.detach(), leaf.grad


@pytest.mark.parametrize("overwrite", [True, False])
def test_sum_cross_entropy_equals_torchs(overwrite: bool) -> None:
    logits, targets = sample()

    loss, gradient = ours(logits, targets, overwrite=overwrite)

    expected_loss, expected_gradient = reference(logits, targets)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss.double(), expected_loss, rtol=1e-6, atol=0)
    torch.testing.assert_close(gradient.double(), expected_gradient, rtol=1e-4, atol=1e-7)
    assert torch.equal(gradient[::7], torch.zeros_like(gradient[::7]))


def test_sum_cross_entropy_bfloat16_rounds_only_its_result() -> None:
    logits, targets = sample()
    logits = logits.bfloat16()

    loss, gradient = ours(logits, targets)

    expected_loss, expected_gradient = reference(logits.float(), targets)
    assert gradient.dtype == torch.bfloat16
    torch.testing.assert_close(loss.double(), expected_loss, rtol=1e-6, atol=0)
    torch.testing.assert_close(gradient.double(), expected_gradient, rtol=2**-8, atol=1e-7)


# The compiler's own imports use what torch has deprecated.
@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method.*:DeprecationWarning")
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_sum_cross_entropy_compiled_equals_the_plain_one(backend: str) -> None:
    if backend == "inductor" and shutil.which("g++") is None:
        pytest.skip("inductor on a CPU needs g++")
    logits, targets = sample()
    logits = logits.bfloat16()

    loss, gradient = ours(logits, targets, compile_backend=backend)

    plain_loss, plain_gradient = ours(logits, targets)
    torch.testing.assert_close(loss, plain_loss, rtol=1e-6, atol=0)
    torch.testing.assert_close(gradient, plain_gradient, rtol=2**-7, atol=1e-6)


def test_sum_cross_entropy_without_any_target_is_zero() -> None:
    logits, targets = sample()

    loss, gradient = ours(logits, torch.full_like(targets, IGNORED_LABEL))

    assert loss.item() == 0.0
    assert torch.equal(gradient, torch.zeros_like(gradient))


@pytest.mark.parametrize("overwrite", [True, False])
def test_sum_cross_entropy_takes_the_memory_of_the_logits_only_where_it_may(
    overwrite: bool,
) -> None:
    logits, targets = sample()
    logits.requires_grad_()
    product = logits * 1.0

    sum_cross_entropy(product, targets, overwrite=overwrite).backward()

    assert torch.equal(product.detach(), logits.grad if overwrite else logits.detach())


def test_sum_cross_entropy_overwriting_what_autograd_needs_is_refused() -> None:
    logits, targets = sample()
    logits.requires_grad_()

    loss = sum_cross_entropy(torch.tanh(logits), targets, overwrite=True)

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_sum_cross_entropy_evaluation_leaves_the_logits() -> None:
    logits, targets = sample()
    before = logits.clone()

    with torch.no_grad():
        loss = sum_cross_entropy(logits, targets, overwrite=True)

    assert not loss.requires_grad
    assert torch.equal(logits, before)

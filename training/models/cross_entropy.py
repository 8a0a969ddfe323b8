"""Cross-entropy over a large vocabulary in little memory, and in few passes over the logits.

Called by the language task. With 128,256 entries the logits are the largest tensor of a step:
2.1 GB in bfloat16 for 8,192 tokens, and float32 copies of logits, log-probabilities and gradient
would add three times 4.2 GB. Here they are read a few rows at a time, and backward writes the
gradient over them. With tensor parallelism each rank has some columns of them; what the ranks tell
each other is three numbers a token.

Shape legend: N tokens, V vocabulary (or this rank's part of it), R rows at a time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from training.task import IGNORED_LABEL

# Values in work at a time. On a CPU their float32 copies stay in the cache of a core (1 MiB):
# measured 1.7 times as fast as all rows at once at a vocabulary of 4,096. On a GPU large kernels
# count: copies of 512 MiB; and when compiled, without any copy, what 32-bit indices can count.
_CPU_VALUES: Final = 1 << 18
_GPU_VALUES: Final = 1 << 27
_GPU_COMPILED_VALUES: Final = 1 << 30

# The index of a target whose column another rank has.
_NOT_HERE: Final = -1


def sum_cross_entropy(
    logits_NV: Tensor, targets_N: Tensor, *, overwrite: bool, compile_backend: str | None = None
) -> Tensor:
    """Sum -log p of the targets in nats; a float32 scalar.

    Args:
        logits_NV: of any floating dtype; computed with in float32. A DTensor is split over the
            ranks of its mesh by columns, in equal parts; all of them call this with the same
            targets, and get the same sum.
        targets_N: indices; IGNORED_LABEL adds nothing.
        overwrite: let backward write the gradient over the logits. The logits must be used by
            nothing else, and the operation that made them must not need its result for its own
            backward: a matrix product does not. Autograd raises if it does.
        compile_backend: fuse the passes over a few rows with torch.compile, by this backend; not
            those of a DTensor.
    """
    total: Tensor
    if isinstance(logits_NV, DTensor):
        group = logits_NV.device_mesh.get_group()
        columns_NV = logits_NV.to_local()
        total = _SumSplitCrossEntropy.apply(columns_NV, targets_N, group, overwrite)
    else:
        total = _SumCrossEntropy.apply(logits_NV, targets_N, overwrite, compile_backend)
    return total


class _SumCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits_NV: Tensor, targets_N: Tensor, overwrite: bool, backend: str | None
    ) -> Tensor:
        valid_N = targets_N != IGNORED_LABEL
        indices_N = targets_N.clamp_min(0)
        log_totals_N = torch.empty(len(targets_N), dtype=torch.float32, device=logits_NV.device)
        losses_N = torch.empty_like(log_totals_N)
        rows_loss = _compiled(_rows_loss_fused, backend) if backend else _rows_loss
        values_NV = logits_NV.detach()  # the compiler would guard what autograd knows of a view
        for rows in _row_ranges(values_NV, compiled=backend is not None):
            losses_N[rows], log_totals_N[rows] = rows_loss(values_NV[rows], indices_N[rows])
        ctx.save_for_backward(logits_NV, indices_N, valid_N, log_totals_N)
        ctx.overwrite, ctx.backend = overwrite, backend
        return torch.where(valid_N, losses_N, 0.0).sum()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return _gradient_of(ctx, gradient), None, None, None


class _SumSplitCrossEntropy(torch.autograd.Function):
    """The same sum where each rank of a group has an equal part of the columns; never compiled."""

    @staticmethod
    def forward(
        ctx: Any, logits_NV: Tensor, targets_N: Tensor, group: dist.ProcessGroup, overwrite: bool
    ) -> Tensor:
        valid_N = targets_N != IGNORED_LABEL
        own_N = targets_N - dist.get_rank(group) * logits_NV.shape[1]
        is_own_N = (own_N >= 0) & (own_N < logits_NV.shape[1])
        indices_N = torch.where(is_own_N, own_N, _NOT_HERE)
        log_totals_N = torch.empty(len(targets_N), dtype=torch.float32, device=logits_NV.device)
        picked_N = torch.empty_like(log_totals_N)
        for rows in _row_ranges(logits_NV, compiled=False):
            picked_N[rows], log_totals_N[rows] = _rows_sums(logits_NV[rows], indices_N[rows])
        highest_N = log_totals_N.clone()
        dist.all_reduce(highest_N, op=dist.ReduceOp.MAX, group=group)
        sums_2N = torch.stack([torch.exp(log_totals_N - highest_N), picked_N])
        dist.all_reduce(sums_2N, group=group)
        log_totals_N = highest_N + torch.log(sums_2N[0])
        ctx.save_for_backward(logits_NV, indices_N, valid_N, log_totals_N)
        ctx.overwrite, ctx.backend = overwrite, None
        return torch.where(valid_N, log_totals_N - sums_2N[1], 0.0).sum()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return _gradient_of(ctx, gradient), None, None, None


def _gradient_of(ctx: Any, gradient: Tensor) -> Tensor:
    """Return the gradient with respect to the logits that forward has saved."""
    saved_NV, indices_N, valid_N, log_totals_N = ctx.saved_tensors
    logits_NV = saved_NV.detach()  # shares autograd's version counter: misuse is noticed
    gradient_NV: Tensor = logits_NV if ctx.overwrite else logits_NV.clone()
    scales_N = valid_N * gradient
    backend = ctx.backend
    write_gradient = _compiled(_write_gradient_fused, backend) if backend else _write_gradient
    for rows in _row_ranges(logits_NV, compiled=backend is not None):
        write_gradient(gradient_NV[rows], indices_N[rows], log_totals_N[rows], scales_N[rows])
    return gradient_NV


def _rows_loss(logits_RV: Tensor, indices_R: Tensor) -> tuple[Tensor, Tensor]:
    """Compute -log p of the targets, and the logarithm of each row's sum of exponentials."""
    targets_R1 = indices_R.unsqueeze(1)
    log_p_R = torch.log_softmax(logits_RV, -1, dtype=torch.float32).gather(1, targets_R1).squeeze(1)
    return -log_p_R, logits_RV.gather(1, targets_R1).squeeze(1).float() - log_p_R


def _rows_loss_fused(logits_RV: Tensor, indices_R: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the same without log-probabilities: a compiler makes one pass of it, and no copy."""
    log_totals_R = torch.logsumexp(logits_RV.float(), -1)
    picked_R = logits_RV.gather(1, indices_R.unsqueeze(1)).squeeze(1).float()
    return log_totals_R - picked_R, log_totals_R


def _rows_sums(logits_RV: Tensor, indices_R: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the target's logit, 0 where it is not here, and the logarithm of the sum."""
    log_totals_R = torch.logsumexp(logits_RV.float(), -1)
    picked_R = logits_RV.gather(1, indices_R.clamp_min(0).unsqueeze(1)).squeeze(1).float()
    return torch.where(indices_R == _NOT_HERE, 0.0, picked_R), log_totals_R


def _write_gradient(
    logits_RV: Tensor, indices_R: Tensor, log_totals_R: Tensor, scales_R: Tensor
) -> None:
    """Replace logits by (p, less 1 at the target) times the row's scale; computed in float32."""
    targets_R1, scales_R1 = indices_R.clamp_min(0).unsqueeze(1), scales_R.unsqueeze(1)
    log_totals_R1 = log_totals_R.unsqueeze(1)
    is_here_R1 = (indices_R != _NOT_HERE).unsqueeze(1)
    at_target_R1 = (
        torch.exp(logits_RV.gather(1, targets_R1).float() - log_totals_R1) - is_here_R1.float()
    )
    logits_RV.copy_((logits_RV.float() - log_totals_R1).exp_().mul_(scales_R1))
    logits_RV.scatter_(1, targets_R1, (at_target_R1 * scales_R1).to(logits_RV.dtype))


def _write_gradient_fused(
    logits_RV: Tensor, indices_R: Tensor, log_totals_R: Tensor, scales_R: Tensor
) -> None:
    """Compute the same as one expression of each value: compiled to one pass, in place."""
    columns_V = torch.arange(logits_RV.shape[1], device=logits_RV.device)
    p_RV = torch.exp(logits_RV.float() - log_totals_R.unsqueeze(1))
    less_RV = torch.where(columns_V == indices_R.unsqueeze(1), 1.0, 0.0)
    logits_RV.copy_((p_RV - less_RV) * scales_R.unsqueeze(1))


def _row_ranges(logits_NV: Tensor, *, compiled: bool) -> list[slice]:
    """Split rows into equal parts, so that one compiled shape serves all but the last."""
    num_rows, num_values = logits_NV.shape[0], logits_NV.numel()
    at_a_time = _CPU_VALUES
    if logits_NV.is_cuda:
        at_a_time = _GPU_COMPILED_VALUES if compiled else _GPU_VALUES
    step = -(-num_rows // max(1, -(-num_values // at_a_time)))
    return [slice(first, first + step) for first in range(0, num_rows, step)]


@functools.cache
def _compiled(function: Callable[..., Any], backend: str) -> Callable[..., Any]:
    return torch.compile(function, backend=backend)

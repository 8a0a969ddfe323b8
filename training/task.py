"""All that the training loop knows of models and data.

A `Task` has a model, the batches it learns from, and its loss. Language models and image
classifiers are two tasks; nothing in the loop, in sharding or in checkpoints distinguishes them.

Shape legend: B samples of a micro-batch, T tokens of a sequence, H and W pixels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch
from torch import nn

IGNORED_LABEL: Final = -100
"""The label of a position without a target, which loss and counts ignore."""

DataState = dict[str, Any]
"""What a source needs besides the sample counter to continue; tensors or what torch.save takes."""


@dataclass(slots=True)
class Position:
    """How far the run is; with the seed it decides all that follows."""

    step: int = 0
    samples_seen: int = 0
    targets_seen: int = 0


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one step reports, the same on every rank."""

    loss_nats: float
    grad_norm: float
    learning_rate: float
    targets: float
    stop_agreed: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """Token ids (B, T) or pixels (B, 3, H, W); targets (B, T) or (B,), IGNORED_LABEL for none."""

    inputs: torch.Tensor
    targets: torch.Tensor
    positions: torch.Tensor | None = None
    """(B, T): a token's place in its document, which attention must not leave; None: one document a
    sequence."""

    def to(self, device: torch.device) -> Batch:
        """Copy the batch to a device; the copy to a GPU runs while the CPU continues."""
        if device.type != "cuda":
            return self
        inputs, targets, positions = (
            None if part is None else part.pin_memory().to(device, non_blocking=True)
            for part in (self.inputs, self.targets, self.positions)
        )
        assert inputs is not None
        assert targets is not None
        return Batch(inputs=inputs, targets=targets, positions=positions)

    def count_targets(self) -> int:
        """Count positions that have a target."""
        return int((self.targets != IGNORED_LABEL).sum())


class BatchSource(Protocol):
    """A rank's part of a data set.

    Every rank gets the same number of equally shaped micro-batches, because collectives must pair
    up; where a batch does not divide, rows without any target fill the gap.
    """

    identity: str
    """A name of the contents, the same on every rank; part of the checkpoints' fingerprint."""
    micro_batch_size: int
    num_micro_batches: int
    """The number in one step, the same on every rank."""

    @property
    def samples_per_epoch(self) -> int | None:
        """What all ranks see before a sample comes again; None of a stream."""
        ...

    def micro_batches(self, samples_seen: int) -> Iterator[Batch]:
        """Yield the micro-batches of the step after `samples_seen` samples, on the CPU."""
        ...

    def evaluation_batches(self) -> Iterator[Batch]:
        """Yield this rank's part of the held-out samples, as many batches on every rank."""
        ...

    def facts(self) -> Mapping[str, str | int]:
        """Return what the `started` line says about the data, e.g. `dataset_tokens`."""
        ...

    def state(self) -> DataState:
        """Return what this rank must keep to continue exactly here; {} where the counter decides.

        Keys must be the same for any number of ranks, or be absent on ranks that do not own them.
        """
        ...

    def restore(self, state: DataState) -> None:
        """Continue from a state, which other ranks, more or fewer, may have written."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Forward:
    """The result of one forward pass."""

    loss_sum: torch.Tensor
    """The loss to go backward from: a sum over targets, auxiliary losses included."""
    reported_sum: torch.Tensor
    """The plain cross-entropy in nats, summed over targets, detached."""
    correct: Mapping[str, torch.Tensor]
    """Counts of targets met, detached: {"top1": n, "top5": n} for images, {} for text."""


class Task(Protocol):
    """A model and what it learns from."""

    model: nn.Module
    """The model, on the meta device until `initialise`."""
    blocks: Sequence[nn.Module]
    """The repeated units: each is sharded, compiled and checkpointed on its own."""
    source: BatchSource

    def initialise(self, *, device: torch.device) -> None:
        """Give every parameter and buffer its memory and first value, sharded or not."""
        ...

    def forward(self, model: nn.Module, batch: Batch) -> Forward:
        """Pass a batch through `model`, the task's own model as sharding has wrapped it."""
        ...

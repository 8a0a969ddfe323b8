"""A training loop with nothing but PyTorch in it: what the trainer is compared with.

The same transformers model, the same batches (read before, kept in memory), the same optimizer and
clipping; no data loading, no sharding, no collectives, no checks, no reports.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

from stationmaster.domain.catalogue.models import LanguageModel
from stationmaster.domain.catalogue.recipes import Recipe
from training.models.architectures import build_model
from training.models.cross_entropy import sum_cross_entropy
from training.models.initialisation import initialise
from training.task import Batch

CPU = torch.device("cpu")
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def pytorch_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy as everybody writes it."""
    return functional.cross_entropy(logits, targets)


def trainers_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Compute it by the trainer's own function, which reads the logits a few rows at a time."""
    return sum_cross_entropy(logits, targets, overwrite=True) / len(targets)


class BareLoop:
    """One model that continues to learn from call to call."""

    def __init__(self, recipe: Recipe, loss: Loss) -> None:
        assert isinstance(recipe.model, LanguageModel)
        self._model = build_model(recipe.model)
        initialise(self._model, seed=recipe.training.seed, device=CPU)
        self._loss = loss
        self._clip = recipe.training.grad_clip
        self._optimizer = torch.optim.AdamW(
            self._model.parameters(),
            lr=recipe.training.learning_rate,
            betas=(recipe.training.beta1, recipe.training.beta2),
            weight_decay=recipe.training.weight_decay,
            fused=True,
        )

    def step(self, batch: Batch) -> None:
        """Forward, backward, clip, update."""
        logits = self._model(input_ids=batch.inputs).logits
        loss = self._loss(logits.flatten(0, 1), batch.targets.flatten())
        loss.backward()  # type: ignore[no-untyped-call]  # torch does not annotate it
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._clip)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

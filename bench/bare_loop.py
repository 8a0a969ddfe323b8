"""A training loop with nothing but PyTorch in it: what the trainer is compared with.

The same transformers model, the same batches (read before, kept in memory), the same optimizer and
clipping; no data loading, no sharding, no collectives, no checks, no reports.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch.nn import functional
from transformers.models.llama.modeling_llama import LlamaForCausalLM

from stationmaster.domain.recipes import Recipe
from training.data.packed import MicroBatch
from training.models.language import build_model, initialise

CPU = torch.device("cpu")


class BareLoop:
    """One model that goes on learning from call to call."""

    def __init__(self, recipe: Recipe) -> None:
        self._model: LlamaForCausalLM = build_model(recipe.model, device=CPU)
        initialise(self._model, seed=recipe.training.seed, device=CPU)
        self._clip = recipe.training.grad_clip
        self._optimizer = torch.optim.AdamW(
            self._model.parameters(),
            lr=recipe.training.learning_rate,
            betas=(recipe.training.beta1, recipe.training.beta2),
            weight_decay=recipe.training.weight_decay,
            fused=True,
        )

    def step_times_s(self, batches: Sequence[MicroBatch]) -> list[float]:
        """Train one step on each batch; wall clock seconds of each."""
        times = []
        for batch in batches:
            began = time.perf_counter()
            self._step(batch.inputs, batch.labels)
            times.append(time.perf_counter() - began)
        return times

    def _step(self, inputs: torch.Tensor, labels: torch.Tensor) -> None:
        logits = self._model(input_ids=inputs).logits
        loss = functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        loss.backward()  # type: ignore[no-untyped-call]  # torch does not annotate it
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._clip)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

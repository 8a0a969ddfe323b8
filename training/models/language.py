"""Language models: transformers' Llama, Mistral and Mixtral, and any causal model of the hub.

Nothing in here knows of ranks except through the DTensors it fills: `architectures` gives shapes
without memory, `training.sharding` lays them out over the ranks, and `LanguageTask.initialise`
fills them in place. Import costs seconds, transformers' most of them.

Shape legend: B sequences, T tokens, t tokens that this rank computes, V vocabulary, N tokens of all
sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers.modeling_utils import PreTrainedModel

from stationmaster.domain.catalogue.models import LanguageModel
from stationmaster.domain.catalogue.recipes import Recipe
from stationmaster.domain.catalogue.training_config import LanguageTraining
from stationmaster.domain.errors import BadParameter, PermanentError
from training.agreement import gathered
from training.models.architectures import build_model
from training.models.cross_entropy import sum_cross_entropy
from training.models.initialisation import initialise, unfilled
from training.parallel import Ranks, sum_over_group
from training.task import IGNORED_LABEL, Batch, BatchSource, Forward


class LanguageTask:
    """A language model that learns to predict the next token; implements `training.task.Task`."""

    def __init__(
        self, recipe: Recipe, source: BatchSource, *, ranks: Ranks, cache_dir: Path
    ) -> None:
        assert isinstance(recipe.model, LanguageModel)
        self.source = source
        self.model = (
            _build_hub_model(recipe, cache_dir=cache_dir)
            if recipe.model.family == "hub"
            else build_model(recipe.model)
        )
        self.blocks = find_blocks(self.model, name=recipe.name)
        assert isinstance(recipe.training, LanguageTraining)
        self.training = recipe.training
        self._recipe = recipe
        self._shape = recipe.model
        self._ranks = ranks
        self._cache_dir = cache_dir
        # The head of a model that we do not know may need its result for its own backward.
        self._overwrite_logits = recipe.model.family != "hub"
        compiles_loss = recipe.own_training.compile and ranks.device.type == "cuda"
        self._loss_backend = "inductor" if compiles_loss else None

    def initialise(self, *, device: torch.device) -> None:
        """Give every parameter and buffer its memory and first value: drawn, or a checkpoint's.

        Raises:
            UserError: `weights` cannot be had, are not of this model's shape, or leave something
                without a value; the same error on every rank.
        """
        training = self.training
        initialise(self.model, seed=training.seed, device=device)
        if training.weights != "random":
            from training.models.hub import load_weights

            load_weights(self.model, self._recipe, cache_dir=self._cache_dir, ranks=self._ranks)
        empty = gathered(unfilled(self.model), self._ranks)
        if first := next(filter(None, empty), None):
            raise BadParameter(
                f"{self._recipe.name}: {len(first)} tensors of {type(self.model).__name__} have no "
                f"first value, e.g. {first[0]}: transformers has no rule for them, and "
                f"weights={training.weights} lacks them; use published weights that are complete"
            )

    def forward(self, model: nn.Module, batch: Batch) -> Forward:
        """Sum the cross-entropy in nats over targets; with experts, add what balances them.

        A sequence's balancing loss (see `mixtral.balancing_loss`) counts as often as it has
        targets, so that after the division by all targets it is the mean over the global batch, for
        any split of that batch into ranks and micro-batches.
        """
        tokens = self._own_tokens(batch)
        output = model(
            input_ids=batch.inputs[:, tokens], use_cache=False, **self._places(batch, tokens)
        )
        loss = sum_cross_entropy(
            output.logits.flatten(0, 1),
            batch.targets[:, tokens].flatten(),
            overwrite=self._overwrite_logits,
            compile_backend=self._loss_backend,
        )
        reported = loss.detach()
        if self._ranks.context_group is not None:
            reported = sum_over_group(reported, self._ranks.context_group)
        if self._shape.router_aux_loss and self._shape.family == "mixtral":
            from training.models.mixtral import balancing_loss

            uneven_B = balancing_loss(
                output.router_logits,
                num_sequences=len(batch.inputs),
                experts_per_token=self._shape.experts_per_token,
                context_group=self._ranks.context_group,
            )
            targets_B = (batch.targets != IGNORED_LABEL).sum(dim=1)
            loss = loss + self._shape.router_aux_loss * (uneven_B * targets_B).sum()
        return Forward(loss_sum=loss, reported_sum=reported, correct={})

    def _own_tokens(self, batch: Batch) -> slice | Tensor:
        """Return which tokens of each sequence this rank computes."""
        if self._ranks.context_group is None:
            return slice(None)
        from training.models.context_parallel import own_tokens

        length = batch.inputs.shape[1]
        return own_tokens(length, self._ranks).to(batch.inputs.device, non_blocking=True)

    def _places(self, batch: Batch, tokens: slice | Tensor) -> dict[str, Tensor]:
        """Return the tokens' places in their documents, and the mask between these, if any."""
        if batch.positions is None and self._ranks.sample_peers > 1:
            # A rank sees a part of the sequence, and would count only that.
            places_T = torch.arange(batch.inputs.shape[1], device=batch.inputs.device)
            return {"position_ids": places_T[tokens].unsqueeze(0)}
        if batch.positions is None:
            return {}
        places = {"position_ids": batch.positions[:, tokens]}
        if self._shape.family == "hub":
            return places  # transformers' own attention takes the documents from the places
        return places | {"attention_mask": _mask_of(batch.positions, tokens)}


def _mask_of(positions_BT: Tensor, tokens: slice | Tensor = slice(None)) -> Tensor:
    """Mask: True where one of `tokens` may look, back to the beginning of its document."""
    documents_BT = (positions_BT == 0).cumsum(dim=1)
    places_T = torch.arange(positions_BT.shape[1], device=positions_BT.device)
    same_BtT = documents_BT[:, tokens].unsqueeze(2) == documents_BT.unsqueeze(1)
    back_tT = places_T[tokens].unsqueeze(1) >= places_T
    return (same_BtT & back_tT).unsqueeze(1)


def _build_hub_model(recipe: Recipe, *, cache_dir: Path) -> PreTrainedModel:
    """Build what the repository's own configuration describes, on the meta device."""
    from transformers.models.auto.modeling_auto import AutoModelForCausalLM

    from training.models.hub import model_config

    config = model_config(recipe, cache_dir=cache_dir)
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    return model


def find_blocks(model: PreTrainedModel, *, name: str) -> Sequence[nn.Module]:
    """Find the decoder's repeated blocks, in their order.

    Raises:
        PermanentError: the architecture does not keep them in one list.
    """
    num_layers = model.config.get_text_config(decoder=True).num_hidden_layers
    for module in model.get_decoder().children():
        if isinstance(module, nn.ModuleList) and len(module) == num_layers:
            return list(module)
    raise PermanentError(
        f"recipe {name}: {type(model).__name__} has no list of {num_layers} decoder blocks, "
        "which sharding needs; use a model whose blocks are in one list"
    )

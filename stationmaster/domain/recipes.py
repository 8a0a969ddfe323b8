"""The catalogue of recipes: what can be trained, with which model shape and which defaults.

A recipe is immutable. `Recipe.with_overrides` gives the copy that a run trains, after checking
every key=value a person typed. The trainer, the plan, the renderer and the bot read this one
definition.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import cached_property
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from stationmaster.domain.errors import BadParameter, UnknownRecipe, nearest


class ModelShape(BaseModel):
    """A decoder-only transformer of the Llama family, named as in published configurations."""

    model_config = ConfigDict(frozen=True)

    layers: int
    hidden_size: int
    heads: int
    kv_heads: int
    ffn_size: int
    vocab_size: int
    context_length: int
    rope_theta: float = 10_000.0
    tied_embeddings: bool = False

    @property
    def head_dim(self) -> int:
        """Size of one attention head."""
        return self.hidden_size // self.heads

    @property
    def num_parameters(self) -> int:
        """Trainable parameters: embeddings, blocks (attention, SwiGLU, norms), final norm, head."""
        attention = self.hidden_size * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        block = attention + 3 * self.hidden_size * self.ffn_size + 2 * self.hidden_size
        embedding = self.vocab_size * self.hidden_size
        head = 0 if self.tied_embeddings else embedding
        return embedding + self.layers * block + self.hidden_size + head


class TrainingConfig(BaseModel):
    """How a recipe trains. Every field is a key=value of the slash command and of the trainer."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    steps: int = Field(ge=1, le=10_000_000, description="optimizer steps to run")
    global_batch_size: int = Field(
        ge=1, le=1_000_000, description="sequences a step, over all ranks together"
    )
    sequence_length: int = Field(ge=8, le=1_048_576, description="tokens a sequence")
    learning_rate: float = Field(gt=0, le=10, description="peak learning rate")
    min_learning_rate: float = Field(ge=0, le=10, description="learning rate at the last step")
    warmup_steps: int = Field(ge=0, description="steps of linear warm-up")
    weight_decay: float = Field(default=0.1, ge=0, le=1, description="AdamW weight decay")
    beta1: float = Field(default=0.9, ge=0, lt=1, description="AdamW first moment decay")
    beta2: float = Field(default=0.95, ge=0, lt=1, description="AdamW second moment decay")
    grad_clip: float = Field(default=1.0, gt=0, description="largest gradient norm")
    seed: int = Field(
        default=1234, ge=0, le=2**31 - 1, description="seed of weights and data order"
    )
    checkpoint_every: int = Field(ge=1, description="steps between checkpoints")
    log_every: int = Field(default=1, ge=1, description="steps between progress lines")
    dataset: str = Field(
        min_length=1, max_length=500, description="what to train on: a name, or a directory of text"
    )


Framework = Literal["fsdp"]


class Recipe(BaseModel):
    """What to train and how, with the machines it was sized for."""

    model_config = ConfigDict(frozen=True)

    name: str
    framework: Framework
    summary: str
    model: ModelShape
    training: TrainingConfig
    default_instance: str
    default_nodes: int
    max_nodes: int
    needs_gpu: bool
    nproc_per_node: int = Field(description="0 means one process for each GPU of the instance")
    file_system_gib: int = Field(description="FSx for Lustre storage: 1200, 2400 or n x 2400")
    file_system_mbps_per_tib: Literal[125, 250, 500, 1000]
    assumed_mfu: float = Field(description="fraction of peak FLOP/s that the plan reckons with")

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """Every key that a person may set, in the order of help texts."""
        return tuple(TrainingConfig.model_fields)

    def with_overrides(self, overrides: Mapping[str, str]) -> Recipe:
        """Check and apply key=value pairs as typed.

        Raises:
            BadParameter: naming the key or value, what is expected, and the nearest valid key.
        """
        if not overrides:
            return self
        for key in overrides:
            if key not in TrainingConfig.model_fields:
                close = nearest(key, (*self.keys, "nodes", "instance"))
                hint = f"did you mean {close}" if close else f"it takes {', '.join(self.keys)}"
                raise BadParameter(f'recipe {self.name} has no key "{key}"; {hint}')
        try:
            training = TrainingConfig.model_validate(self.training.model_dump() | dict(overrides))
        except ValidationError as exc:
            problem = exc.errors()[0]
            key = str(problem["loc"][0])
            expected = _expectation(problem["type"], problem)
            raise BadParameter(f'{key}="{overrides.get(key)}" is not accepted: {expected}') from exc
        training = _follow(training, typed=overrides.keys())
        _check_together(training)
        return self.model_copy(update={"training": training})


def _expectation(kind: str, problem: Mapping[str, object]) -> str:
    context = problem.get("ctx")
    bounds = context if isinstance(context, dict) else {}
    match kind:
        case "int_parsing" | "int_from_float" | "int_type" | "int_parsing_size":
            return "expected a whole number, e.g. 100"
        case "float_parsing" | "float_type" | "finite_number":
            return "expected a number, e.g. 3e-4"
        case "greater_than_equal":
            return f"expected {bounds.get('ge')} or more"
        case "greater_than":
            return f"expected more than {bounds.get('gt')}"
        case "less_than_equal":
            return f"expected {bounds.get('le')} or less"
        case "less_than":
            return f"expected less than {bounds.get('lt')}"
        case _:
            return str(problem.get("msg", "not valid"))


def _follow(training: TrainingConfig, *, typed: Collection[str]) -> TrainingConfig:
    """Let defaults that nobody typed follow what was typed: a 3-step run has no 5-step warm-up."""
    follow: dict[str, int | float] = {}
    if "warmup_steps" not in typed:
        follow["warmup_steps"] = min(training.warmup_steps, training.steps)
    if "min_learning_rate" not in typed:
        follow["min_learning_rate"] = min(training.min_learning_rate, training.learning_rate / 10)
    return training.model_copy(update=follow)


def _check_together(training: TrainingConfig) -> None:
    """Hold the rules that involve two keys."""
    if training.min_learning_rate > training.learning_rate:
        raise BadParameter(
            f"min_learning_rate={training.min_learning_rate:g} is above "
            f"learning_rate={training.learning_rate:g}; lower it"
        )
    if training.warmup_steps > training.steps:
        raise BadParameter(
            f"warmup_steps={training.warmup_steps} is more than steps={training.steps}; "
            f"use {training.steps} or less"
        )
    if training.dataset.startswith("/") and not re.fullmatch(r"[\w./@+-]+", training.dataset):
        raise BadParameter(
            f'dataset="{training.dataset}" is not accepted: '
            "expected a path of letters, digits and ._-/@+"
        )


TINY_LLAMA: Final = Recipe(
    name="tiny-llama",
    framework="fsdp",
    summary="a 1.8 M parameter Llama on the Python library's own sources; minutes on two CPU nodes",
    model=ModelShape(
        layers=4,
        hidden_size=128,
        heads=4,
        kv_heads=2,
        ffn_size=384,
        vocab_size=4096,
        context_length=128,
    ),
    training=TrainingConfig(
        steps=60,
        global_batch_size=16,
        sequence_length=128,
        learning_rate=3e-3,
        min_learning_rate=3e-4,
        warmup_steps=5,
        checkpoint_every=20,
        dataset="python-stdlib",
    ),
    default_instance="m5.2xlarge",
    default_nodes=2,
    max_nodes=8,
    needs_gpu=False,
    nproc_per_node=1,
    file_system_gib=1200,
    file_system_mbps_per_tib=125,
    assumed_mfu=0.0,
)

# Shape: the published configuration of Llama 2 7B (6,738,415,616 parameters). Batch and schedule:
# the public FSDP sample for Amazon EKS (context 4096, 100 steps, cosine 1e-4 to 1e-5, clip 1), with
# an integer warm-up where the sample's fraction rounds to none.
LLAMA2_7B: Final = Recipe(
    name="llama2-7b",
    framework="fsdp",
    summary="Llama 2 7B pre-training from scratch with FSDP",
    model=ModelShape(
        layers=32,
        hidden_size=4096,
        heads=32,
        kv_heads=32,
        ffn_size=11008,
        vocab_size=32000,
        context_length=4096,
    ),
    training=TrainingConfig(
        steps=100,
        global_batch_size=64,
        sequence_length=4096,
        learning_rate=1e-4,
        min_learning_rate=1e-5,
        warmup_steps=10,
        weight_decay=0.2,
        checkpoint_every=50,
        dataset="python-stdlib",
    ),
    default_instance="p4d.24xlarge",
    default_nodes=2,
    max_nodes=64,
    needs_gpu=True,
    nproc_per_node=0,
    file_system_gib=2400,
    file_system_mbps_per_tib=250,
    assumed_mfu=0.35,
)

CATALOGUE: Final[dict[str, Recipe]] = {recipe.name: recipe for recipe in (TINY_LLAMA, LLAMA2_7B)}


def get_recipe(name: str) -> Recipe:
    """Look a recipe up.

    Raises:
        UnknownRecipe: with the nearest known name.
    """
    if name in CATALOGUE:
        return CATALOGUE[name]
    if name.startswith("hf:"):
        raise UnknownRecipe(
            f'recipe "{name[:80]}": models from the Hugging Face hub are not available in this '
            f"version; use one of {', '.join(CATALOGUE)}"
        )
    close = nearest(name, CATALOGUE)
    hint = f"did you mean {close}" if close else f"the catalogue has {', '.join(CATALOGUE)}"
    raise UnknownRecipe(f'recipe "{name[:80]}" is not in the catalogue; {hint}')

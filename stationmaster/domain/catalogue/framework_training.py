"""The keys of recipes that another framework trains: exactly those that it is given.

Each framework has a class of its own; a key that it does not read is none of the recipe's. What the
keys become on its command line is in `rendering/frameworks`.
"""

from __future__ import annotations

from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from stationmaster.domain.catalogue.models import LanguageModel
from stationmaster.domain.errors import BadParameter

MOCK: Final = "mock"
"""In place of a data set: tokens that the framework makes up, to try a cluster with."""
RANDOM: Final = "random"


class FrameworkTraining(BaseModel):
    """Keys that every framework takes."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    steps: int = Field(ge=1, le=10_000_000, description="optimizer steps to run")
    global_batch_size: int = Field(
        ge=1, le=1_000_000, description="sequences a step, over all GPUs together"
    )
    micro_batch_size: int = Field(
        default=1, ge=1, le=100_000, description="sequences in one forward pass; more accumulate"
    )
    sequence_length: int = Field(ge=8, le=1_048_576, description="tokens a sequence")
    learning_rate: float = Field(gt=0, le=10, description="peak learning rate")
    min_learning_rate: float = Field(
        default=0.0, ge=0, le=10, description="learning rate at the last step"
    )
    warmup_steps: int = Field(default=0, ge=0, description="steps of linear warm-up")
    tensor_parallel: int = Field(
        default=1, ge=1, le=64, description="GPUs of a node that split every matrix product"
    )
    pipeline_parallel: int = Field(
        default=1, ge=1, le=64, description="stages that the layers are divided into"
    )
    context_parallel: int = Field(
        default=1, ge=1, le=64, description="GPUs that divide each sequence among themselves"
    )
    seed: int = Field(default=1234, ge=0, le=2**31 - 1, description="seed of weights and data")
    checkpoint_every: int = Field(ge=1, description="steps between checkpoints")
    log_every: int = Field(default=1, ge=1, description="steps between progress lines")
    eval_every: int = Field(default=0, ge=0, description="steps between evaluations; 0 for none")
    eval_steps: int = Field(
        default=0, ge=0, le=100_000, description="batches of an evaluation; 0 for none"
    )

    @property
    def processes_per_sample(self) -> int:
        """GPUs that compute a sequence together."""
        return self.tensor_parallel * self.pipeline_parallel * self.context_parallel

    @property
    def evaluations(self) -> int:
        """How many there are in all of the steps."""
        return self.steps // self.eval_every if self.eval_every else 0

    def parallelism_words(self, processes: int) -> str:
        """How `processes` GPUs share the work, for people."""
        sizes = {
            "tensor parallel": self.tensor_parallel,
            "pipeline parallel": self.pipeline_parallel,
            "context parallel": self.context_parallel,
            "data parallel": max(1, processes // self.processes_per_sample),
        }
        words = [f"{name} {size}" for name, size in sizes.items() if size > 1]
        return f"{' x '.join(words)} over {processes} GPUs" if words else "one GPU"

    def check(self, model: LanguageModel) -> None:
        """Hold the rules that involve two keys, or a key and the model.

        Raises:
            BadParameter: naming the first key that breaks one, and what to use.
        """
        size, stages, parts = self.tensor_parallel, self.pipeline_parallel, self.context_parallel
        for key, value, total, what in (
            ("tensor_parallel", size, model.heads, "attention heads"),
            ("tensor_parallel", size, model.kv_heads, "key/value groups"),
            ("tensor_parallel", size, model.ffn_size, "inner size"),
            ("pipeline_parallel", stages, model.layers, "layers"),
        ):
            if total % value:
                fitting = [str(n) for n in range(1, min(total, 64) + 1) if total % n == 0]
                raise BadParameter(
                    f"{key}={value} does not divide the model's {total:,} {what}; use "
                    f"{', '.join(fitting[:-1])} or {fitting[-1]}"
                )
        if self.eval_every and not self.eval_steps:
            raise BadParameter(
                f"eval_every={self.eval_every} needs batches to evaluate on; add e.g. eval_steps=10"
            )
        # A causal mask gives each part of a sequence two chunks, one early and one late.
        chunks = size * (2 * parts if parts > 1 else 1)
        if self.sequence_length % chunks:
            nearest = max(chunks, round(self.sequence_length / chunks) * chunks)
            raise BadParameter(
                f"sequence_length={self.sequence_length} is no multiple of {chunks}, which "
                f"tensor_parallel={size} and context_parallel={parts} divide it into; "
                f"use {nearest}"
            )


class MegatronTraining(FrameworkTraining):
    """Keys of recipes that Megatron-LM trains."""

    schedule: Literal["cosine", "linear", "constant"] = Field(
        default="cosine", description="after warm-up, down to min_learning_rate, or constant"
    )
    weight_decay: float = Field(default=0.1, ge=0, le=1, description="weight decay")
    beta1: float = Field(default=0.9, ge=0, lt=1, description="Adam's first moment decay")
    beta2: float = Field(default=0.95, ge=0, lt=1, description="Adam's second moment decay")
    grad_clip: float = Field(default=1.0, ge=0, description="largest gradient norm; 0 for no limit")
    sequence_parallel: bool = Field(
        default=True,
        description="divide norms and their activations among the GPUs of tensor_parallel, too",
    )
    distributed_optimizer: bool = Field(
        default=True, description="divide the optimizer's state among the data-parallel GPUs"
    )
    activation_checkpointing: Literal["off", "full"] = Field(
        default="off", description="full computes each layer again in backward"
    )
    rendezvous: Literal["c10d", "static"] = Field(
        default="c10d",
        description="where the pods meet: at the first worker (c10d) or at a master that the job "
        "names (static)",
    )
    dataset: str = Field(
        min_length=1,
        max_length=500,
        description="text that is prepared before training, packed:c4, packed:hub:ORG/NAME or "
        "s3://BUCKET/PREFIX; a data set of Megatron-LM, /fsx/PREFIX without the endings .bin and "
        ".idx; or mock: tokens that it makes up",
    )
    tokenizer: str = Field(
        min_length=1,
        max_length=500,
        description="ORG/MODEL on the Hugging Face hub: the one that the data was made with",
    )
    weights: str = Field(
        default=RANDOM,
        min_length=1,
        max_length=500,
        description="first weights: random, ORG/MODEL on the Hugging Face hub, which are "
        "converted, or /fsx/PATH of a checkpoint of Megatron-LM",
    )

    @property
    def splits_sequences(self) -> bool:
        """Whether norms are divided as well; means nothing without tensor parallelism."""
        return self.sequence_parallel and self.tensor_parallel > 1


class BridgeTraining(MegatronTraining):
    """Keys of recipes that Megatron-Bridge trains: it has the same core, and takes the same."""

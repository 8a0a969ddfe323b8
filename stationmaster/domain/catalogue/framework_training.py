"""The keys of recipes that another framework trains: exactly those that it is given.

Each framework has a class of its own. `rendering/frameworks` writes them on its command line.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Final, Literal

from pydantic import Field

from stationmaster.domain.catalogue.hub import is_repository
from stationmaster.domain.catalogue.models import LanguageModel
from stationmaster.domain.catalogue.sharing import words_of
from stationmaster.domain.errors import BadParameter
from stationmaster.domain.frozen import Frozen

MOCK: Final = "mock"
"""A word in place of a data set: tokens that the framework makes up, to try a cluster with."""
RANDOM: Final = "random"
TITAN_LOSS_PARTS: Final = 8
"""The equal parts of a sequence of which torchtitan computes the loss one after the other.

Source: torchtitan 0.3.0, components/loss.py, ChunkedLossWrapper.
"""
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")


class FrameworkTraining(Frozen, extra="forbid", allow_inf_nan=False):
    """The keys that every framework takes."""

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
    seed: int = Field(default=1234, ge=0, le=2**31 - 1, description="seed of weights and data")
    checkpoint_every: int = Field(ge=1, description="steps between checkpoints")
    log_every: int = Field(default=1, ge=1, description="steps between progress lines")
    eval_every: int = Field(default=0, ge=0, description="steps between evaluations; 0 for none")
    eval_steps: int = Field(
        default=0, ge=0, le=100_000, description="batches of an evaluation; 0 for none"
    )
    weight_decay: float = Field(default=0.1, ge=0, le=1, description="weight decay")
    beta1: float = Field(default=0.9, ge=0, lt=1, description="Adam's first moment decay")
    beta2: float = Field(default=0.95, ge=0, lt=1, description="Adam's second moment decay")
    rendezvous: Literal["c10d", "static"] = Field(
        default="c10d",
        description="where the pods meet: at the first worker (c10d) or at a master that the job "
        "names (static)",
    )

    @property
    def sharing_keys(self) -> dict[str, int]:
        """By key, how many GPUs share what; their product computes a sequence together."""
        return {"tensor_parallel": self.tensor_parallel}

    @property
    def processes_per_sample(self) -> int:
        """The number of GPUs that compute a sequence together."""
        return math.prod(self.sharing_keys.values())

    @property
    def sequence_chunks(self) -> int:
        """The number of equal parts that a sequence is divided into."""
        return self.tensor_parallel

    @property
    def evaluations(self) -> int:
        """The number of evaluations in all of the steps."""
        return self.steps // self.eval_every if self.eval_every else 0

    def parallelism_words(self, processes: int) -> str:
        """Say for people how `processes` GPUs share the work."""
        sizes = {key.replace("_", " "): size for key, size in self.sharing_keys.items()}
        sizes["data parallel"] = max(1, processes // self.processes_per_sample)
        words = [f"{name} {size}" for name, size in sizes.items() if size > 1]
        return f"{' x '.join(words)} over {processes} GPUs" if words else "one GPU"

    def check(self, model: LanguageModel) -> None:
        """Enforce the rules that involve two keys, or a key and the model.

        Raises:
            BadParameter: naming the first key that breaks one, and what to use.
        """
        split = {
            "attention heads": model.heads,
            "key/value groups": model.kv_heads,
            "inner size": model.ffn_size,
        }
        for what, total in split.items():
            common = math.gcd(*split.values())
            check_divides("tensor_parallel", self.tensor_parallel, total, what, common=common)
        if self.eval_every and not self.eval_steps:
            raise BadParameter(
                f"eval_every={self.eval_every} needs batches to evaluate on; add e.g. "
                "eval_steps=10, or eval_every=0 for no evaluations"
            )
        chunks = self.sequence_chunks
        if self.sequence_length % chunks:
            # Each stage has whole sequences.
            keys = {key: n for key, n in self.sharing_keys.items() if key != "pipeline_parallel"}
            nearest = max(chunks, round(self.sequence_length / chunks) * chunks)
            raise BadParameter(
                f"sequence_length={self.sequence_length} is no multiple of {chunks}, the parts "
                f"that GPUs divide it into with {typed_keys(keys)}; use {nearest}"
            )


def typed_keys(keys: Mapping[str, int]) -> str:
    """Write the keys as a person would type them: a=1, b=2 and c=3."""
    *others, last = (f"{key}={value}" for key, value in keys.items())
    return f"{', '.join(others)} and {last}" if others else last


def check_divides(
    key: str, value: int, total: int, what: str, *, common: int | None = None
) -> None:
    """Refuse a number of GPUs that `total` of the model's `what` do not come out even for.

    Args:
        common: what a number has to divide to be named instead, if that is not `total`.

    Raises:
        BadParameter: naming the numbers that do.
    """
    if total % value:
        whole = common or total
        remedy = words_of([n for n in range(1, min(whole, 64) + 1) if whole % n == 0])
        raise BadParameter(f"{key}={value} does not divide the model's {total:,} {what}; {remedy}")


class MegatronTraining(FrameworkTraining):
    """The keys of recipes that Megatron-LM trains."""

    pipeline_parallel: int = Field(
        default=1, ge=1, le=64, description="stages that the layers are divided into"
    )
    context_parallel: int = Field(
        default=1, ge=1, le=64, description="GPUs that divide each sequence among themselves"
    )
    schedule: Literal["cosine", "linear", "constant"] = Field(
        default="cosine", description="after warm-up, down to min_learning_rate, or constant"
    )
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
    def sharing_keys(self) -> dict[str, int]:
        """By key, how many GPUs share what; stages and parts of sequences count as well."""
        return {
            "tensor_parallel": self.tensor_parallel,
            "pipeline_parallel": self.pipeline_parallel,
            "context_parallel": self.context_parallel,
        }

    @property
    def sequence_chunks(self) -> int:
        """Return two chunks for each part of a sequence, early and late, as the mask is causal."""
        return self.tensor_parallel * (
            2 * self.context_parallel if self.context_parallel > 1 else 1
        )

    def check(self, model: LanguageModel) -> None:
        """Check also that the layers come out even over the stages."""
        check_divides("pipeline_parallel", self.pipeline_parallel, model.layers, "layers")
        super().check(model)

    @property
    def splits_sequences(self) -> bool:
        """Whether norms are divided as well; means nothing without tensor parallelism."""
        return self.sequence_parallel and self.tensor_parallel > 1


class BridgeTraining(MegatronTraining):
    """The keys of recipes that Megatron-Bridge trains: its core, and so the keys, are the same."""


class NemoTraining(MegatronTraining):
    """The keys of the recipe that NeMo 2 trains; three of them take, or mean, less."""

    seed: int = Field(
        default=1234, ge=0, le=2**31 - 1, description="seed of the data's order, not of weights"
    )
    schedule: Literal["cosine"] = Field(
        default="cosine", description="after warm-up, down to min_learning_rate"
    )
    weights: str = Field(
        default=RANDOM,
        max_length=500,
        description="first weights: random, or /fsx/PATH of NeMo 2's",
    )


class TitanTraining(FrameworkTraining):
    """The keys of recipes that torchtitan trains."""

    schedule: Literal["linear", "cosine", "constant"] = Field(
        default="linear", description="after warm-up, down to min_learning_rate, or constant"
    )
    grad_clip: float = Field(default=1.0, gt=0, description="largest gradient norm")
    activation_checkpointing: Literal["off", "selective", "full"] = Field(
        default="selective",
        description="off, full (each block again in backward) or selective (keep every second "
        "matrix product)",
    )
    compile: bool = Field(default=False, description="torch.compile each block and the loss")
    cuda_graphs: bool = Field(
        default=True, description="capture forward and backward as a CUDA graph, and replay it"
    )
    dataset: Literal["c4"] = Field(
        default="c4", description="c4, which is streamed from the Hugging Face hub"
    )
    tokenizer: str = Field(
        min_length=1,
        max_length=500,
        description="ORG/MODEL@COMMIT on the Hugging Face hub; the commit has 40 digits",
    )

    @property
    def tokenizer_parts(self) -> tuple[str, str]:
        """The repository of the tokenizer, and the commit."""
        repository, _, commit = self.tokenizer.partition("@")
        return repository, commit

    @property
    def evaluations(self) -> int:
        """The number of evaluations in all of the steps, with one after the first."""
        return super().evaluations + (1 if self.eval_every > 1 else 0)

    def check(self, model: LanguageModel) -> None:
        """Check also that sequences fit the model, and that the tokenizer cannot change."""
        if self.sequence_length > model.context_length:
            raise BadParameter(
                f"sequence_length={self.sequence_length} is longer than the "
                f"{model.context_length:,} tokens that torchtitan has positions for; use "
                f"{model.context_length} or less"
            )
        repository, commit = self.tokenizer_parts
        if not is_repository(repository) or not _COMMIT.fullmatch(commit):
            raise BadParameter(
                f'tokenizer="{self.tokenizer}" is not accepted: expected ORG/MODEL@COMMIT with a '
                "commit of 40 hexadecimal digits, so that every pod and every restart has the same"
            )
        super().check(model)
        if self.sequence_length % TITAN_LOSS_PARTS:
            unit = math.lcm(TITAN_LOSS_PARTS, self.tensor_parallel)
            nearest = max(unit, round(self.sequence_length / unit) * unit)
            raise BadParameter(
                f"sequence_length={self.sequence_length} is no multiple of {TITAN_LOSS_PARTS}, the "
                f"parts of a sequence that torchtitan computes the loss of; use {nearest}"
            )

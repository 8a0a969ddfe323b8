"""How a recipe lies on machines: processes, rows that each computes at a time, who shards what."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

from stationmaster.domain.catalogue.framework_training import FrameworkTraining
from stationmaster.domain.catalogue.instances import InstanceType
from stationmaster.domain.catalogue.models import LanguageModel
from stationmaster.domain.catalogue.recipes import Recipe
from stationmaster.domain.catalogue.sharing import FLOAT8
from stationmaster.domain.catalogue.training_config import (
    context_parallel_of,
    expert_parallel_of,
    norm_batch_of,
    tensor_parallel_of,
)

FP32_BYTES: Final = 4
BF16_BYTES: Final = 2

# By this part the rows of the busiest expert are taken to exceed the mean. Source: the capacity
# factor of 1.25 with which Switch Transformers (arxiv.org/abs/2101.03961, section 2.2) drop few
# tokens of a balanced router; here none is dropped, and the other ranks wait.
_UNEVEN_EXPERTS: Final = 0.25


def processes_per_node(recipe: Recipe, instance: InstanceType) -> int:
    """Training processes on each node: the recipe's number, or one for each GPU."""
    return recipe.nproc_per_node or instance.num_gpus


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A recipe on `nodes` instances of one type, one model replica or shard in each process."""

    recipe: Recipe
    instance: InstanceType
    nodes: int

    @property
    def holder(self) -> str:
        """What trains a part of it, for people."""
        return "GPU" if self.recipe.needs_gpu else "process"

    @property
    def holders(self) -> str:
        """The same, of several."""
        return "GPUs" if self.recipe.needs_gpu else "processes"

    @property
    def processes_per_node(self) -> int:
        """Training processes on each node."""
        return processes_per_node(self.recipe, self.instance)

    @property
    def processes(self) -> int:
        """Training processes altogether: the ranks."""
        return self.nodes * self.processes_per_node

    @property
    def tensor_parallel(self) -> int:
        """Processes that split every product; 1 where each computes its own."""
        return tensor_parallel_of(self.recipe.training)

    @property
    def context_parallel(self) -> int:
        """Parts of a sequence; each is computed by a process, or by those that split products."""
        return context_parallel_of(self.recipe.training)

    @property
    def processes_per_sample(self) -> int:
        """Processes that compute a sample together; of a framework, stages and parts as well."""
        match self.recipe.training:
            case FrameworkTraining() as training:
                return training.processes_per_sample
            case _:
                return self.tensor_parallel * self.context_parallel

    @property
    def expert_parallel(self) -> int:
        """Processes that share the experts of each block; 1 where each has all of them."""
        return expert_parallel_of(self.recipe.training)

    @property
    def near_experts(self) -> int:
        """The ranks of a group of experts that are in the same node."""
        return math.gcd(self.expert_parallel, self.processes_per_node)

    @property
    def busiest(self) -> float:
        """Rows that the experts of the busiest rank get, over the mean; several even out."""
        model = self.recipe.model
        if self.expert_parallel == 1 or not isinstance(model, LanguageModel):
            return 1.0
        return 1 + _UNEVEN_EXPERTS / math.sqrt(model.experts / self.expert_parallel)

    @property
    def data_ranks(self) -> int:
        """Processes, or groups of them, that compute samples of their own."""
        return max(1, self.processes // self.processes_per_sample)

    @property
    def rows_per_step(self) -> int:
        """Samples of one rank in an optimizer step; ranks fill up where it does not divide."""
        size = self._norm_batch_size or 1
        return math.ceil(self.divisible_parts / self.data_ranks) * size

    @property
    def rows(self) -> int:
        """Samples of one forward pass of a rank."""
        return self._norm_batch_size or min(
            self.recipe.training.micro_batch_size, self.rows_per_step
        )

    @property
    def divisible_parts(self) -> int:
        """What a step is divided into among ranks: samples, or forward passes of a given size."""
        return self.recipe.training.global_batch_size // (self._norm_batch_size or 1)

    @property
    def _norm_batch_size(self) -> int:
        return norm_batch_of(self.recipe.training)

    @property
    def micro_batches(self) -> int:
        """Forward and backward passes in an optimizer step."""
        return math.ceil(self.rows_per_step / self.rows)

    @property
    def compute(self) -> Literal["bf16", "fp32"]:
        """What is computed in, but for products in float8, whose results are bf16 as well."""
        if not self.recipe.uses_own_trainer:
            return "bf16"
        match self.recipe.own_training.precision:
            case "auto":
                return "bf16" if self.recipe.needs_gpu else "fp32"
            case "float8":
                return "bf16"
            case precision:
                return precision

    @property
    def compute_bytes(self) -> int:
        """Bytes of a number in matrix products."""
        return BF16_BYTES if self.compute == "bf16" else FP32_BYTES

    @property
    def multiplies_in_float8(self) -> bool:
        """Whether linear layers cast what they multiply to float8."""
        if not self.recipe.uses_own_trainer:
            return False
        return self.recipe.own_training.precision == FLOAT8

    @property
    def shards(self) -> int:
        """Ranks that share one copy of weights, gradients and optimizer state."""
        match self.recipe.own_training.parallelism:
            case "full":
                return self.processes
            case "hybrid":
                return self.processes_per_node
            case "ddp":
                return 1

    @property
    def is_wrapped(self) -> bool:
        """Whether FSDP gathers weights: not under DDP, and not for a lone rank in fp32."""
        if self.recipe.own_training.parallelism == "ddp":
            return False
        return self.processes > 1 or self.compute == "bf16" or self.offloads

    @property
    def offloads(self) -> bool:
        """Whether weights and optimizer state live in host memory; means nothing on CPUs."""
        if not self.recipe.uses_own_trainer:
            return False
        return self.recipe.own_training.cpu_offload and self.recipe.needs_gpu

    @property
    def block_parameters(self) -> int:
        """Parameters that a rank gathers of a language model's block; of an image model, all."""
        model = self.recipe.model
        if not isinstance(model, LanguageModel):
            return model.num_parameters
        return (self.gathered_parameters - self.root_parameters) // model.layers

    @property
    def root_parameters(self) -> int:
        """Parameters outside the blocks: embedding, final norm and, unless tied to it, head."""
        model = self.recipe.model
        if not isinstance(model, LanguageModel):
            return 0
        embeddings = 1 if model.tied_embeddings else 2
        root = embeddings * model.vocab_size * model.hidden_size + model.hidden_size
        root += model.lookup_parameters
        return min(root, model.num_parameters)

    @property
    def shared_parameters(self) -> int:
        """Parameters of the experts that processes share; 0 where each process has all of them."""
        model = self.recipe.model
        if self.expert_parallel == 1 or not isinstance(model, LanguageModel):
            return 0
        return model.expert_parameters

    @property
    def gathered_parameters(self) -> int:
        """Parameters that a rank has whole at some moment: all but other ranks' experts."""
        own = self.shared_parameters // self.expert_parallel
        return self.recipe.model.num_parameters - self.shared_parameters + own

    @property
    def parallelism(self) -> str:
        """The parallelism in words, for people."""
        if isinstance(self.recipe.training, FrameworkTraining):
            return self.recipe.training.parallelism_words(self.processes)
        if self.processes == 1:
            return "one process"
        size = self.expert_parallel
        shared = f", experts of each block shared by {size} neighbours" if size > 1 else ""
        return self._arrangement + shared

    @property
    def _arrangement(self) -> str:
        match self.recipe.own_training.parallelism:
            case "full":
                return f"FSDP full shard over {self._sharing(self.processes)}"
            case "hybrid":
                copies = f"{self.nodes} copies" if self.nodes > 1 else "one copy"
                return f"hybrid: FSDP over the {self._sharing(self.shards)} of a node, {copies}"
            case "ddp":
                return f"DDP over {self.processes} processes"

    def _sharing(self, processes: int) -> str:
        size, parts = self.tensor_parallel, self.context_parallel
        words = f"{processes} processes"
        if size > 1:
            words = f"{processes // size} groups of {size} processes that split every product"
        return words if parts == 1 else f"{words}, each {parts} of them sharing a sequence"

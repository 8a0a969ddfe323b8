"""What torchtitan's way of training takes: memory, time of a step, size of a checkpoint. Pure.

It shards with FSDP2 and splits products as the product's own trainer does, whose arithmetic counts.
Three things differ: logits, checkpoints, which no copy is kept for, and CUDA graphs. Nothing of it
was compared with a GPU. Source: torchtitan 0.3.0, models/llama3.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from stationmaster.domain.catalogue.framework_training import TITAN_LOSS_PARTS, TitanTraining
from stationmaster.domain.catalogue.models import LanguageModel
from stationmaster.domain.catalogue.training_config import LanguageTraining
from stationmaster.domain.planning import memory
from stationmaster.domain.planning.layout import BF16_BYTES, FP32_BYTES, Layout
from stationmaster.domain.planning.memory import Memory

# Of a part, the logits in bf16, their fp32 copy, and the gradients of both.
_LOGIT_BYTES: Final = 2 * (BF16_BYTES + FP32_BYTES)
# What decides memory and time, and means the same for both trainers.
_PLANNED: Final = {
    *("steps", "global_batch_size", "micro_batch_size", "sequence_length", "learning_rate"),
    *("tensor_parallel", "activation_checkpointing", "compile", "dataset", "checkpoint_every"),
}


def memory_of(layout: Layout) -> Memory:
    """Add up what each GPU has; it errs on the high side.

    Selective checkpointing keeps every second matrix product there, not all of them as here.
    """
    model, training = layout.recipe.model, layout.recipe.training
    assert isinstance(model, LanguageModel)
    assert isinstance(training, TitanTraining)
    values = layout.rows * training.sequence_length * model.vocab_size / training.tensor_parallel
    eager = replace(
        memory.memory_of(as_own(layout)),
        logits=_LOGIT_BYTES * values / TITAN_LOSS_PARTS,
        staged=0.0,
    )
    return replace(eager, graphs=_beside_graph(layout, eager)) if training.cuda_graphs else eager


def _beside_graph(layout: Layout, eager: Memory) -> float:
    """Return what is taken outside of the CUDA graph of a step, whose memory nothing else can use.

    One graph has forward and backward of a micro-batch. Its private pool stays until training ends
    (torchtitan 0.3.0, distributed/cudagraph.py), and is taken to be as large as gathered weights,
    activations and logits together, which are counted anyhow (PyTorch, CUDAGraph Trees). The first
    micro-batch runs without the graph and is freed before the capture (torch/cuda/graphs.py).

    Beside the pool, an evaluation has to fit, which is a forward pass (components/validate.py),
    and, at another time, the bf16 copy of the weights that the last checkpoint is written from
    (components/checkpointer/dcp.py). Not counted: copies of a graph's inputs, a few MB, and its
    nodes, 64 KB each up to CUDA 12.4 (CUDAGraph Trees).
    """
    exported = eager.weights * BF16_BYTES / FP32_BYTES
    if not layout.recipe.training.eval_every:
        return exported
    return max(exported, memory.forward_alone_bytes(as_own(layout)) + eager.logits)


def as_own(layout: Layout) -> Layout:
    """Return the same, trained by the product's own trainer, whose arithmetic counts.

    Of checkpoints, the last one has the weights alone, in bf16.
    """
    training = layout.recipe.training
    assert isinstance(training, TitanTraining)
    own = LanguageTraining.model_validate(training.model_dump(include=_PLANNED))
    return replace(layout, recipe=layout.recipe.model_copy(update={"training": own}))

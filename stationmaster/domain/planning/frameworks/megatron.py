"""What Megatron-LM's way of training takes: memory, time of a step, size of a checkpoint. Pure.

Memory follows Megatron-LM's own estimate (core_v0.19.0, megatron/training/
theoretical_memory_usage.py, whose weights and activations these are); nothing of it was compared
with a GPU. Of several pipeline stages the fullest counts.

Legend: s tokens of a sequence on one GPU, b sequences of a forward pass, h hidden size, F inner
size, V vocabulary, t tensor parallel.
"""

from __future__ import annotations

import math
from typing import Final

from stationmaster.domain.catalogue.framework_training import MegatronTraining
from stationmaster.domain.catalogue.models import LanguageModel
from stationmaster.domain.planning.estimate import flops_per_sample
from stationmaster.domain.planning.layout import BF16_BYTES, FP32_BYTES, Layout
from stationmaster.domain.planning.memory import Memory
from stationmaster.domain.planning.speed import UNKNOWN_PEAK_TFLOPS, StepTime

# bf16 weights and fp32 gradients on each GPU; fp32 weights and Adam's two moments, which the
# distributed optimizer divides. Source: Megatron-LM, docs/user-guide/features/dist_optimizer.md.
_WEIGHT: Final = BF16_BYTES
_GRADIENT: Final = FP32_BYTES
_OPTIMIZER: Final = 3 * FP32_BYTES
# The head's result in bf16, and the loss's fp32 copy of it. Source: Megatron-LM,
# megatron/core/tensor_parallel/cross_entropy.py.
_LOGIT: Final = BF16_BYTES + FP32_BYTES
# The vocabulary is padded to a multiple of this for each GPU that shares it. Source: Megatron-LM,
# --make-vocab-size-divisible-by.
VOCABULARY_MULTIPLE: Final = 128

# Computing each layer's forward pass again: MFU counts three of four passes.
_FULL_CHECKPOINTING: Final = 0.75
# As in `speed`, for products that are split, and for a node's network under large collectives.
_SPLIT_PRODUCTS: Final = 0.94
_NETWORK_EFFICIENCY: Final = 0.7


def padded_vocabulary(model: LanguageModel, tensor_parallel: int) -> int:
    """Return the rows of the embedding and the head."""
    multiple = VOCABULARY_MULTIPLE * tensor_parallel
    return math.ceil(model.vocab_size / multiple) * multiple


def in_flight(layout: Layout) -> int:
    """Micro-batches whose activations the first pipeline stage keeps at a time."""
    return min(_training(layout).pipeline_parallel, layout.micro_batches)


def bubble(layout: Layout) -> float:
    """Return the part of a step in which a pipeline stage waits: (p - 1) / (m + p - 1).

    Source: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using
    Megatron-LM" (arXiv 2104.04473), section 2.2; not interleaved.
    """
    waiting = _training(layout).pipeline_parallel - 1
    return waiting / (layout.micro_batches + waiting)


def memory_of(layout: Layout) -> Memory:
    """Add up what the fullest GPU has: one of the first stage, or of the last one with the head."""
    last = _memory(layout, layers_in_flight=1, is_last=True)
    if _training(layout).pipeline_parallel == 1:
        return last
    first = _memory(layout, layers_in_flight=in_flight(layout), is_last=False)
    return max(first, last, key=lambda memory: memory.total)


def _memory(layout: Layout, *, layers_in_flight: int, is_last: bool) -> Memory:
    training, model = _training(layout), _model(layout)
    stages = training.pipeline_parallel
    parameters = stage_parameters(layout)
    sharing = layout.data_ranks * training.context_parallel
    optimizer = _OPTIMIZER / (sharing if training.distributed_optimizer else 1)
    tokens = layout.rows * training.sequence_length / training.context_parallel
    kept, whole = _layer_bytes(training, model)
    activations = kept * model.layers / stages * layers_in_flight + (whole - kept)
    logits = 0.0
    if is_last:
        vocabulary = padded_vocabulary(model, training.tensor_parallel)
        logits = tokens * _LOGIT * vocabulary / training.tensor_parallel
    return Memory(
        weights=_WEIGHT * parameters,
        gradients=_GRADIENT * parameters,
        optimizer=optimizer * parameters,
        gathered=0.0,
        activations=tokens * activations,
        logits=logits,
        offloaded=0.0,
        staged=0.0,
    )


def stage_parameters(layout: Layout) -> float:
    """Parameters on a GPU of the first or last stage, each of which has an embedding."""
    training, model = _training(layout), _model(layout)
    embedding = padded_vocabulary(model, training.tensor_parallel) * model.hidden_size
    blocks = layout.block_parameters * model.layers / training.pipeline_parallel
    is_whole = training.pipeline_parallel == 1 and not model.tied_embeddings
    return (blocks + embedding * (2 if is_whole else 1)) / training.tensor_parallel


def _layer_bytes(training: MegatronTraining, model: LanguageModel) -> tuple[float, float]:
    """Return what a layer keeps of a token for backward, and what its own backward needs at a time.

    h (18 + 4 F / h) / t where norms are divided too, else h (10 + (8 + 4 F / h) / t). Computed
    again, it keeps its input alone.
    """
    split, h = training.tensor_parallel, model.hidden_size
    divided = h * (8 + 4 * model.ffn_size / h) / split
    if training.splits_sequences:
        whole, stored = divided + 10 * h / split, BF16_BYTES * h / split
    else:
        whole, stored = divided + 10 * h, float(BF16_BYTES * h)
    return (stored if _recomputes(training) else whole), whole


def checkpoint_bytes(layout: Layout) -> float:
    """Add up bf16 weights, and fp32 weights and moments. Source: Megatron-LM, torch_dist."""
    return float((_WEIGHT + _OPTIMIZER) * _model(layout).num_parameters)


def assumed_mfu(layout: Layout) -> float | None:
    """Return the part of the peak that the plan counts on, the pipeline's bubble taken off.

    It is that of FSDP training with torch.compile: Megatron-LM's README has 41 % for 2 B parameters
    on H100, and more for larger models.
    """
    figures = layout.instance.gpu_figures
    if figures is None:
        return None
    mfu = figures.assumed_mfu * math.pow(_SPLIT_PRODUCTS, math.log2(layout.tensor_parallel))
    mfu *= _FULL_CHECKPOINTING if _recomputes(_training(layout)) else 1
    return mfu * (1 - bubble(layout))


def step_time(layout: Layout) -> StepTime:
    """Return the step: computing with its bubble, products' exchange, and gradients beside it."""
    training, instance = _training(layout), layout.instance
    figures = instance.gpu_figures
    mfu = assumed_mfu(layout)
    assert figures is not None, "machines without NVIDIA GPUs are refused"
    assert mfu is not None
    peak = (instance.peak_tflops_bf16 or UNKNOWN_PEAK_TFLOPS) * 1e12
    flops = flops_per_sample(layout.recipe) / training.processes_per_sample
    links = figures.link_gb_per_s * 1e9
    network = instance.network_gbps / 8 * 1e9 * _NETWORK_EFFICIENCY
    return StepTime(
        computing=layout.rows_per_step * flops / (mfu * peak),
        network=_crossing_bytes(layout) / network,
        links=(_gradient_bytes(layout) + _passed_bytes(layout)) / links,
        decoding=0.0,
        host=0.0,
        splitting=split_bytes(layout) / links,
    )


def split_bytes(layout: Layout) -> float:
    """Return the bytes that a GPU receives in a step from those that split its products.

    Each layer gathers its rows twice and shares out the sums twice, forward and again backward, and
    once more where it is computed again; embedding and head exchange once each way. Source:
    Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models" (arXiv
    2205.05198), section 4.2.2; the same bytes without sequence parallelism.
    """
    training, model = _training(layout), _model(layout)
    size = training.tensor_parallel
    if size == 1:
        return 0.0
    passes = 3 if _recomputes(training) else 2
    exchanges = 4 * passes * model.layers / training.pipeline_parallel + 4
    tokens = layout.rows_per_step * training.sequence_length / training.context_parallel
    return exchanges * tokens * model.hidden_size * BF16_BYTES * (size - 1) / size


def _crossing_bytes(layout: Layout) -> float:
    """Return the bytes that enter a node in a step: gradients, and activations for a stage.

    Ranks are numbered by tensor, context, data, and last by pipeline: a stage is a block of
    neighbours. A ring for each share of the products crosses a node's border once. Source:
    Megatron-LM, megatron/core/parallel_state.py, order="tp-cp-ep-dp-pp".
    """
    training = _training(layout)
    if layout.nodes == 1:
        return 0.0
    stage = layout.processes // training.pipeline_parallel
    rings = training.tensor_parallel if stage > layout.processes_per_node else 0
    passed = _stage_bytes(layout) * min(stage, layout.processes_per_node)
    return rings * _gradient_bytes(layout) + passed


def _stage_bytes(layout: Layout) -> float:
    """Return the bytes that a GPU receives in a step from the stages before and after it."""
    training, model = _training(layout), _model(layout)
    if training.pipeline_parallel == 1:
        return 0.0
    shares = training.context_parallel
    shares *= training.tensor_parallel if training.splits_sequences else 1
    tokens = layout.rows_per_step * training.sequence_length / shares
    return 2 * tokens * model.hidden_size * BF16_BYTES


def _passed_bytes(layout: Layout) -> float:
    """Return the bytes of keys and values passed round, forward and, with gradients, backward."""
    training, model = _training(layout), _model(layout)
    parts = training.context_parallel
    width = 2 * model.kv_heads * model.head_dim * BF16_BYTES / training.tensor_parallel
    tokens = layout.rows_per_step * training.sequence_length * (parts - 1) / parts
    return 3 * model.layers / training.pipeline_parallel * tokens * width


def _gradient_bytes(layout: Layout) -> float:
    """Return the bytes that a GPU receives in a step of gradients and of weights that come back."""
    training = _training(layout)
    ranks = layout.data_ranks * training.context_parallel
    back = _WEIGHT if training.distributed_optimizer else _GRADIENT
    return stage_parameters(layout) * (_GRADIENT + back) * (ranks - 1) / ranks


def _training(layout: Layout) -> MegatronTraining:
    training = layout.recipe.training
    assert isinstance(training, MegatronTraining)
    return training


def _model(layout: Layout) -> LanguageModel:
    assert isinstance(layout.recipe.model, LanguageModel)
    return layout.recipe.model


def _recomputes(training: MegatronTraining) -> bool:
    return training.activation_checkpointing == "full"

"""What training holds on each GPU, or in each CPU process, in bytes by what holds them. Pure.

A test traces the trainer's own models with torch's trackers on tensors without memory and compares.
The parts reach their peaks at different moments of a step; their sum errs on the high side, by one
block or the logits at most.

With tensor parallelism all of a block is split, but each rank gathers whole the rows that its
products read: H e before attention, and H e before the feed-forward part. With context parallelism
a rank has a part of each sequence's tokens, and in attention the keys and values of all. With
expert parallelism it gathers its own experts only, and computes as many rows as tokens of all ranks
choose these: more than the mean on the busiest rank, which is the one that must fit.

Legend, in bytes a token: H hidden size (for attention, its heads together), I inner size of the
feed-forward part, e 2 (bf16) or 4 (fp32), s bytes of the residual stream, r key/value heads for
each head, k experts a token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from stationmaster.domain.catalogue.models import ImageModel, LanguageModel
from stationmaster.domain.catalogue.training_config import TrainingConfig
from stationmaster.domain.planning.estimate import defers_gradient_exchange, tokens_per_sample
from stationmaster.domain.planning.layout import BF16_BYTES, FP32_BYTES, Layout

GIB: Final = 2**30

# Part of GPU memory that CUDA's context, NCCL's buffers and fragmentation leave to training; of
# host memory, what the system, the data loader and the other pods leave.
_USABLE_GPU: Final = 0.92
_USABLE_HOST: Final = 0.8

# The loss reads the logits in pieces of at most 2**27 fp32 values, two such pieces at a time.
_LOSS_WORKING_BYTES: Final = 2 * 4 * 2**27

PARTS: Final = "weights", "gradients", "optimizer", "gathered", "activations", "logits", "graphs"
"""What is on a GPU, by the names of the fields."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """Bytes on one GPU (or in one CPU process), and what cpu_offload moves to host memory."""

    weights: float
    """The rank's fp32 weights."""
    gradients: float
    """The rank's fp32 gradients."""
    optimizer: float
    """The rank's optimizer state: two fp32 moments with AdamW, one with SGD's momentum."""
    gathered: float
    """Weights gathered from other ranks or cast for computing, and gradients on their way back."""
    activations: float
    """What forward keeps for backward, and what one block's backward needs."""
    logits: float
    """The head's output, its gradient (written over it, or beside it), and the loss at work."""
    offloaded: float
    """In host memory, for each process."""
    staged: float
    """In host memory, for each process: the copy of the state that checkpoints are written from."""
    graphs: float = 0.0
    """What evaluations and exports take while CUDA graphs keep the memory of a step for themselves.
    """

    @property
    def total(self) -> float:
        """The sum of what is on the GPU."""
        return float(sum(getattr(self, name) for name in PARTS))

    @property
    def in_host_memory(self) -> float:
        """The bytes in host memory beside a GPU, for each process."""
        return self.offloaded + self.staged


def available_bytes(layout: Layout) -> float:
    """Return what training may use of one GPU, or of host memory in one CPU process."""
    if layout.recipe.needs_gpu:
        return GIB * layout.instance.gpu_memory_gib * _USABLE_GPU
    return available_host_bytes(layout)


def available_host_bytes(layout: Layout) -> float:
    """Return what each process may use of its node's memory."""
    return GIB * layout.instance.memory_gib * _USABLE_HOST / layout.processes_per_node


def state_bytes(training: TrainingConfig) -> int:
    """Return the bytes of optimizer state for each parameter."""
    if training.optimizer == "adamw":
        return 2 * FP32_BYTES
    return FP32_BYTES if training.momentum else 0


def checkpoint_bytes(layout: Layout) -> float:
    """Size of one checkpoint on the file system: fp32 weights and optimizer state."""
    recipe = layout.recipe
    return recipe.model.num_parameters * float(FP32_BYTES + state_bytes(recipe.own_training))


def memory_of(layout: Layout) -> Memory:
    """Add up every part."""
    model, training = layout.recipe.model, layout.recipe.own_training
    of_rank = model.num_parameters / layout.shards
    weights = FP32_BYTES * of_rank
    optimizer = state_bytes(training) * of_rank
    moved = 2 * weights + optimizer if layout.offloads else 0.0
    if isinstance(model, ImageModel):
        activations, logits = layout.rows * layout.compute_bytes * kept_elements(layout), 0.0
    else:
        activations, logits = _activations(layout, model), _logits(layout, model)
    return Memory(
        weights=0.0 if moved else weights,
        gradients=0.0 if moved else weights,
        optimizer=0.0 if moved else optimizer,
        gathered=_gathered(layout),
        activations=activations,
        logits=logits,
        offloaded=moved,
        staged=_staged(layout),
    )


def _staged(layout: Layout) -> float:
    """Return weights and optimizer state once more, in memory kept from one save to the next.

    Of ranks that have all of it, rank 0 alone copies, on a node that it shares with others.
    """
    size = checkpoint_bytes(layout) / layout.shards
    return size / layout.processes_per_node if layout.shards == 1 else size


def _gathered(layout: Layout) -> float:
    """Add up weights that are whole for some moments, and gradients before they are shared out.

    Under DDP in bf16, autocast keeps a cast copy of every weight. FSDP keeps the root group (the
    embeddings and the head) whole from forward to the end of backward, with its gradients. Of
    blocks it holds the one that computes and the next, a buffer that the next is received in, the
    gradients of one, and their fp32 copy that is reduced.
    """
    num_parameters, split = layout.recipe.model.num_parameters, layout.tensor_parallel
    e = layout.compute_bytes
    if not layout.is_wrapped:
        return float(e * num_parameters if e == BF16_BYTES else 0)
    if defers_gradient_exchange(num_parameters, layout.recipe.own_training.parallelism):
        waiting = FP32_BYTES if layout.micro_batches > 1 else 0
        return float((e + waiting) * layout.gathered_parameters) / split
    root = 2 * e * layout.root_parameters
    return float(root + (4 * e + FP32_BYTES) * layout.block_parameters) / split


def forward_alone_bytes(layout: Layout) -> float:
    """Return what a forward pass without backward takes of a sharded language model, without
    logits.

    Of weights it holds the root group, the block that computes, the next, and a buffer that the
    next is received in; of activations at most what a block keeps for backward.
    """
    model = layout.recipe.model
    assert isinstance(model, LanguageModel)
    gathered = layout.root_parameters + 3 * layout.block_parameters
    weights = layout.compute_bytes * gathered / layout.tensor_parallel
    return weights + _tokens(layout) * _whole_block(layout, model)


def _activations(layout: Layout, model: LanguageModel) -> float:
    training = layout.recipe.own_training
    e, stream = layout.compute_bytes, _stream_bytes(layout)
    split, busiest = layout.tensor_parallel, layout.busiest
    whole_block = _whole_block(layout, model)
    gathered, attended = _gathered_keys(layout, model), _attended_keys(layout, model)
    match training.activation_checkpointing:
        case "off":
            kept = whole_block
        case "selective":
            kept = _kept_selectively(model, e=e, stream=stream, busiest=busiest) / split
            kept += _travelling(layout, model)
        case "full":
            kept = float(stream * model.hidden_size) / split
    if training.compile and training.activation_checkpointing != "off":
        kept += gathered / split  # the compiler never repeats an exchange
    # While one block's backward runs: what its forward, run again, adds to what was kept, and the
    # gradients of the feed-forward part's products and of the stream.
    ffn = max(1, model.experts_per_token) * busiest * model.ffn_size
    backward = whole_block - kept + (2 * e * ffn + 4 * model.hidden_size) / split
    # Gradients of keys and values as attention reads them, and in the order of the ranks.
    backward += (attended + gathered) / split
    backward += 2 * _travelling(layout, model) + _scores(layout, model)[1]
    # Before that, the final norm keeps its input in fp32, its output, and what the head reads.
    norm = ((4 + stream) / split + e) * model.hidden_size
    return _tokens(layout) * (model.layers * kept + max(backward, norm))


def _tokens(layout: Layout) -> float:
    """Return the tokens of a forward pass, on one rank."""
    return layout.rows * tokens_per_sample(layout.recipe) / layout.context_parallel


def _masked(layout: Layout) -> int:
    """Return the tokens of a row of attention's mask; 0 without one."""
    has_mask = getattr(layout.recipe.training, "document_mask", False)
    return tokens_per_sample(layout.recipe) if has_mask else 0


def _whole_block(layout: Layout, model: LanguageModel) -> float:
    """Return all that a block's forward keeps of a token for backward, nothing computed again."""
    e, masked, compiled = layout.compute_bytes, _masked(layout), layout.recipe.own_training.compile
    about = {"e": e, "stream": _stream_bytes(layout), "masked": masked}
    whole = _kept_by_block(model, compiled=compiled, busiest=layout.busiest, **about)
    whole += _scores(layout, model)[0] + model.scan_bytes
    read_whole = 2 * e * model.hidden_size + e * masked  # by the products, and attention's mask
    parts = layout.context_parallel
    others = _attended_keys(layout, model) * (parts - 1) / parts
    return read_whole + (whole + others - read_whole) / layout.tensor_parallel


def _scores(layout: Layout, model: LanguageModel) -> tuple[float, float]:
    """Count a token's with all others, for each head: kept by unfused attention, and in backward.

    Traced with Gemma 2: a block keeps them as products, capped, and in fp32 from softmax, and its
    backward needs (e + 4) bytes more for each. GPT-OSS keeps what its softmax gives; on an H200 its
    backward needed 5.6 bytes more for each, in bf16.
    """
    if model.fused_attention or not model.num_attending:
        return 0.0, 0.0
    e, pairs = layout.compute_bytes, float(model.heads * tokens_per_sample(layout.recipe))
    kept, more = (2 * e + 4, e + 4) if model.fp32_softmax else (e, 3 * e)
    return pairs * kept, pairs * more


def _attended_keys(layout: Layout, model: LanguageModel) -> float:
    """Return the same as attention reads them: with a mask, repeated for every head."""
    repeated = model.heads / model.kv_heads if _masked(layout) else 1
    return _gathered_keys(layout, model) * repeated


def _gathered_keys(layout: Layout, model: LanguageModel) -> float:
    """Return the keys and values of all parts of a sequence, for each of this rank's own tokens."""
    if layout.context_parallel == 1:
        return 0.0
    width = model.attention_width * model.kv_heads / model.heads
    return 2 * layout.compute_bytes * width * layout.context_parallel


def _travelling(layout: Layout, model: LanguageModel) -> float:
    """Return 2 e k H: rows as they arrive from other ranks, and results as they return; or
    gradients.

    Selective checkpointing keeps both; in a block's backward they are there with their gradients.
    """
    if layout.expert_parallel == 1:
        return 0.0
    rows = model.experts_per_token * (1 + layout.busiest)
    return rows * layout.compute_bytes * model.hidden_size


def _stream_bytes(layout: Layout) -> int:
    """Return s: autocast leaves the residual stream and norms in fp32; FSDP casts them too."""
    return layout.compute_bytes if layout.is_wrapped else FP32_BYTES


def _attention(model: LanguageModel, *, e: int, masked: int = 0) -> float:
    """Add up queries, keys, values and attention's result, and its fp32 sums of exponentials.

    With a mask, for sequences of `masked` tokens: a row of it in each block, as its kernel keeps
    it, and keys and values repeated for every head.
    """
    shared = 1.0 if masked else model.kv_heads / model.heads
    return e * ((2 + 2 * shared) * model.attention_width + masked) + 4 * model.heads


def _kept_by_block(
    model: LanguageModel, *, compiled: bool, e: int, stream: int, masked: int, busiest: float
) -> float:
    """Return (8 + 2 s + 2 e) H for norms and what linear layers read, attention, 4 e k I.

    Each of two norms keeps its input in fp32 and its output. Autocast casts what the five linear
    layers read one by one. SwiGLU keeps gate, up, silu(gate) and the product; experts also what
    they read and return. Compiled, norms and silu(gate) are computed again: s H + 3 e H, attention,
    3 e k I.
    """
    if compiled:
        norms_and_reads = stream + 3 * e
    else:
        norms_and_reads = 2 * (4 + stream) + (5 if stream > e else 2) * e
    inner = (3 if compiled else 4) * max(1, model.experts_per_token) * model.ffn_size
    experts = 2 * model.experts_per_token * model.hidden_size if model.experts else 0
    attention = _attention(model, e=e, masked=masked)
    return norms_and_reads * model.hidden_size + attention + busiest * e * (inner + experts)


def _kept_selectively(model: LanguageModel, *, e: int, stream: int, busiest: float = 1.0) -> float:
    """Return s H + 2 e H, attention, 2 e k I: the block's input and every matrix product's result.

    What attention reads of them (rotated, repeated, a mask) is made again in backward.
    """
    input_and_results = (stream + 2 * e) * model.hidden_size
    # Experts return k rows a token, where a dense block's one is among the 2 e H.
    experts = e * (model.experts_per_token - 1) * model.hidden_size if model.experts else 0
    feed_forward = 2 * e * max(1, model.experts_per_token) * busiest * model.ffn_size
    return input_and_results + _attention(model, e=e) + feed_forward + experts


def _logits(layout: Layout, model: LanguageModel) -> float:
    values = layout.rows * tokens_per_sample(layout.recipe) * model.vocab_size
    values //= layout.processes_per_sample
    working = min(2 * FP32_BYTES * values, _LOSS_WORKING_BYTES)
    # The head of a model of the hub may need its result for its own backward.
    held = 5 if model.capped_logits else 2 if model.family == "hub" else 1
    return float(held * layout.compute_bytes * values + working)


def kept_elements(layout: Layout) -> float:
    """Return the numbers that an image model's forward pass keeps of one image."""
    model = layout.recipe.model
    size: int = getattr(layout.recipe.training, "image_size", 0)
    assert isinstance(model, ImageModel)
    return model.kept_elements_per_pixel * size**2

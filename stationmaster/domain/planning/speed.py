"""How long an optimizer step takes: the slowest of computing, exchanging and decoding. Pure.

Everything assumed has its source beside it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from stationmaster.domain.catalogue.models import ImageModel, LanguageModel
from stationmaster.domain.catalogue.training_config import ImageTraining
from stationmaster.domain.planning.estimate import (
    defers_gradient_exchange,
    flops_per_sample,
    flops_per_token,
    tokens_per_sample,
)
from stationmaster.domain.planning.layout import FP32_BYTES, Layout
from stationmaster.domain.planning.memory import kept_elements

# torchtitan's Llama 3.1 8B on 8 H100: 5,762 tokens/s a GPU without torch.compile, 6,667 with it.
_WITHOUT_COMPILE: Final = 0.86
# With products in float8 as well it is 8,532. Without torch.compile, casts and scales are kernels
# of their own; torchao's documentation calls it necessary, and nothing is counted then.
_FLOAT8: Final = 1.28
# Full checkpointing computes each block's forward pass twice; MFU counts three of four passes.
_FULL_CHECKPOINTING: Final = 0.75
# Products of experts are smaller, and their rows uneven; assumed.
_EXPERTS: Final = 0.7
# Products split over two GPUs reach about this part of what whole ones do, and so on for every
# further doubling: fitted, with the exchange that nothing hides, to torchtitan's Llama 3.1 8B on
# 64 H100, tensor parallel 8 x FSDP 8 in bf16: 4,378 tokens/s a GPU (June 2025).
_SPLIT_PRODUCTS: Final = 0.94
# Large float32 products reach about this part of the peak of a GPU without TF32; assumed.
_FP32_UTILISATION: Final = 0.6
# Where the vendor's dense bf16 peak is not known: that of the L40S, the nearest known part.
UNKNOWN_PEAK_TFLOPS: Final = 362.0

# Convolutions with batch normalisation are bound by memory: each number kept for backward is moved
# about this often. From NVIDIA's EfficientNet-B0 and B4 (2,489 and 331 images/s on an A100 with
# 2,039 GB/s, mixed precision; 18.2 and 19.2 times) and timm's ResNet-50 (2,600 images/s; 17.9).
_MOVES_OF_A_KEPT_NUMBER: Final = 19

# A CPU process sustains about this many GFLOP/s in fp32 (6.45 M parameters at 2,500 tokens/s on
# one AVX-512 core: 6 x 6.45e6 x 2500).
CPU_GFLOPS_PER_PROCESS: Final = 97.0

# What a forward and backward pass takes at least: Python starting its operations, and the
# collectives' round trips; assumed.
_FIXED_S: Final = 0.02

# Part of a node's network that large collectives sustain. AWS's NCCL test logs: 343 of 400 GB/s at
# the 256 MB messages of a block on 2 x p5; single-EFA nodes about 0.7 of their line rate.
_NETWORK_EFFICIENCY: Final = 0.7

# cpu_offload: 12 GB/s to the host and back in each process, and AdamW reading and writing 28 bytes
# a parameter in host memory at 20 GB/s; assumed.
_HOST_LINK_BYTES_PER_S: Final = 12e9
_HOST_OPTIMIZER_S_PER_PARAMETER: Final = 28 / 20e9

# Decoding and cropping one 500 x 375 JPEG with Pillow on one core: 2.9 ms to 224 pixels a side,
# 5.7 ms to 600 (measured on a Xeon).
_DECODE_S: Final = 2.4e-3
_DECODE_S_PER_PIXEL: Final = 9.3e-9


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTime:
    """Seconds of one optimizer step, by what they go into; exchanges run beside computing."""

    computing: float
    network: float
    """Between nodes."""
    links: float
    """Between the GPUs of a node: NVLink or PCIe."""
    decoding: float
    """Images on the node's CPUs, ahead of the step."""
    host: float
    """What cpu_offload adds; nothing hides it."""
    splitting: float = 0.0
    """What GPUs that split products exchange between them; nothing hides it."""
    sharing: float = 0.0
    """What GPUs that share a sequence exchange in its attention; nothing hides it."""
    travelling: float = 0.0
    """Tokens that go to experts of other GPUs, and back; nothing hides it."""

    @property
    def total(self) -> float:
        """The seconds of the step."""
        hidden = max(self.computing, self.network, self.links, self.decoding)
        exchanged = self.splitting + self.sharing + self.travelling
        return hidden + self.host + exchanged

    @property
    def limited_by(self) -> str:
        """What decides, in words."""
        beside = {
            "computing": self.computing,
            "the network between nodes": self.network,
            "the links between GPUs": self.links,
            "decoding images": self.decoding,
        }
        times = beside | self._after_computing
        return max(times, key=lambda name: times[name])

    @property
    def longest_addition(self) -> str:
        """What takes longest of all that nothing hides, in words."""
        times = self._after_computing
        return max(times, key=lambda name: times[name])

    @property
    def _after_computing(self) -> dict[str, float]:
        return {
            "moving weights to host memory": self.host,
            "exchanging activations between the GPUs of a sample": self.splitting,
            "exchanging keys and values between the GPUs of a sequence": self.sharing,
            "sending tokens to their experts": self.travelling,
        }


def step_time(layout: Layout) -> StepTime:
    """Add up every part."""
    links = splitting = 0.0
    if layout.processes_per_node > 1:
        links, splitting = (_linked_s(layout, of(layout)) for of in (_linked_bytes, split_bytes))
    return StepTime(
        computing=max(
            layout.micro_batches * _FIXED_S, layout.rows_per_step * _sample_s(layout)
        ),
        network=_crossing_bytes(layout) / _network_bytes_per_s(layout),
        links=links,
        decoding=layout.rows_per_step * _decoding_s(layout),
        host=_host_s(layout),
        splitting=splitting,
        sharing=_sharing_s(layout),
        travelling=_travelling_s(layout),
    )  # fmt: skip


def assumed_mfu(layout: Layout) -> float | None:
    """Return the part of the peak at its precision that the plan counts on; None for another
    estimate.

    Precisions are bf16, and fp32 on TF32 tensor cores. Where products are in float8 and the rest is
    not, there is no one peak.
    """
    return None if layout.multiplies_in_float8 else _utilisation(layout)


def _utilisation(layout: Layout) -> float | None:
    """Return the same, with float8's gain counted as use of the bf16 peak."""
    figures = layout.instance.gpu_figures
    model, training = layout.recipe.model, layout.recipe.own_training
    if not layout.recipe.needs_gpu or figures is None or isinstance(model, ImageModel):
        return None
    mfu = figures.assumed_mfu if figures.has_bf16 else _FP32_UTILISATION
    mfu *= 1 if training.compile else _WITHOUT_COMPILE
    mfu *= _FLOAT8 if layout.multiplies_in_float8 and training.compile else 1
    mfu *= math.pow(_SPLIT_PRODUCTS, math.log2(layout.tensor_parallel))
    mfu *= _FULL_CHECKPOINTING if training.activation_checkpointing == "full" else 1
    mfu *= _EXPERTS if model.experts else 1
    return mfu / _slowest(layout, model)


def _slowest(layout: Layout, model: LanguageModel) -> float:
    """Return how much longer than the mean the rank computes whose experts get most rows."""
    length = tokens_per_sample(layout.recipe)
    own = 6.0 * model.expert_parameters * model.experts_per_token / max(1, model.experts)
    part = own / flops_per_token(model, sequence_length=length)
    return 1 + part * (layout.busiest - 1)


def _sample_s(layout: Layout) -> float:
    """Return the seconds that a rank computes for one sample, forward and backward."""
    recipe = layout.recipe
    figures = layout.instance.gpu_figures
    flops = flops_per_sample(recipe) / layout.processes_per_sample
    if not recipe.needs_gpu or figures is None:
        return flops / (CPU_GFLOPS_PER_PROCESS * 1e9)
    if (mfu := _utilisation(layout)) is not None:
        bf16 = layout.instance.peak_tflops_bf16 or UNKNOWN_PEAK_TFLOPS
        peak = bf16 if layout.compute == "bf16" else figures.tflops_fp32
        return flops / (mfu * peak * 1e12)
    moved = _MOVES_OF_A_KEPT_NUMBER * layout.compute_bytes * kept_elements(layout)
    moving = moved / (figures.memory_gb_per_s * 1e9)
    if layout.compute == "bf16":
        return moving
    return max(moving, flops / (_FP32_UTILISATION * figures.tflops_fp32 * 1e12))


def _exchanged_bytes(layout: Layout, num_parameters: float) -> float:
    """Return the bytes that a rank receives in a step to gather weights and share out gradients.

    Where ranks split products, it is what those of one sample receive together.
    """
    parallelism = layout.recipe.own_training.parallelism
    if parallelism == "ddp":
        return 2.0 * FP32_BYTES * num_parameters
    e = layout.compute_bytes
    if defers_gradient_exchange(layout.recipe.model.num_parameters, parallelism):
        return (e + FP32_BYTES) * num_parameters
    # Gathered for forward and again for backward, and fp32 gradients reduced, in each pass.
    return layout.micro_batches * (2 * e + FP32_BYTES) * num_parameters


def _linked_bytes(layout: Layout) -> float:
    """Return the bytes that a rank gets from its own node: its part of every weight."""
    neighbours = layout.processes_per_node // layout.tensor_parallel
    whole = layout.recipe.model.num_parameters - layout.shared_parameters
    received = _exchanged_bytes(layout, whole) / layout.tensor_parallel
    same_experts = layout.processes_per_node // layout.near_experts
    own = _exchanged_bytes(layout, layout.shared_parameters / layout.expert_parallel)
    return received * (neighbours - 1) / neighbours + own * (same_experts - 1) / same_experts


def split_bytes(layout: Layout) -> float:
    """Return the bytes that a rank receives in a step from those that split products with it.

    Each block gathers the rows of its sequence twice and shares out the sums twice, forward and
    again backward, and once more where it is computed again; embedding and head exchange once each
    way. The numbers of the loss are few.
    """
    model, size = layout.recipe.model, layout.tensor_parallel
    if size == 1 or isinstance(model, ImageModel):
        return 0.0
    passes = 2 if layout.recipe.training.activation_checkpointing == "off" else 3
    exchanges = 4 * passes * model.layers + 4
    rows = layout.rows_per_step * tokens_per_sample(layout.recipe) / layout.context_parallel
    return exchanges * rows * model.hidden_size * layout.compute_bytes * (size - 1) / size


def shared_bytes(layout: Layout) -> float:
    """Return the bytes that a rank receives in a step from those that share its sequences.

    Each block gathers the keys and values of the other parts, and shares out their gradients; what
    is computed again for want of memory is gathered again, except by compiled blocks.
    """
    model, parts = layout.recipe.model, layout.context_parallel
    if parts == 1 or isinstance(model, ImageModel):
        return 0.0
    training = layout.recipe.own_training
    again = training.activation_checkpointing != "off" and not training.compile
    keys_and_values = 2 * model.attention_width * model.kv_heads / model.heads
    of_sequence = tokens_per_sample(layout.recipe) * keys_and_values * layout.compute_bytes
    exchanged = of_sequence / layout.tensor_parallel * (parts - 1) / parts
    return (3 if again else 2) * model.layers * layout.rows_per_step * exchanged


def shares_over_nodes(layout: Layout) -> bool:
    """Say whether the GPUs that share a sequence are of more than one node."""
    return layout.context_parallel > 1 and layout.processes_per_sample > layout.processes_per_node


def _sharing_s(layout: Layout) -> float:
    """Return the seconds: over a node's links, or once into each node that shares a sequence."""
    if shares_over_nodes(layout):
        return shared_bytes(layout) * layout.tensor_parallel / _network_bytes_per_s(layout)
    return _linked_s(layout, shared_bytes(layout))


def travelling_bytes(layout: Layout) -> float:
    """Return the bytes that the busiest rank receives in a step: rows for its experts, and results.

    Two exchanges a block in forward, two in backward; full checkpointing repeats the first two.
    """
    model, size = layout.recipe.model, layout.expert_parallel
    if size == 1 or isinstance(model, ImageModel):
        return 0.0
    exchanges = 6 if layout.recipe.own_training.activation_checkpointing == "full" else 4
    tokens = layout.rows_per_step * tokens_per_sample(layout.recipe) / layout.context_parallel
    rows = tokens * model.experts_per_token
    sent = exchanges * model.layers * rows * model.hidden_size * layout.compute_bytes
    return sent * layout.busiest * (size - 1) / size


def travelling_between_nodes(layout: Layout) -> float:
    """Return the part of these bytes that comes from other nodes."""
    size, near = layout.expert_parallel, layout.near_experts
    return travelling_bytes(layout) * (size - near) / max(1, size - 1)


def _travelling_s(layout: Layout) -> float:
    """Add up exchanges, each of which waits for the slower of links and network."""
    from_others = travelling_between_nodes(layout)
    seconds = from_others * layout.processes_per_node / _network_bytes_per_s(layout)
    return seconds + _linked_s(layout, travelling_bytes(layout) - from_others)


def _linked_s(layout: Layout, num_bytes: float) -> float:
    """Return the seconds that so much takes over a node's links; on CPUs, none."""
    figures = layout.instance.gpu_figures if layout.recipe.needs_gpu else None
    return num_bytes / (figures.link_gb_per_s * 1e9) if figures is not None else 0.0


def _network_bytes_per_s(layout: Layout) -> float:
    return layout.instance.network_gbps / 8 * 1e9 * _NETWORK_EFFICIENCY


def _crossing_bytes(layout: Layout) -> float:
    """Return the bytes that enter each node: a ring over all ranks crosses its border once."""
    if layout.nodes == 1:
        return 0.0
    elsewhere = (layout.nodes - 1) / layout.nodes
    if layout.recipe.own_training.parallelism == "hybrid":
        # The shards of a node are all of the gradients, reduced and spread once a step.
        return 2 * FP32_BYTES * layout.recipe.model.num_parameters * elsewhere
    whole = layout.recipe.model.num_parameters - layout.shared_parameters
    # Where a group spans nodes, each of them gathers the experts of its own ranks only.
    part = layout.near_experts / layout.expert_parallel
    alike = layout.nodes * part
    own = _exchanged_bytes(layout, layout.shared_parameters * part)
    return _exchanged_bytes(layout, whole) * elsewhere + own * (alike - 1) / alike


def _decoding_s(layout: Layout) -> float:
    """Return seconds a sample that a rank's decoding threads need; they share the node's cores."""
    training = layout.recipe.training
    if not isinstance(training, ImageTraining):
        return 0.0
    cores = layout.instance.vcpus / 2 / layout.processes_per_node
    threads = max(1.0, min(float(training.data_workers), cores))
    return (_DECODE_S + _DECODE_S_PER_PIXEL * training.image_size**2) / threads


def _host_s(layout: Layout) -> float:
    if not layout.offloads:
        return 0.0
    of_rank = layout.recipe.model.num_parameters / layout.shards
    moved = layout.micro_batches * 3 * FP32_BYTES * of_rank / _HOST_LINK_BYTES_PER_S
    return moved + of_rank * _HOST_OPTIMIZER_S_PER_PARAMETER

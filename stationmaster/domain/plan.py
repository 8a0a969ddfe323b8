"""What a request would create, whether it fits in memory, how long it takes and what it costs.

Pure arithmetic on the catalogues; every constant names its source. The bot shows a plan before
anything is created, and `stationmaster plan --json` prints the same object.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from pydantic import BaseModel, ConfigDict

from stationmaster.domain.catalogue import get_recipe
from stationmaster.domain.errors import BadParameter
from stationmaster.domain.estimate import flops_per_sample, tokens_per_sample
from stationmaster.domain.instances import PRICES_AS_OF, InstanceType, get_instance
from stationmaster.domain.models import ImageModel
from stationmaster.domain.names import SYSTEM_INSTANCE_TYPE
from stationmaster.domain.recipes import Recipe

GIB: Final = 2**30
HOURS_PER_MONTH: Final = 730

# Amazon EKS charges 0.10 USD an hour for a control plane in standard support.
CLUSTER_USD_PER_HOUR: Final = 0.10
# FSx for Lustre PERSISTENT_2 SSD, us-east-1: USD a GiB-month by throughput tier (MB/s a TiB).
FILE_SYSTEM_USD_PER_GIB_MONTH: Final = {125: 0.145, 250: 0.210, 500: 0.340, 1000: 0.600}

# Typical provisioning times in seconds: EKS control plane 8-12 min, GPU node group 5-8 min and FSx
# 5-12 min side by side, plugins 2 min, validation 1 min, image pull and rendezvous 2 min.
CLUSTER_S: Final = 600
CAPACITY_S: Final = 480
PLUGINS_S: Final = 120
VALIDATION_S: Final = 60
JOB_START_S: Final = 120
TEARDOWN_S: Final = 900

# A CPU process of the demo sustains about this many GFLOP/s in fp32 (6.45 M parameters at 2,500
# tokens/s on one AVX-512 core: 6 x 6.45e6 x 2500).
CPU_GFLOPS_PER_PROCESS: Final = 97.0

# Bytes a parameter with fully sharded fp32 states and AdamW: weight, gradient, two moments.
WEIGHT_BYTES: Final = 4
GRADIENT_BYTES: Final = 4
OPTIMIZER_BYTES: Final = 8
# With full activation checkpointing a block keeps its bf16 input; while one block is recomputed it
# holds about 54 bytes for each token and hidden unit (traced on Llama 2 7B without checkpointing).
CHECKPOINTED_BYTES: Final = 2
RECOMPUTED_BYTES: Final = 54
# Logits are kept in bf16 and upcast to fp32 for the loss.
LOGIT_BYTES: Final = 6
# Part of GPU memory that CUDA, NCCL buffers and fragmentation take from training.
USABLE_GPU_FRACTION: Final = 0.92


class MemoryPerGpu(BaseModel):
    """GiB on one GPU, or for one process on a CPU recipe, by what holds them."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    logits: float
    total: float
    available: float


class Plan(BaseModel):
    """What `stationmaster plan` prints; field names are a contract."""

    model_config = ConfigDict(frozen=True)

    recipe: str
    instance_type: str
    nodes: int
    num_gpus: int
    processes: int
    parallelism: str
    fits: bool
    memory_per_gpu_gib: MemoryPerGpu
    price_per_hour_usd: float
    estimated_duration_s: int
    estimated_cost_usd: float
    tokens_per_s: float
    time_to_first_step_s: int
    will_create: list[str]
    warnings: list[str]


# Part of the peak FLOP/s that a well-kept FSDP run reaches.
ASSUMED_MFU: Final = 0.35


def processes_per_node(recipe: Recipe, instance: InstanceType) -> int:
    """Training processes on each node: the recipe's number, or one for each GPU."""
    return recipe.nproc_per_node or instance.num_gpus


def make_plan(
    recipe_name: str,
    *,
    nodes: int | None = None,
    instance_type: str | None = None,
    overrides: Mapping[str, str] | None = None,
    local_gpus: int | None = None,
) -> Plan:
    """Plan a request; `local_gpus` is the number of GPUs of the one machine that pods will run on.

    `local_gpus` is None where pods run on real nodes.

    Raises:
        UserError: an unknown recipe, instance or key, or a value that cannot work at all.
    """
    recipe = get_recipe(recipe_name).with_overrides(overrides or {})
    instance = get_instance(instance_type or recipe.default_instance)
    num_nodes = recipe.default_nodes if nodes is None else nodes
    _check_nodes(recipe, num_nodes)
    _check_accelerator(recipe, instance)
    processes = num_nodes * processes_per_node(recipe, instance)
    _check_batch(recipe, processes)

    memory = _memory(recipe, instance, processes=processes)
    fits = memory.total <= memory.available
    tokens_per_s = _tokens_per_s(recipe, instance, processes=processes)
    time_to_first_step_s = CLUSTER_S + CAPACITY_S + PLUGINS_S + VALIDATION_S + JOB_START_S
    samples = recipe.training.steps * recipe.training.global_batch_size
    duration_s = time_to_first_step_s + math.ceil(
        samples * tokens_per_sample(recipe) / tokens_per_s
    )
    price = hourly_price(recipe, instance, nodes=num_nodes)
    return Plan(
        recipe=recipe.name,
        instance_type=instance.name,
        nodes=num_nodes,
        num_gpus=num_nodes * instance.num_gpus if recipe.needs_gpu else 0,
        processes=processes,
        parallelism=f"FSDP full shard over {processes} processes",
        fits=fits,
        memory_per_gpu_gib=memory,
        price_per_hour_usd=round(price, 2),
        estimated_duration_s=duration_s,
        estimated_cost_usd=round(price * (duration_s + TEARDOWN_S) / 3600, 2),
        tokens_per_s=round(tokens_per_s, 1),
        time_to_first_step_s=time_to_first_step_s,
        will_create=_will_create(recipe, instance, nodes=num_nodes),
        warnings=_warnings(recipe, instance, memory=memory, fits=fits, local_gpus=local_gpus),
    )


def hourly_price(recipe: Recipe, instance: InstanceType, *, nodes: int) -> float:
    """USD an hour of everything that a run of this shape keeps alive."""
    return (
        CLUSTER_USD_PER_HOUR
        + node_group_price(get_instance(SYSTEM_INSTANCE_TYPE), nodes=1)
        + node_group_price(instance, nodes=nodes)
        + file_system_price(recipe.file_system_gib, recipe.file_system_mbps_per_tib)
    )


def node_group_price(instance: InstanceType, *, nodes: int) -> float:
    """USD an hour for `nodes` instances; 0 where the catalogue knows no price (a plan warns)."""
    return nodes * (instance.price_per_hour_usd or 0.0)


def file_system_price(storage_gib: int, mbps_per_tib: int) -> float:
    """USD an hour of one FSx for Lustre file system."""
    return storage_gib * FILE_SYSTEM_USD_PER_GIB_MONTH[mbps_per_tib] / HOURS_PER_MONTH


def _check_nodes(recipe: Recipe, nodes: int) -> None:
    if not 1 <= nodes <= recipe.max_nodes:
        raise BadParameter(
            f"nodes={nodes} is not possible for {recipe.name}; use 1 to {recipe.max_nodes}"
        )


def _check_accelerator(recipe: Recipe, instance: InstanceType) -> None:
    if instance.is_neuron:
        raise BadParameter(
            f"instance={instance.name} has Trainium accelerators and {recipe.name} needs CUDA; "
            f"use {recipe.default_instance}"
        )
    if recipe.needs_gpu and instance.num_gpus == 0:
        raise BadParameter(
            f"instance={instance.name} has no GPU and {recipe.name} needs one; "
            f"use {recipe.default_instance}"
        )


def _check_batch(recipe: Recipe, processes: int) -> None:
    batch = recipe.training.global_batch_size
    if batch % processes:
        nearest_valid = max(processes, round(batch / processes) * processes)
        raise BadParameter(
            f"global_batch_size={batch} does not divide over {processes} processes; "
            f"use {nearest_valid}"
        )


def _memory(recipe: Recipe, instance: InstanceType, *, processes: int) -> MemoryPerGpu:
    model, training = recipe.model, recipe.training
    if isinstance(model, ImageModel):
        return _image_memory(recipe, instance)
    tokens = tokens_per_sample(recipe) * training.micro_batch_size
    weights = WEIGHT_BYTES * model.num_parameters / processes
    gradients = GRADIENT_BYTES * model.num_parameters / processes
    optimizer = OPTIMIZER_BYTES * model.num_parameters / processes
    kept = CHECKPOINTED_BYTES * tokens * model.hidden_size * model.layers
    recomputed = RECOMPUTED_BYTES * tokens * model.hidden_size
    gathered_block = 2 * 2 * (model.num_parameters / max(1, model.layers))
    activations = kept + recomputed + gathered_block
    logits = LOGIT_BYTES * tokens * model.vocab_size
    if recipe.needs_gpu:
        available = instance.gpu_memory_gib * USABLE_GPU_FRACTION
    else:
        available = instance.memory_gib / processes_per_node(recipe, instance) * 0.8
    parts = {
        "weights": weights / GIB,
        "gradients": gradients / GIB,
        "optimizer": optimizer / GIB,
        "activations": activations / GIB,
        "logits": logits / GIB,
    }
    rounded = {name: round(value, 3) for name, value in parts.items()}
    return MemoryPerGpu(
        **rounded, total=round(sum(parts.values()), 3), available=round(available, 1)
    )


def _image_memory(recipe: Recipe, instance: InstanceType) -> MemoryPerGpu:
    available = instance.gpu_memory_gib if recipe.needs_gpu else instance.memory_gib
    state = 4 * recipe.model.num_parameters / GIB
    return MemoryPerGpu(
        weights=state,
        gradients=state,
        optimizer=state,
        activations=0,
        logits=0,
        total=3 * state,
        available=available,
    )


def _tokens_per_s(recipe: Recipe, instance: InstanceType, *, processes: int) -> float:
    per_token = flops_per_sample(recipe) / tokens_per_sample(recipe)
    if recipe.needs_gpu:
        peak = (instance.peak_tflops_bf16 or 100.0) * 1e12
        return ASSUMED_MFU * peak * processes / per_token
    return CPU_GFLOPS_PER_PROCESS * 1e9 * processes / per_token


def _will_create(recipe: Recipe, instance: InstanceType, *, nodes: int) -> list[str]:
    efa = f", {instance.num_efa} EFA each" if instance.num_efa else ""
    return [
        "1 EKS cluster (control plane, access entries, FSx CSI add-on)",
        f"1 node group of 1 x {SYSTEM_INSTANCE_TYPE} for operators and the relay",
        f"1 node group of {nodes} x {instance.name}{efa}",
        f"1 FSx for Lustre file system, {recipe.file_system_gib} GiB PERSISTENT_2 at "
        f"{recipe.file_system_mbps_per_tib} MB/s a TiB",
        "1 security group, 1 launch template" + (", 1 placement group" if instance.num_efa else ""),
    ]


def _warnings(
    recipe: Recipe,
    instance: InstanceType,
    *,
    memory: MemoryPerGpu,
    fits: bool,
    local_gpus: int | None,
) -> list[str]:
    warnings = []
    if not fits:
        warnings.append(
            f"does not fit: {memory.total:.1f} GiB needed on each GPU, "
            f"{memory.available:.1f} GiB available; use more nodes or a larger instance"
        )
    if instance.price_per_hour_usd is None:
        warnings.append(f"no price is known for {instance.name}; the cost leaves its instances out")
    if recipe.needs_gpu and local_gpus is not None and local_gpus < instance.num_gpus:
        warnings.append(
            f"local mode: this machine has {local_gpus} NVIDIA GPUs and each pod asks for "
            f"{instance.num_gpus}; provisioning, plugins and validation run against the emulated "
            "AWS, the training pods cannot run here"
        )
    warnings.append(f"prices as of {PRICES_AS_OF}")
    return warnings

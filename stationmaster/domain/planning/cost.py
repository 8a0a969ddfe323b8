"""What a run costs and how long it takes; every constant names its source. Pure arithmetic."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from stationmaster.domain.catalogue.framework_training import FrameworkTraining
from stationmaster.domain.catalogue.instances import InstanceType, get_instance
from stationmaster.domain.catalogue.kubernetes_versions import STANDARD_USD_PER_HOUR
from stationmaster.domain.catalogue.models import ImageModel
from stationmaster.domain.catalogue.recipes import Recipe
from stationmaster.domain.errors import UnknownInstance
from stationmaster.domain.names import SYSTEM_INSTANCE_TYPE
from stationmaster.domain.planning.estimate import tokens_per_sample
from stationmaster.domain.planning.estimators import (
    checkpoint_bytes,
    evaluation_part,
    export_bytes,
    memory_of,
    step_time,
)
from stationmaster.domain.planning.layout import Layout
from stationmaster.domain.planning.memory import Memory, available_bytes, available_host_bytes
from stationmaster.domain.planning.speed import StepTime

HOURS_PER_MONTH: Final = 730

# A plan takes the Kubernetes version to be in standard support; the preflight says if it is not.
CLUSTER_USD_PER_HOUR: Final = STANDARD_USD_PER_HOUR
# FSx for Lustre SSD, us-east-1: USD a GiB-month by throughput (MB/s a TiB). 200 is SCRATCH_2's, the
# others are PERSISTENT_2's tiers. Source: Amazon FSx for Lustre pricing.
FILE_SYSTEM_USD_PER_GIB_MONTH: Final = {
    125: 0.145,
    200: 0.140,
    250: 0.210,
    500: 0.340,
    1000: 0.600,
}
# No other type that is made here has this throughput.
SCRATCH_MBPS_PER_TIB: Final = 200

# Typical provisioning times in seconds: EKS control plane 8-12 min, GPU node group 5-8 min and FSx
# 5-12 min side by side, plugins 2 min, validation 1 min, image pull and rendezvous 2 min.
CLUSTER_S: Final = 600
CAPACITY_S: Final = 480
PLUGINS_S: Final = 120
VALIDATION_S: Final = 60
JOB_START_S: Final = 120
TIME_TO_FIRST_STEP_S: Final = CLUSTER_S + CAPACITY_S + PLUGINS_S + VALIDATION_S + JOB_START_S
# For nodes of a kept cluster that went because nobody used them.
NODES_BACK_S: Final = CAPACITY_S + PLUGINS_S + VALIDATION_S
TEARDOWN_S: Final = 900

# One pod copies, on the system node. Source: EC2 network specifications, c6in.2xlarge: 12.5
# Gbit/s that last, up to 40 for minutes.
COPY_BYTES_PER_S: Final = 12.5e9 / 8
# Assumed of the Hugging Face hub, for each node that reads from it.
HUB_BYTES_PER_S: Final = 2.5e9 / 8
# Assumed: weights are split, renamed and checked one after the other, and one core does 1 GB/s.
REORDER_BYTES_PER_S: Final = 1e9

# Least time from SIGTERM to the end of the trainer, and what Python and the last collectives add.
_LEAST_STOP_S: Final = 100
_LEAVING_S: Final = 40

# An image recipe without eval_samples evaluates on the whole validation folder: ImageNet's.
VALIDATION_IMAGES: Final = 50_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Shared:
    """A cluster that exists for several runs, of which one would use some nodes."""

    label: str
    nodes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeSource:
    """Where the nodes of a new cluster come from, as far as a plan says it."""

    words: str = ""
    """After their number and type, such as "spot instances"; "" for instances on demand."""
    is_prepaid: bool = False
    """They were paid for in advance, or others pay, and add nothing to price and cost."""
    is_placed: bool = False
    """They are where a reservation is, and in no placement group of the run's."""


ON_DEMAND: Final = NodeSource()


@dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    """All estimates of one layout."""

    layout: Layout
    memory: Memory
    available: float
    """Bytes that training may use on each GPU, or in each CPU process."""
    step: StepTime
    checkpoint_write_s: float
    time_to_first_step_s: int
    """Not counting a wait for nodes that others use."""
    export_s: int
    """How long a model is made of a framework's checkpoint, once training has ended."""
    duration_s: float
    """From the request to the end of training, and of that."""
    teardown_s: int
    """How long its machines are paid for after that."""
    price_per_hour_usd: float
    """On a shared cluster, the part of its price that its nodes make up."""

    @property
    def fits(self) -> bool:
        """Whether it fits on the GPU, and in host memory with what is offloaded and copied."""
        return self.memory.total <= self.available and self.host_bytes <= self.available_host

    @property
    def host_bytes(self) -> float:
        """What each process holds in its node's memory; on a CPU, that is everything."""
        on_host = 0.0 if self.layout.recipe.needs_gpu else self.memory.total
        return on_host + self.memory.in_host_memory

    @property
    def available_host(self) -> float:
        """Bytes of its node's memory that each process may use."""
        return available_host_bytes(self.layout)

    @property
    def cost_usd(self) -> float:
        """The cost of the whole run, with the teardown of a cluster of its own."""
        return self.price_per_hour_usd * (self.duration_s + self.teardown_s) / 3600

    @property
    def samples_per_s(self) -> float:
        """Sequences or images a second, over all ranks together."""
        return self.layout.recipe.training.global_batch_size / self.step.total


def estimate(layout: Layout, *, shared: Shared | None = None, stage_s: float = 0) -> Figures:
    """Estimate memory, time and price of a recipe on machines.

    Args:
        shared: the cluster that has them; None for one that is made for this run.
        stage_s: how long its data takes to arrive.
    """
    step = step_time(layout)
    write_s = checkpoint_bytes(layout) / file_system_bytes_per_s(layout.recipe)
    training_s = _training_s(layout, step=step, write_s=write_s)
    export_s = _export_s(layout)
    first_step_s = (JOB_START_S if shared else TIME_TO_FIRST_STEP_S) + math.ceil(stage_s)
    return Figures(
        layout=layout,
        memory=memory_of(layout),
        available=available_bytes(layout),
        step=step,
        checkpoint_write_s=write_s,
        time_to_first_step_s=first_step_s,
        export_s=export_s,
        duration_s=first_step_s + training_s + export_s,
        teardown_s=0 if shared else TEARDOWN_S,
        price_per_hour_usd=_price_per_hour(layout, shared),
    )


def _price_per_hour(layout: Layout, shared: Shared | None) -> float:
    if shared is None:
        return hourly_price(layout.recipe, layout.instance, nodes=layout.nodes)
    whole = hourly_price(layout.recipe, layout.instance, nodes=shared.nodes)
    return whole * layout.nodes / shared.nodes


def stop_deadline_s(layout: Layout) -> int:
    """Return the seconds that the trainer needs after SIGTERM to finish its step and have it saved.

    At worst a save has just begun: it is written and read back before the last one is written,
    which the resume may read back.
    """
    write_s = checkpoint_bytes(layout) / file_system_bytes_per_s(layout.recipe)
    return stop_deadline(step_s=step_time(layout).total, write_s=write_s)


def stop_deadline(*, step_s: float, write_s: float) -> int:
    """Return the same, of a step and the writing of a checkpoint that take so many seconds."""
    return max(_LEAST_STOP_S, math.ceil(step_s + 3 * write_s + _LEAVING_S))


def _training_s(layout: Layout, *, step: StepTime, write_s: float) -> float:
    """Add up steps, evaluations (a forward pass is a third of a step's work), and checkpoints.

    A checkpoint is written beside the next steps; training waits for the last one, and for one that
    is not written when the next is due.
    """
    recipe, training = layout.recipe, layout.recipe.training
    seconds = training.steps * step.total
    if isinstance(training, FrameworkTraining):
        # Evaluations of as many batches, and checkpoints that training waits for.
        batches = training.evaluations * training.eval_steps
        checkpoints = math.ceil(training.steps / training.checkpoint_every)
        evaluating_s = batches * evaluation_part(layout) * step.total / 3
        return seconds + evaluating_s + checkpoints * write_s
    if training.eval_every:
        whole_folder = VALIDATION_IMAGES if isinstance(recipe.model, ImageModel) else 0
        samples = (training.eval_samples or whole_folder) * (training.steps // training.eval_every)
        seconds += samples / training.global_batch_size * step.total / 3
    interval = min(training.checkpoint_every, training.steps)
    checkpoints = math.ceil(training.steps / interval)
    return seconds + write_s + (checkpoints - 1) * max(0.0, write_s - interval * step.total)


def _export_s(layout: Layout) -> int:
    """Return the seconds of the Job that makes the model, perhaps on a node without a GPU."""
    size = export_bytes(layout)
    if not size:
        return 0
    rate = min(COPY_BYTES_PER_S, file_system_bytes_per_s(layout.recipe))
    # Its image and Python's libraries; each weight is read, put in order and written, once.
    return math.ceil(JOB_START_S + 2 * size / rate + size / REORDER_BYTES_PER_S)


def file_system_bytes_per_s(recipe: Recipe) -> float:
    """Return the throughput of the run's FSx file system; 1,200 GiB count as 1.2 TiB."""
    return recipe.file_system_gib / 1000 * recipe.file_system_mbps_per_tib * 1e6


def hourly_price(recipe: Recipe, instance: InstanceType, *, nodes: int) -> float:
    """USD an hour of everything that a run of this shape makes and keeps alive."""
    storage = (
        0.0
        if recipe.file_system_id
        else file_system_price(recipe.file_system_gib, recipe.file_system_mbps_per_tib)
    )
    return shape_price(instance, nodes=nodes, file_system_usd=storage)


def shape_price(instance: InstanceType, *, nodes: int, file_system_usd: float) -> float:
    """Return the USD an hour of a cluster: control plane, system node, training nodes, file system.

    Args:
        file_system_usd: an hour of its file system; 0 where that is not the cluster's own.

    Raises:
        UnknownInstance: the catalogue has no price for the training nodes.
    """
    return (
        CLUSTER_USD_PER_HOUR
        + node_group_price(get_instance(SYSTEM_INSTANCE_TYPE), nodes=1)
        + node_group_price(instance, nodes=nodes)
        + file_system_usd
    )


def node_group_price(instance: InstanceType, *, nodes: int) -> float:
    """Return the USD an hour for `nodes` instances.

    Raises:
        UnknownInstance: the catalogue has no price for them; a plan refuses them before.
    """
    if instance.price_per_hour_usd is None:
        raise UnknownInstance(f"instance type {instance.name} has no on-demand price")
    return nodes * instance.price_per_hour_usd


def file_system_price(storage_gib: int, mbps_per_tib: int) -> float:
    """USD an hour of one FSx for Lustre file system."""
    return storage_gib * FILE_SYSTEM_USD_PER_GIB_MONTH[mbps_per_tib] / HOURS_PER_MONTH


def deployment_type(mbps_per_tib: int) -> str:
    """FSx's name of the type of a new file system; its throughput decides it."""
    return "SCRATCH_2" if mbps_per_tib == SCRATCH_MBPS_PER_TIB else "PERSISTENT_2"


def tokens_per_s(figures: Figures) -> float:
    """Return the tokens a second over all ranks; of an image recipe, images."""
    return figures.samples_per_s * tokens_per_sample(figures.layout.recipe)

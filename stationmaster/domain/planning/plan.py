"""What a request would create, whether it fits in memory, how long it takes and what it costs.

The bot shows a plan before anything is created, and `stationmaster plan --json` prints the same
object. The arithmetic is in `memory`, `speed` and `cost`; what to do about it in `advice`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from stationmaster.domain.catalogue.instances import PRICES_AS_OF, InstanceType, get_instance
from stationmaster.domain.catalogue.models import ImageModel
from stationmaster.domain.catalogue.published_speeds import TOKENS_A_GPU, published_for
from stationmaster.domain.catalogue.recipes import Recipe
from stationmaster.domain.catalogue.training_config import norm_batch_of
from stationmaster.domain.datasets import Listing
from stationmaster.domain.frozen import Frozen
from stationmaster.domain.names import SYSTEM_INSTANCE_TYPE
from stationmaster.domain.planning.advice import (
    changes_that_fit,
    hub_notes,
    misfits_of,
    warnings_of,
)
from stationmaster.domain.planning.arrival import Conversion, DataPlan
from stationmaster.domain.planning.cost import (
    ON_DEMAND,
    Figures,
    NodeSource,
    Shared,
    deployment_type,
    estimate,
    tokens_per_s,
)
from stationmaster.domain.planning.estimate import tokens_per_sample
from stationmaster.domain.planning.estimators import (
    assumed_mfu,
    checkpoint_bytes,
    export_bytes,
)
from stationmaster.domain.planning.layout import Layout
from stationmaster.domain.planning.machine_checks import check_batch, check_machines
from stationmaster.domain.planning.memory import GIB, PARTS
from stationmaster.domain.planning.ranges import (
    FewestNodes,
    check_range,
    fewest_nodes,
    misfit_of_fewest,
    range_notes,
    smallest_fitting,
    summary_of,
    with_norm_batch,
    words_of,
)
from stationmaster.domain.planning.room import find_room, room_notes
from stationmaster.domain.sizes import counted

# How long a command in place of the trainer may take: nobody can estimate it, and it may hang.
LONGEST_COMMAND: Final = timedelta(days=30)


class MemoryPerGpu(Frozen):
    """GiB on one GPU, or for one process on a CPU recipe, by what holds them."""

    weights: float
    gradients: float
    optimizer: float
    gathered: float
    """Weights whole for the moment of their use, and gradients on their way to their owners."""
    activations: float
    logits: float
    graphs: float = 0.0
    """Of CUDA graphs, which keep the memory of a step: what evaluations and exports take beside it.
    """
    total: float
    available: float
    in_host_memory: float
    """Moved there by cpu_offload, and the copy for checkpoints with it; not in the total."""


class Plan(Frozen):
    """What `stationmaster plan` prints; field names are a contract."""

    recipe: str
    instance_type: str
    nodes: int
    fewest: FewestNodes | None = None
    """Of a range of nodes: the same on its fewest; the other figures are of its most."""
    num_gpus: int
    processes: int
    parallelism: str
    micro_batch_size: int
    """Samples in one forward pass of a process."""
    micro_batches: int
    """Forward passes of a process in an optimizer step."""
    norm_batch_size: int = 0
    """Images that batch normalisation sees together on any number of nodes; 0 where that is no
    fixed number."""
    fits: bool
    memory_per_gpu_gib: MemoryPerGpu
    price_per_hour_usd: float
    estimated_duration_s: int
    estimated_cost_usd: float
    tokens_per_s: float
    """Over all processes; of an image recipe, images a second."""
    samples_per_s: float
    counts_images: bool
    """Whether a sample is an image, and not a sequence of tokens."""
    step_time_s: float
    limited_by: str
    assumed_mfu: float | None
    checkpoint_gb: float
    checkpoint_write_s: float
    export_gb: float = 0.0
    """Of the model that is made of a framework's checkpoint after training; 0 where none is."""
    export_s: int = 0
    """How long that takes; in the estimated duration and cost."""
    data: DataPlan | None = None
    """What is brought to the file system before training; None where pods read or make the data."""
    conversion: Conversion | None = None
    """Of published weights that are converted for a framework before training."""
    needed_gib: int = 0
    """Of a file system, for what is brought and checkpoints; 0 where nothing is brought."""
    file_system_gib: int
    """The file system that the run would use."""
    file_system_id: str = ""
    """Its id where it exists already; price and cost are without it then."""
    time_to_first_step_s: int
    on_cluster: str | None = None
    """Name or id of the kept cluster that the run would use; price and cost are its share then."""
    trains_recipe: bool = True
    """False where a command takes the trainer's place: what is not known of it is 0 here."""
    will_create: list[str]
    """Nothing where it uses a cluster that exists."""
    suggestion: str | None
    """Words to add so that it fits, for the lowest cost; None if it does, or if nothing helps."""
    misfits: list[str]
    """Why it does not fit and what to do; empty if it fits. Also the first of its warnings."""
    price_note: str
    """When the prices were read. Also the last of its warnings."""
    warnings: list[str]

    @property
    def min_nodes(self) -> int | None:
        """The fewest nodes of a range; None for a fixed number."""
        return self.fewest.nodes if self.fewest is not None else None

    @property
    def settled_keys(self) -> dict[str, str]:
        """Keys of the recipe that the plan has chosen, for the run to keep."""
        return {"norm_batch_size": str(self.norm_batch_size)} if self.norm_batch_size else {}

    @property
    def node_words(self) -> str:
        """How many nodes it is for, as typed: "8", or "2:8"."""
        return str(self.nodes) if self.fewest is None else f"{self.fewest.nodes}:{self.nodes}"

    @property
    def longest_duration_s(self) -> int:
        """How long it takes at most: on the fewest nodes of a range."""
        fewest = self.fewest.estimated_duration_s if self.fewest is not None else 0
        return max(self.estimated_duration_s, fewest)


def plan_recipe(
    recipe: Recipe,
    *,
    nodes: int | None = None,
    min_nodes: int | None = None,
    instance_type: str | None = None,
    shared: Shared | None = None,
    listing: Listing | None = None,
    restored_bytes: int = 0,
    trains: bool = True,
    source: NodeSource = ON_DEMAND,
) -> Plan:
    """Plan a recipe whose overrides are applied.

    Args:
        min_nodes: the fewest nodes that do as well; None where `nodes` is a fixed number.
        shared: the cluster that the run would use; the recipe's file system is then that one's.
        listing: what S3 says of its data set. Without a shared cluster, the file system becomes
            as large as that needs.
        restored_bytes: what comes back of other runs' results before training.
        trains: False where the recipe only names machines and data.
        source: where the nodes of a new cluster come from.

    Raises:
        UserError: an unknown instance, machines that cannot run the recipe at all, or data that no
            file system holds.
    """
    instance = get_instance(instance_type or recipe.default_instance)
    instance = instance.prepaid if source.is_prepaid else instance
    layout = Layout(
        recipe=recipe,
        instance=instance,
        nodes=recipe.default_nodes if nodes is None else nodes,
    )
    check_machines(layout, cluster=shared.label if shared else None)
    if trains:
        check_batch(layout)
    if min_nodes is not None:
        check_range(layout, min_nodes, trains=trains)
        layout = with_norm_batch(layout) if trains else layout
    room = find_room(
        layout, listing, shared, restored_bytes=restored_bytes, converts_weights=trains
    )
    layout, stage_s = room.layout, room.stage_s
    recipe = layout.recipe
    figures = estimate(layout, shared=shared, stage_s=stage_s)
    changes = [] if figures.fits else changes_that_fit(figures, shared=shared, stage_s=stage_s)
    mfu = assumed_mfu(layout)
    misfits = misfits_of(figures, changes=changes, shared=shared)
    suggestion = changes[0].words if changes else None
    fewest = None
    if min_nodes is not None:
        fewest = fewest_nodes(layout, min_nodes, shared=shared, stage_s=stage_s)
        if figures.fits and not fewest.fits:
            fitting = smallest_fitting(layout, min_nodes, shared=shared)
            misfits = [misfit_of_fewest(fewest, layout.nodes, fitting)]
            suggestion = words_of(fitting, layout.nodes)
    price_note = f"prices as of {PRICES_AS_OF}"
    return Plan(
        recipe=recipe.name,
        instance_type=instance.name,
        nodes=layout.nodes,
        fewest=summary_of(fewest) if fewest is not None else None,
        num_gpus=layout.nodes * instance.num_gpus if recipe.needs_gpu else 0,
        processes=layout.processes,
        parallelism=layout.parallelism,
        micro_batch_size=layout.rows,
        micro_batches=layout.micro_batches,
        norm_batch_size=norm_batch_of(recipe.training),
        fits=not misfits,
        memory_per_gpu_gib=_memory_per_gpu(figures),
        price_per_hour_usd=round(figures.price_per_hour_usd, 2),
        estimated_duration_s=math.ceil(figures.duration_s),
        estimated_cost_usd=round(figures.cost_usd, 2),
        tokens_per_s=round(tokens_per_s(figures), 1),
        samples_per_s=round(figures.samples_per_s, 3),
        counts_images=isinstance(recipe.model, ImageModel),
        step_time_s=round(figures.step.total, 4),
        limited_by=figures.step.limited_by,
        assumed_mfu=None if mfu is None else round(mfu, 3),
        checkpoint_gb=round(checkpoint_bytes(layout) / 1e9, 3),
        checkpoint_write_s=round(figures.checkpoint_write_s, 1),
        export_gb=round(export_bytes(layout) / 1e9, 3),
        export_s=figures.export_s,
        data=room.data,
        conversion=room.conversion,
        needed_gib=room.needed_gib,
        file_system_gib=recipe.file_system_gib,
        file_system_id=recipe.file_system_id,
        time_to_first_step_s=figures.time_to_first_step_s,
        on_cluster=shared.label if shared else None,
        will_create=[]
        if shared
        else _will_create(recipe, instance, source, nodes=layout.nodes, least=min_nodes),
        suggestion=suggestion,
        misfits=misfits,
        price_note=price_note,
        warnings=[
            *misfits,
            *(range_notes(figures, fewest) if fewest is not None else ()),
            *room_notes(room, shared),
            *_export_notes(figures),
            *warnings_of(figures),
            *_published_notes(figures),
            *hub_notes(recipe),
            price_note,
        ],
    )


def _export_notes(figures: Figures) -> Iterator[str]:
    """Yield what happens after the training of another framework."""
    if size := export_bytes(figures.layout):
        yield (
            f"after training, a model of about {size / 1e9:,.0f} GB is made of the newest "
            f"checkpoint, in about {max(1, round(figures.export_s / 60))} min, which this plan "
            f"counts; it takes {size / 1e9:,.0f} GB of the file system beside the checkpoints"
        )


def _published_notes(figures: Figures) -> Iterator[str]:
    """Yield what others have published of such training, beside the speed that is assumed."""
    layout = figures.layout
    for each in published_for(layout.recipe.name, layout.instance.name):
        speed = f"{figures.samples_per_s:,.3g}"
        if each.unit == TOKENS_A_GPU:
            speed = f"{tokens_per_s(figures) / layout.processes:,.0f}"
        same = each.nodes == layout.nodes
        scaled = "" if same else f"for {counted(layout.nodes, 'node')} it is not scaled; "
        yield (
            f"published: {each.value} {each.unit} on {each.nodes} x {each.instance_type} "
            f"({each.settings}; {each.source}); {scaled}this plan assumes its own estimate, "
            f"{speed} {each.unit} with batch {layout.rows} a GPU and sequence "
            f"{tokens_per_sample(layout.recipe):,}"
        )


def _memory_per_gpu(figures: Figures) -> MemoryPerGpu:
    memory = figures.memory
    parts = {name: getattr(memory, name) for name in (*PARTS, "total")}
    parts["in_host_memory"] = memory.in_host_memory if memory.offloaded else 0.0
    rounded = {name: round(value / GIB, 3) for name, value in parts.items()}
    return MemoryPerGpu(**rounded, available=round(figures.available / GIB, 1))


def _will_create(
    recipe: Recipe, instance: InstanceType, source: NodeSource, *, nodes: int, least: int | None
) -> list[str]:
    bought = f" {source.words}" if source.words else ""
    has_group = instance.num_efa and not source.is_placed
    efa = f", {instance.num_efa} EFA each" if instance.num_efa else ""
    return [
        "1 EKS cluster (control plane, access entries, FSx CSI add-on)",
        f"1 node group of 1 x {SYSTEM_INSTANCE_TYPE} for operators and the relay",
        f"1 node group of {f'{least} to ' if least else ''}{nodes} x {instance.name}{bought}{efa}",
        _storage(recipe),
        "1 security group, 2 launch templates" + (", 1 placement group" if has_group else ""),
    ]


def _storage(recipe: Recipe) -> str:
    if recipe.file_system_id:
        return (
            f"no file system: {recipe.file_system_id}, {recipe.file_system_gib:,} GiB, is used and "
            "stays"
        )
    return (
        f"1 FSx for Lustre file system, {recipe.file_system_gib} GiB "
        f"{deployment_type(recipe.file_system_mbps_per_tib)} at "
        f"{recipe.file_system_mbps_per_tib} MB/s a TiB"
    )


def plan_of_program(plan: Plan) -> Plan:
    """Plan the machines, data and price of a recipe, without what is said of its training."""
    memory = MemoryPerGpu.model_validate(dict.fromkeys(MemoryPerGpu.model_fields, 0.0))
    available = plan.memory_per_gpu_gib.available
    fewest = plan.fewest
    if fewest is not None:
        unknown = {"fits": True, "memory_per_gpu_gib": 0.0, "micro_batches": 0}
        unknown |= {"estimated_duration_s": 0, "estimated_cost_usd": 0.0}
        fewest = fewest.model_copy(update=unknown)
    return plan.model_copy(
        update={
            "trains_recipe": False,
            "fits": True,
            "misfits": [],
            "suggestion": None,
            "memory_per_gpu_gib": memory.model_copy(update={"available": available}),
            "estimated_duration_s": 0,
            "estimated_cost_usd": 0.0,
            "tokens_per_s": 0.0,
            "samples_per_s": 0.0,
            "step_time_s": 0.0,
            "assumed_mfu": None,
            "limited_by": "",
            "checkpoint_gb": 0.0,
            "checkpoint_write_s": 0.0,
            "export_gb": 0.0,
            "export_s": 0,
            "fewest": fewest,
            "warnings": [*([plan.data.sentence] if plan.data else []), plan.price_note],
        }
    )

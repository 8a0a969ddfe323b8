"""A run on as many nodes as there are of a range: what stays the same, and what that costs. Pure.

At any number of nodes, the batch of a step, and with it the learning rate and the order of samples,
are the recipe's; ranks take more or fewer micro-batches. For image classifiers also the images that
batch normalisation sees together stay the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from stationmaster.domain.catalogue.models import ImageModel
from stationmaster.domain.catalogue.recipes import FRAMEWORK_NAMES
from stationmaster.domain.catalogue.training_config import ImageTraining, norm_batch_of
from stationmaster.domain.errors import BadParameter
from stationmaster.domain.frozen import Frozen
from stationmaster.domain.planning.cost import Figures, Shared, estimate
from stationmaster.domain.planning.layout import Layout
from stationmaster.domain.planning.machine_checks import can_split, check_experts
from stationmaster.domain.planning.memory import GIB
from stationmaster.domain.sizes import counted


class FewestNodes(Frozen):
    """The same plan on the fewest nodes of its range."""

    nodes: int
    fits: bool
    memory_per_gpu_gib: float
    price_per_hour_usd: float
    estimated_duration_s: int
    estimated_cost_usd: float
    micro_batches: int
    """Forward passes of a process in an optimizer step."""


def check_range(layout: Layout, least: int, *, trains: bool) -> None:
    """Refuse a range from `least` nodes to those of the layout that training cannot use.

    Without `trains`, another program takes the recipe's trainer's place.

    Raises:
        BadParameter: naming the rendezvous, the framework, or nodes over which experts or parts of
            sequences do not come out even.
    """
    typed = f"nodes={least}:{layout.nodes}"
    if trains and not layout.recipe.uses_own_trainer:
        raise BadParameter(
            f"{typed} is not possible for {layout.recipe.name}: "
            f"{FRAMEWORK_NAMES[layout.recipe.framework]} trains on a number of GPUs that is fixed "
            f"when it starts; use nodes={layout.nodes}"
        )
    uneven = [
        nodes
        for nodes in range(least, layout.nodes + 1)
        if not can_split(replace(layout, nodes=nodes))
    ]
    if trains and uneven:
        raise BadParameter(
            f"{typed} is not possible with context_parallel={layout.context_parallel}: the GPUs of "
            f"{counted(uneven[0], 'node')} do not come out even in groups of "
            f"{layout.processes_per_sample}; use nodes={layout.nodes}"
        )
    if layout.recipe.training.rendezvous == "static":
        raise BadParameter(
            f"{typed} is not possible with rendezvous=static, whose master knows the number of "
            f"workers when it starts; use nodes={layout.nodes}, or leave rendezvous= out"
        )
    for nodes in range(layout.nodes - 1, least - 1, -1):
        if (reason := check_experts(replace(layout, nodes=nodes))) is not None:
            raise BadParameter(f"{typed} is not possible: on {counted(nodes, 'node')} {reason}")


def with_norm_batch(layout: Layout) -> Layout:
    """Return the layout of a range whose batch normalisation sees the same images on all sizes.

    Its forward passes are those of the most nodes; fewer nodes take several of them each.
    """
    training = layout.recipe.training
    if not isinstance(training, ImageTraining) or training.norm_batch_size:
        return layout
    rows = layout.rows_per_step
    passes = next(n for n in range(layout.micro_batches, rows + 1) if rows % n == 0)
    passing = training.model_copy(update={"norm_batch_size": rows // passes})
    return replace(layout, recipe=layout.recipe.model_copy(update={"training": passing}))


def fewest_nodes(layout: Layout, least: int, *, shared: Shared | None, stage_s: float) -> Figures:
    """Estimate all of the layout on `least` nodes."""
    return estimate(replace(layout, nodes=least), shared=shared, stage_s=stage_s)


def summary_of(figures: Figures) -> FewestNodes:
    """Return what a plan shows of its fewest nodes."""
    return FewestNodes(
        nodes=figures.layout.nodes,
        fits=figures.fits,
        memory_per_gpu_gib=round(figures.memory.total / GIB, 3),
        price_per_hour_usd=round(figures.price_per_hour_usd, 2),
        estimated_duration_s=math.ceil(figures.duration_s),
        estimated_cost_usd=round(figures.cost_usd, 2),
        micro_batches=figures.layout.micro_batches,
    )


def smallest_fitting(layout: Layout, least: int, *, shared: Shared | None) -> int | None:
    """Return the fewest nodes above `least`, of a range up to the layout's, that it fits on."""
    counts = range(least + 1, layout.nodes + 1)
    return next((n for n in counts if estimate(replace(layout, nodes=n), shared=shared).fits), None)


def misfit_of_fewest(fewest: Figures, most: int, fitting: int | None) -> str:
    """Say why a range is refused that would fit with its most nodes and not with its fewest."""
    least = fewest.layout.nodes
    where, needed, available = fewest.layout.holder, fewest.memory.total, fewest.available
    if needed <= available:
        needed, available, where = fewest.host_bytes, fewest.available_host, "process in its host"
    remedy = _words(fitting, most) if fitting is not None else f"nodes={most}"
    return (
        f"does not fit on {counted(least, 'node')}, the fewest of {least}:{most}: "
        f"{needed / GIB:.1f} GiB needed on each {where}, "
        f"{available / GIB:.1f} GiB available; it fits with {remedy}"
    )


def words_of(fitting: int | None, most: int) -> str:
    """Return what to type for the fitting part of a range."""
    return _words(fitting if fitting is not None else most, most)


def _words(least: int, most: int) -> str:
    return f"nodes={least}:{most}" if least < most else f"nodes={most}"


def range_notes(figures: Figures, fewest: Figures) -> Iterator[str]:
    """Yield what a range means, what stays the same in it, and what its fewest nodes cost."""
    layout, small = figures.layout, fewest.layout
    training, least, most = layout.recipe.training, small.nodes, layout.nodes
    yield (
        f"nodes={least}:{most}: it leases all of {most} nodes that it can get, {least} at least; "
        f"when some are lost it goes on from its newest checkpoint with those that are left, down "
        f"to {least}, and takes back those that return"
    )
    what = "images" if isinstance(layout.recipe.model, ImageModel) else "sequences"
    norm_batch = norm_batch_of(training)
    model = layout.recipe.model
    dropout = " and by dropout" if isinstance(model, ImageModel) and model.dropout else ""
    together = f"; batch normalisation sees the same {norm_batch} together" if norm_batch else ""
    same = (
        f"a step has {training.global_batch_size:,} {what} at any number of nodes: "
        f"{_passes(small)} in each process on {counted(least, 'node')}, {_passes(layout)} on "
        f"{most}{together}; the order of samples stays, and losses differ by "
        f"rounding{dropout}"
    )
    uneven = [
        str(nodes)
        for nodes in range(least, most)
        if layout.divisible_parts % replace(layout, nodes=nodes).data_ranks
    ]
    if uneven:
        shown = ", ".join(uneven[:6]) + (" and others" if len(uneven) > 6 else "")
        same += f"; it does not divide over {shown} nodes, where some processes wait for others"
    yield same
    yield (
        f"on {counted(least, 'node')}: ${fewest.price_per_hour_usd:,.2f} an hour, about "
        f"{fewest.duration_s / 3600:,.1f} h and ${fewest.cost_usd:,.2f} in all, "
        f"{fewest.memory.total / GIB:.1f} of {fewest.available / GIB:.1f} GiB on each "
        f"{layout.holder}"
    )
    if training.rendezvous == "c10d":
        yield (
            "its pods meet at the first one: when that node is lost, the others wait for it; "
            "rendezvous=etcd lets them go on without it"
        )


def _passes(layout: Layout) -> str:
    return f"{layout.micro_batches} x {layout.rows}"

"""`on=`, `alone=` and `keep=`: on which kept cluster a run trains, and how long one stays."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pydantic import Field

from stationmaster.domain.catalogue.recipes import Recipe
from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.cluster.events import ClusterPhase
from stationmaster.domain.cluster.leases import MAX_WAITING
from stationmaster.domain.cluster.spec import with_file_system
from stationmaster.domain.durations import duration_of, nearest_duration, respelled, typed_duration
from stationmaster.domain.errors import BadCommand, BadParameter, NotPossibleNow
from stationmaster.domain.ids import ClusterId
from stationmaster.domain.keys import machines
from stationmaster.domain.keys.key import Family, Key, Part, Start, Typed
from stationmaster.domain.planning.cost import NODES_BACK_S
from stationmaster.domain.planning.plan import Plan
from stationmaster.domain.planning.requirements import num_useful_efa

# Offered where a keep was typed that is none; a plan names it, so it costs nothing.
_USUAL_KEEP: Final = "2h"

ON: Final = Key(
    name="on",
    help="a kept cluster of this channel, by name or id; last means the newest",
    meanings=("on_cluster",),
    turn=1,
    typed=lambda options: options.on,
)
_KEEP: Final = Key(
    name="keep",
    help="for how long the cluster stays after the run, from 1s to 7d",
    meanings=("keep_for", "keep_alive", "ttl"),
    choices=("30m", "2h", "8h"),
    meant=respelled,
    usual=lambda value, *_: nearest_duration(value) or _USUAL_KEEP,
    typed=lambda options: typed_duration(options.keep_s) if options.keep_s else "",
)
_YES_OR_NO: Final = {"true": True, "false": False}
ALONE: Final = Key(
    name="alone",
    help="true: on a kept cluster, no other run trains beside it; what measures speeds needs that",
    meanings=("exclusive", "isolated"),
    choices=tuple(_YES_OR_NO),
    typed=lambda options: "true" if options.alone else "",
)


class Option(Part):
    """On which cluster the run trains, and how long that one stays."""

    on: str | None = Field(default=None, exclude=True)
    """The cluster as it was typed; the request of a run has its id only."""
    cluster_id: ClusterId | None = None
    """The cluster to run on; None for one of its own, which is made for it."""
    keep_s: int = 0
    """For how many seconds after the run its cluster is kept for the next one."""
    alone: bool = False
    """Whether no other run may train on its cluster at the same time."""


def read(typed: Typed) -> Option:
    """Read both, and find the cluster."""
    on, keep, alone = typed.get(ON), typed.get(_KEEP), typed.get(ALONE) or "false"
    if alone not in _YES_OR_NO:
        raise BadParameter(f"alone={alone[:80]} is not accepted: expected true or false")
    return Option(
        alone=_YES_OR_NO[alone],
        keep_s=0 if keep is None else duration_of(_KEEP.name, keep),
        on=on,
        cluster_id=typed.ask.find_cluster(on).cluster_id if on is not None else None,
    )


def cluster_of(start: Start) -> Cluster | None:
    """Return the cluster that was typed."""
    on = start.part(Option).on
    return start.ask.find_cluster(on) if on is not None else None


def fitted(recipe: Recipe, cluster: Cluster) -> Recipe:
    """Return the recipe with the cluster's file system in place of its own.

    Raises:
        BadParameter: the cluster does not offer what the recipe needs of its machines.
    """
    spec = cluster.spec
    if recipe.needs_gpu and spec.instance.num_gpus and not spec.num_gpus:
        raise BadParameter(
            f"cluster {cluster.label} does not offer its GPUs, because it was made for a run "
            f"without; {recipe.name} needs them, leave on= out"
        )
    if recipe.needs_gpu and spec.num_efa < num_useful_efa(spec.instance):
        raise BadParameter(
            f"cluster {cluster.label} does not offer its EFA interfaces, because it was made for "
            f"a run without; {recipe.name} needs them, leave on= out"
        )
    return with_file_system(recipe, spec.file_system)


def refuse(start: Start) -> None:
    """Refuse other machines than the cluster has, and a run where as many wait as may wait."""
    cluster, typed = cluster_of(start), start.part(machines.Option)
    if cluster is None:
        if start.part(Option).alone:
            raise BadParameter("alone=true is of a kept cluster: add on=CLUSTER, or leave it out")
        return
    of_cluster, has = cluster.spec.instance_type, cluster.spec.nodes
    if typed.instance_type not in (None, of_cluster):
        raise BadCommand(
            f"instance={typed.instance_type} is not what cluster {cluster.label} has: "
            f"{of_cluster}; leave instance= out"
        )
    if len(cluster.queue) >= MAX_WAITING:
        raise NotPossibleNow(
            f"{MAX_WAITING} runs wait for nodes of cluster {cluster.label}, and no more may; type "
            "the command again later, or leave on= out"
        )
    nodes = typed.nodes if typed.min_nodes is None else typed.min_nodes
    if nodes is not None and nodes > has:
        raise BadCommand(
            f"nodes={nodes} is more than cluster {cluster.label} has: {has}; use "
            f"{'1' if has == 1 else f'1 to {has}'}"
        )


def note(start: Start, plan: Plan) -> Iterable[str]:
    """Say what the run would wait for, and what it costs to keep the cluster."""
    cluster, keep_s = cluster_of(start), start.part(Option).keep_s
    if cluster is not None:
        yield from waiting_notes(cluster, plan.nodes if plan.min_nodes is None else plan.min_nodes)
    if keep_s:
        kept = typed_duration(keep_s)
        whole = cluster.spec.price_per_hour_usd if cluster else plan.price_per_hour_usd
        yield (
            f"keep={kept}: the cluster stays for {kept} after the run and costs ${whole:,.2f} an "
            f"hour, up to ${whole * keep_s / 3600:,.2f} more; /train cluster delete ends it"
        )


def waiting_notes(cluster: Cluster, nodes: int) -> Iterable[str]:
    """Say what a run that needs `nodes` nodes would wait for on a cluster."""
    if cluster.phase is not ClusterPhase.READY:
        yield f"cluster {cluster.label} is {cluster.phase.value}; the run waits for it"
    if cluster.sleeps_since is not None:
        yield (
            f"cluster {cluster.label} has no nodes now, because nobody used them; the run brings "
            f"{cluster.spec.nodes} back and waits for them, about {NODES_BACK_S // 60} min"
        )
    elif cluster.queue or nodes > cluster.free_nodes:
        yield (
            f"cluster {cluster.label} has {cluster.free_nodes} of {cluster.spec.nodes} nodes free "
            f"and {len(cluster.queue)} runs waiting; the run waits in place "
            f"{len(cluster.queue) + 1}"
        )


FAMILY: Final = Family(keys=(ON, ALONE, _KEEP), read=read, refuse=refuse, note=note)

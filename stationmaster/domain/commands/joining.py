"""What a start with `on=` and `keep=` means: on which cluster it runs, and how long that one stays.

`parameters` calls it while it reads a start. Pure: who finds the cluster is given by the caller.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from stationmaster.domain.catalogue.recipes import Recipe
from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.cluster.events import ClusterPhase
from stationmaster.domain.cluster.leases import MAX_WAITING
from stationmaster.domain.cluster.spec import with_file_system
from stationmaster.domain.commands.durations import (
    EXPECTED,
    LONGEST_S,
    is_too_long,
    read_duration,
    respelled,
    typed_duration,
)
from stationmaster.domain.errors import BadCommand, BadParameter, NotPossibleNow
from stationmaster.domain.planning.cost import Shared
from stationmaster.domain.planning.plan import Plan
from stationmaster.domain.planning.requirements import num_useful_efa

FindCluster = Callable[[str], Cluster]
"""Finds a kept cluster by its name, by its id, or by how its id begins.

Raises a UserError that says why it cannot be used."""

# Offered where a keep was typed that is none; a plan names it, so it costs nothing.
_USUAL_KEEP: Final = "2h"


def no_clusters(label: str) -> Cluster:
    """Find nothing: where no channel is at hand.

    Raises:
        NotPossibleNow: always.
    """
    raise NotPossibleNow(
        f"on={label} names a kept cluster of a channel, and none is known here; "
        "type the command in the channel"
    )


def shared_cluster(cluster: Cluster) -> Shared:
    """A cluster as the plan of a run on it sees it."""
    return Shared(label=cluster.label, nodes=cluster.spec.nodes)


def fitted(recipe: Recipe, cluster: Cluster) -> Recipe:
    """The recipe with the cluster's file system in place of the one that it would get.

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


def refuse_other_machines(cluster: Cluster, instance_type: str | None) -> None:
    """Refuse an instance type that the cluster does not have.

    Raises:
        BadCommand: naming both.
    """
    of_cluster = cluster.spec.instance_type
    if instance_type not in (None, of_cluster):
        raise BadCommand(
            f"instance={instance_type} is not what cluster {cluster.label} has: {of_cluster}; "
            "leave instance= out"
        )


def refuse_more_nodes(cluster: Cluster, nodes: int | None) -> None:
    """Refuse more nodes than the cluster has.

    Raises:
        BadCommand: naming both.
    """
    has = cluster.spec.nodes
    if nodes is not None and nodes > has:
        raise BadCommand(
            f"nodes={nodes} is more than cluster {cluster.label} has: {has}; use "
            f"{'1' if has == 1 else f'1 to {has}'}"
        )


def refuse_full_queue(cluster: Cluster) -> None:
    """Refuse a run where as many wait for nodes of the cluster as may wait.

    Raises:
        NotPossibleNow: naming how many.
    """
    if len(cluster.queue) >= MAX_WAITING:
        raise NotPossibleNow(
            f"{MAX_WAITING} runs wait for nodes of cluster {cluster.label}, and no more may; type "
            "the command again later, or leave on= out"
        )


def read_keep(value: str | None) -> int:
    """Seconds of `keep=`, 0 where it was not typed.

    Raises:
        BadCommand: it is no duration, or too long.
    """
    return 0 if value is None else duration_of("keep", value)


def duration_of(key: str, value: str) -> int:
    """Seconds of a duration that was typed after `key`.

    Raises:
        BadCommand: it is no duration, or too long.
    """
    seconds = read_duration(value)
    if seconds is None:
        raise BadCommand(f"{key}={value[:40]} is not accepted: expected {EXPECTED}")
    return seconds


def keep_meant(value: str) -> str:
    """The duration that comes nearest to one that is not accepted."""
    return respelled(value) or (typed_duration(LONGEST_S) if is_too_long(value) else _USUAL_KEEP)


def plan_with_notes(plan: Plan, *, cluster: Cluster | None, keep_s: int, whole: float) -> Plan:
    """The plan with what `on=` and `keep=` add to its warnings.

    Args:
        whole: USD an hour of the cluster that is kept.
    """
    least = plan.min_nodes if plan.min_nodes is not None else plan.nodes
    notes = [] if cluster is None else waiting_notes(cluster, least)
    if keep_s:
        kept = typed_duration(keep_s)
        notes.append(
            f"keep={kept}: the cluster stays for {kept} after the run and costs ${whole:,.2f} an "
            f"hour, up to ${whole * keep_s / 3600:,.2f} more; /train cluster delete ends it"
        )
    return plan.model_copy(update={"warnings": [*notes, *plan.warnings]}) if notes else plan


def waiting_notes(cluster: Cluster, nodes: int) -> list[str]:
    """What a run that needs `nodes` nodes would wait for on a cluster."""
    notes = []
    if cluster.phase is not ClusterPhase.READY:
        notes.append(f"cluster {cluster.label} is {cluster.phase.value}; the run waits for it")
    if cluster.queue or nodes > cluster.free_nodes:
        place = len(cluster.queue) + 1
        notes.append(
            f"cluster {cluster.label} has {cluster.free_nodes} of {cluster.spec.nodes} nodes free "
            f"and {len(cluster.queue)} runs waiting; the run waits in place {place}"
        )
    return notes

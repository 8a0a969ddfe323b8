"""`cluster=eks:NAME` or `hyperpod:NAME`: an existing EKS cluster, in which a run is a guest."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from stationmaster.domain.catalogue.instances import HYPERPOD
from stationmaster.domain.errors import BadCommand
from stationmaster.domain.keys import kept_cluster
from stationmaster.domain.keys.key import Family, Key, Part, Start, Typed
from stationmaster.domain.planning.cost import CAPACITY_S, CLUSTER_S, PLUGINS_S
from stationmaster.domain.planning.plan import Plan

_PREFIX: Final = "eks:"
# Source: EKS API reference, CreateCluster: the name.
_NAME: Final = re.compile(r"[0-9A-Za-z][A-Za-z0-9_-]{0,99}")
_ARN: Final = re.compile(r"arn:[a-z-]+:eks:[a-z0-9-]+:\d+:cluster/([A-Za-z0-9_-]+)")
_HYPERPOD: Final = "hyperpod:"
# Source: SageMaker API reference, DescribeCluster: ClusterName.
_HYPERPOD_NAME: Final = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}")


def _meant(value: str) -> str | None:
    """Spell the cluster as it is accepted; None where none is meant."""
    hyperpod = re.sub(r"(?i)^hyperpod[:/]*", "", value)
    if hyperpod != value:
        return f"{_HYPERPOD}{hyperpod}" if _HYPERPOD_NAME.fullmatch(hyperpod) else None
    found = _ARN.fullmatch(value)
    name = found[1] if found else re.sub(r"(?i)^eks[:/]*", "", value)
    is_meant = found is not None or value.lower().startswith("eks")
    return f"{_PREFIX}{name}" if is_meant and _NAME.fullmatch(name) else None


CLUSTER: Final = Key(
    name="cluster",
    help="an existing EKS cluster, eks:NAME, or that of a SageMaker HyperPod cluster, "
    "hyperpod:NAME, in which the run is a guest: nothing of it is made, "
    "changed or deleted; needs file_system=fs-... or storage=pvc:NAME",
    meanings=("eks", "eks_cluster", "eks_name"),
    meant=_meant,
    turn=4,
    is_resumed=True,
    typed=lambda options: f"{_PREFIX}{options.eks_name}" if options.eks_name else "",
)


class Option(Part):
    """The cluster in which the run is a guest."""

    eks_name: str = ""
    """The existing EKS cluster that its cluster uses; "" for one that is made."""


def read(typed: Typed) -> Option:
    """Read the name of an EKS cluster, and ask about it."""
    value = typed.get(CLUSTER)
    if value is None:
        return Option()
    hyperpod = value.removeprefix(_HYPERPOD)
    if hyperpod != value and _HYPERPOD_NAME.fullmatch(hyperpod):
        name = typed.ask.find_hyperpod_cluster(hyperpod)
        typed.ask.find_eks_cluster(name)
        return Option(eks_name=name)
    name = value.removeprefix(_PREFIX)
    if not value.startswith(_PREFIX) or not _NAME.fullmatch(name):
        meant = f"; did you mean cluster={_meant(value)}" if _meant(value) else ""
        raise BadCommand(
            f"cluster={value[:80]} is not accepted: expected {_PREFIX}NAME, an EKS cluster of "
            f"others, or {_HYPERPOD}NAME; on=NAME uses a kept cluster of this channel{meant}"
        )
    typed.ask.find_eks_cluster(name)
    return Option(eks_name=name)


def refuse(start: Start) -> None:
    """Refuse two clusters for one run."""
    name, on = start.part(Option).eks_name, start.part(kept_cluster.Option).on
    if name and on is not None:
        raise BadCommand(f"cluster={_PREFIX}{name} and on={on} name two clusters; keep one")


def note(start: Start, plan: Plan) -> Iterable[str]:
    """Say that nothing of the cluster is made, changed or in the bill."""
    if name := start.part(Option).eks_name:
        typed = start.words.get(CLUSTER.name, "")
        if is_hyperpod := typed.startswith(_HYPERPOD):
            yield f"cluster={typed} is EKS cluster {name}"
        if is_hyperpod or start.words.get("instance", "").startswith(HYPERPOD):
            price = start.ask.find_hyperpod_price(plan.instance_type)
            yield _billed(f"{plan.nodes} x {HYPERPOD}{plan.instance_type}", plan.nodes, price)
        yield (
            f"cluster={_PREFIX}{name}: its control plane, nodes, plugins and file system stay "
            "as they are and are not in the bill; whether it has room and lets the product in is "
            "looked at before anything is made"
        )


def _billed(machines: str, nodes: int, price: float | None) -> str:
    if price is None:
        return f"{machines} are billed by SageMaker, at a price that is not known here"
    return (
        f"{machines} cost their owner ${nodes * price:,.2f} an hour on demand, with the run or "
        "without it: SageMaker bills them"
    )


def plan_of_guest(plan: Plan, eks_name: str) -> Plan:
    """Plan a guest: what exists is not made, changed, deleted or in the bill."""
    made = [
        f"a namespace in EKS cluster {eks_name} (for the queue of a team, objects in the team's), "
        "with a volume and the job, and AWS roles for its service accounts; deleted after the run"
    ]
    earlier_s = CLUSTER_S + CAPACITY_S + PLUGINS_S  # which making all of that would take
    return plan.model_copy(
        update={
            "time_to_first_step_s": plan.time_to_first_step_s - earlier_s,
            "estimated_duration_s": plan.estimated_duration_s - earlier_s,
            "price_per_hour_usd": 0.0,
            "estimated_cost_usd": 0.0,
            "will_create": made,
        }
    )


FAMILY: Final = Family(keys=(CLUSTER,), read=read, refuse=refuse, note=note)

"""What `cluster=eks:NAME` means: an EKS cluster of others, in which a run is only a guest.

`parameters` and `cluster_words` call it while they read a command. Pure: who asks EKS about a
cluster is given by the caller.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from stationmaster.domain.cluster.spec import FileSystemSpec
from stationmaster.domain.errors import BadCommand, NotPossibleNow
from stationmaster.domain.planning.cost import CAPACITY_S, CLUSTER_S, PLUGINS_S
from stationmaster.domain.planning.plan import Plan

CLUSTER: Final = "cluster"
_PREFIX: Final = "eks:"
# Source: EKS API reference, CreateCluster: the name.
_NAME: Final = re.compile(r"[0-9A-Za-z][A-Za-z0-9_-]{0,99}")
_ARN: Final = re.compile(r"arn:[a-z-]+:eks:[a-z0-9-]+:\d+:cluster/([A-Za-z0-9_-]+)")

FindEksCluster = Callable[[str], None]
"""Asks EKS about a cluster by its name. Raises a UserError that says why it cannot be used."""


def no_eks_clusters(name: str) -> None:
    """Find nothing: where AWS is not meant to be asked.

    Raises:
        NotPossibleNow: always.
    """
    raise NotPossibleNow(
        f"{CLUSTER}={_PREFIX}{name} names an EKS cluster of the deployment's AWS account, and "
        "that is not asked here; type the command in the channel"
    )


def read_host(value: str | None, *, find_eks_cluster: FindEksCluster) -> str:
    """The name of the EKS cluster of others that was typed; "" where none was.

    Raises:
        UserError: it is not the name of one that can be used.
    """
    if value is None:
        return ""
    name = value.removeprefix(_PREFIX)
    if not value.startswith(_PREFIX) or not _NAME.fullmatch(name):
        meant = f"; did you mean {CLUSTER}={host_meant(value)}" if host_meant(value) else ""
        raise BadCommand(
            f"{CLUSTER}={value[:80]} is not accepted: expected {_PREFIX}NAME, an EKS cluster of "
            f"others; on=NAME uses a kept cluster of this channel{meant}"
        )
    find_eks_cluster(name)
    return name


def host_meant(value: str) -> str | None:
    """The same EKS cluster in the spelling that is accepted; None where none is meant."""
    found = _ARN.fullmatch(value)
    name = found[1] if found else re.sub(r"(?i)^eks[:/]*", "", value)
    is_meant = found is not None or value.lower().startswith("eks")
    return f"{_PREFIX}{name}" if is_meant and _NAME.fullmatch(name) else None


def typed_host(eks_name: str) -> str | None:
    """The value as it is typed again."""
    return f"{_PREFIX}{eks_name}" if eks_name else None


def refuse_with_on(eks_name: str, on: str) -> None:
    """Refuse two clusters for one run.

    Raises:
        BadCommand: naming both.
    """
    if eks_name:
        raise BadCommand(f"{CLUSTER}={_PREFIX}{eks_name} and on={on} name two clusters; keep one")


def refuse_without_file_system(eks_name: str, existing: FileSystemSpec | None) -> None:
    """Refuse a guest that brings no file system.

    Raises:
        BadCommand: with the reason.
    """
    if eks_name and existing is None:
        raise BadCommand(
            f"{CLUSTER}={_PREFIX}{eks_name} needs file_system=fs-..., one that its nodes reach: "
            "no new file system is attached to a network of others"
        )


def plan_with_host(plan: Plan, eks_name: str) -> Plan:
    """The plan of a guest: nothing of what is there is made, changed, deleted or in the bill."""
    if not eks_name:
        return plan
    note = (
        f"{CLUSTER}={_PREFIX}{eks_name}: its control plane, nodes, plugins and file system stay "
        "as they are and are not in the bill; whether it has room and lets the product in is "
        "looked at before anything is made"
    )
    made = [
        f"a namespace in EKS cluster {eks_name}, with a volume and the job, and AWS roles for its "
        "service accounts; deleted after the run"
    ]
    earlier_s = CLUSTER_S + CAPACITY_S + PLUGINS_S  # which making all of that would take
    return plan.model_copy(
        update={
            "time_to_first_step_s": plan.time_to_first_step_s - earlier_s,
            "estimated_duration_s": plan.estimated_duration_s - earlier_s,
            "price_per_hour_usd": 0.0,
            "estimated_cost_usd": 0.0,
            "will_create": made,
            "warnings": [note, *plan.warnings],
        }
    )

"""How the sizes of a Deployment's ReplicaSets change until all pods are of its newest template.
Pure.

A Deployment whose `replicas` change during a rollout is not scaled proportionally: its sets come to
the same sizes one after another. Source: kubernetes, pkg/controller/deployment: recreate.go,
rolling.go and util/deployment_util.go; Kubernetes documentation, Deployments: Strategy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from stationmaster.local.cluster.api.resources import Object


@dataclass(frozen=True)
class Step:
    """What to change next; nothing while pods are waited for."""

    new: int | None = None
    """The size of the newest template's set, which is created if it is missing."""
    old: dict[str, int] = field(default_factory=dict)
    """Sizes of sets of earlier templates, by their names."""


def next_step(
    deployment: Object, new: Object | None, old: Sequence[Object], *, old_pods_left: bool
) -> Step:
    """Return the next change of sizes.

    Args:
        new: the ReplicaSet of the newest template, None before it is created.
        old: those of earlier templates, the oldest first.
        old_pods_left: whether a pod of theirs is there that has not ended, if only for its end.
    """
    wanted = deployment["spec"].get("replicas", 1)
    if _strategy(deployment).get("type") == "Recreate":
        return _recreate(wanted, new, old, old_pods_left=old_pods_left)
    surge, unavailable = limits(deployment)
    size = 0 if new is None else _size(new)
    room = wanted + surge - sum(map(_size, old))
    size = wanted if size >= wanted else max(size, min(room, wanted))
    if new is None or _size(new) != size:
        return Step(new=size)
    left = max(0, wanted - unavailable - _available(new))
    sizes = {}
    for each in reversed(old):  # the oldest pods go first
        kept = min(left, _size(each))
        left -= kept
        if kept != _size(each):
            sizes[_name(each)] = kept
    return Step(old=sizes)


def limits(deployment: Object) -> tuple[int, int]:
    """Return how many pods there may be too many, and how many unavailable, during a rollout.

    A share of the replicas is rounded up for the first, and down for the second.
    """
    strategy, wanted = _strategy(deployment), deployment["spec"].get("replicas", 1)
    if strategy.get("type") == "Recreate":
        return 0, 0
    rolling = strategy.get("rollingUpdate") or {}
    surge = _count(rolling.get("maxSurge", "25%"), wanted, up=True)
    unavailable = _count(rolling.get("maxUnavailable", "25%"), wanted, up=False)
    if not surge and not unavailable:
        unavailable = 1  # shares of few replicas; without it no pod could ever be replaced
    return surge, min(unavailable, wanted)


def _recreate(
    wanted: int, new: Object | None, old: Sequence[Object], *, old_pods_left: bool
) -> Step:
    """Start no pod of the newest template before the last of the others is gone."""
    if any(map(_size, old)):
        return Step(old={_name(each): 0 for each in old if _size(each)})
    if old_pods_left or (new is not None and _size(new) == wanted):
        return Step()
    return Step(new=wanted)


def _strategy(deployment: Object) -> Object:
    return deployment["spec"].get("strategy") or {}


def _count(value: object, wanted: int, *, up: bool) -> int:
    """Return a number, or a share of the replicas such as "25%"."""
    text = str(value)
    if not text.endswith("%"):
        return int(text)
    share = int(text.removesuffix("%")) * wanted
    return -(-share // 100) if up else share // 100


def _size(replica_set: Object) -> int:
    return int(replica_set["spec"]["replicas"])


def _available(replica_set: Object) -> int:
    return int((replica_set.get("status") or {}).get("availableReplicas", 0))


def _name(replica_set: Object) -> str:
    return str(replica_set["metadata"]["name"])

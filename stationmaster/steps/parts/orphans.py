"""What the account has of clusters that are over, unknown or unreadable: found, reported, deleted.

It starts from the tags of what exists, and asks the table about each cluster. A tag alone deletes
nothing, because whoever may tag may write any. What a released cluster's record explains, with a
tag of this deployment, is deleted at once, and so is what AWS's own parts have made for it: its
results were saved, or given up, before. Everything else is reported for people to delete, also all
of a cluster that the table does not know, or cannot read.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from stationmaster.aws.tagged import Tagged
from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.cluster.resources import explains
from stationmaster.domain.errors import StationmasterError, Unreadable
from stationmaster.domain.ids import ClusterId
from stationmaster.domain.names import NOT_HELPED, ORPHANS_FOUND
from stationmaster.domain.resources import Left, ResourceKind
from stationmaster.log_keys import bound
from stationmaster.services import Services
from stationmaster.steps.parts.leftovers import left_in_account, release_left

logger = logging.getLogger(__name__)

# AWS's own parts tag them, with the name of the EKS cluster.
_WITHOUT_OUR_TAG: Final = frozenset(
    {ResourceKind.NETWORK_INTERFACE, ResourceKind.EKS_SECURITY_GROUP}
)


class Standing(StrEnum):
    """What the table says of a cluster that has something in the account."""

    OPEN = "open"
    RELEASED = "released"
    UNKNOWN = "not in the table"
    UNREADABLE = "unreadable in the table"


@dataclass(frozen=True)
class Orphans:
    """What is left of one cluster without a record that explains it."""

    cluster_id: ClusterId
    standing: Standing
    left: tuple[Left, ...]
    deleted: tuple[Left, ...] = ()
    """Those whose deletion was requested now."""

    @property
    def sentence(self) -> str:
        """What exists, and what becomes of it."""
        return f"{self.finding}; {self._next}"

    @property
    def finding(self) -> str:
        """What exists."""
        names = ", ".join(map(str, self.left))
        return f"cluster {self.cluster_id} is {self.standing.value} and has {names}"

    @property
    def _next(self) -> str:
        stays = [each for each in self.left if each not in self.deleted]
        if stays and self.standing is Standing.RELEASED:
            names = ", ".join(map(str, stays))
            return f"no record explains {names}: delete it, or remove its tags"
        if stays:
            return "nothing of it was deleted: delete it, or repair the table"
        return "its deletion was requested"


def find_orphans(services: Services) -> list[Orphans]:
    """Look at all that is tagged, and delete what is surely nobody's; return what was found.

    One cluster that cannot be looked at does not keep the others from it.
    """
    of_clusters: dict[ClusterId, list[Tagged]] = {}
    for each in services.tagged.list_all():
        of_clusters.setdefault(each.cluster_id, []).append(each)
    found = []
    for cluster_id, tagged in of_clusters.items():
        with bound({"cluster_id": cluster_id}):
            try:
                orphans = _look_at(services, cluster_id, tagged)
            except StationmasterError:
                logger.exception(NOT_HELPED, extra={"subject": cluster_id})
                continue
            if orphans is not None:
                logger.error(ORPHANS_FOUND, extra={"finding": orphans.sentence})
                found.append(orphans)
    return found


def _look_at(services: Services, cluster_id: ClusterId, tagged: Sequence[Tagged]) -> Orphans | None:
    deployment = services.settings.deployment
    makers = {each.deployment for each in tagged if each.deployment}
    if makers and deployment not in makers:
        return None  # another deployment's reaper sees to it
    standing, cluster = _standing(services, cluster_id)
    if standing is Standing.OPEN:
        return None  # its own teardown sees to it
    left = left_in_account(services, cluster_id)
    if not left:
        services.orphans.forget(cluster_id)
        return None  # the tagging API has not heard of its end
    found = Orphans(cluster_id, standing, tuple(left))
    services.orphans.seen(cluster_id, finding=found.finding, now=services.now())
    deletable = [
        each
        for each in left
        if cluster is not None
        and explains(cluster.resources, each)
        and _is_ours(each, tagged, deployment)
    ]
    release_left(services, cluster_id, deletable)
    return replace(found, deleted=tuple(deletable))


def _standing(services: Services, cluster_id: ClusterId) -> tuple[Standing, Cluster | None]:
    """Return what the table says of a cluster, with its record where it is released."""
    try:
        cluster = services.cluster_states.find(cluster_id)
    except Unreadable:
        return Standing.UNREADABLE, None
    if cluster is None:
        return Standing.UNKNOWN, None
    return (Standing.OPEN, None) if cluster.is_open else (Standing.RELEASED, cluster)


def _is_ours(left: Left, tagged: Sequence[Tagged], deployment: str) -> bool:
    """Say whether its own tag names us; what AWS's parts made is as its cluster is."""
    if left.kind in _WITHOUT_OUR_TAG:
        return not any(
            each.is_named(left.id) and each.deployment not in ("", deployment) for each in tagged
        )
    return any(each.is_named(left.id) and each.deployment == deployment for each in tagged)

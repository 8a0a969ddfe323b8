"""EKS Pod Identity associations: AWS roles of pods.

They go with their cluster; those in an existing EKS cluster, and those of runs that have left a
cluster, are deleted one by one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from stationmaster.aws.calls import (
    Adapter,
    AwsNotFound,
    aws_call,
    ignoring_existing,
    ignoring_gone_or_busy,
    listed,
)
from stationmaster.domain.ids import ClusterId, RunId
from stationmaster.domain.names import (
    NAMESPACE,
    RELAY,
    STAGER,
    TAG_CLUSTER_ID,
    cluster_name,
    name_of_own,
    own_namespace,
    results_account,
    tags,
)
from stationmaster.domain.resources import Left, ResourceKind

if TYPE_CHECKING:
    from mypy_boto3_eks import EKSClient


class PodIdentities(Adapter):
    """Gives the relay and the stager of each cluster, and what reaches results, their AWS roles."""

    _client: EKSClient

    def ensure(
        self, cluster_id: ClusterId, place: str = "", *, run_id: RunId | None = None
    ) -> None:
        """Associate each shared service account with its role, where the settings name one.

        `place` is that of a guest (`ClusterSpec.place`), here and below.
        """
        settings = self._settings
        relay, stager = _shared(cluster_id, place)
        shared = {relay: settings.relay_role_arn, stager: settings.stager_role_arn}
        self._associate(cluster_id, place, shared, run_id=run_id)

    def ensure_results(
        self, cluster_id: ClusterId, place: str, of: Iterable[RunId], *, run_id: RunId
    ) -> bool:
        """Let pods reach these runs' results; return whether that is new, and valid in seconds
        only.

        Source: EKS API reference, CreatePodIdentityAssociation: eventually consistent.
        """
        role_arn = self._settings.saver_role_arn
        roles = {results_account(each): role_arn for each in of}
        return self._associate(cluster_id, place, roles, run_id=run_id)

    def _associate(
        self,
        cluster_id: ClusterId,
        place: str,
        roles: Mapping[str, str],
        *,
        run_id: RunId | None,
    ) -> bool:
        """Associate accounts with roles; return whether one of the associations is new."""
        name, namespace = _place(cluster_id, place)
        is_new = False
        for account, role_arn in roles.items():
            if not role_arn:
                continue
            with ignoring_existing(f"giving {account} of {name} its role"):
                self._client.create_pod_identity_association(
                    clusterName=name,
                    namespace=namespace,
                    serviceAccount=account,
                    roleArn=role_arn,
                    tags=tags(cluster_id, run_id, shared=self._settings.shared_tags),
                )
                is_new = True
        return is_new

    def release_results(
        self, cluster_id: ClusterId, place: str, *, but: Collection[RunId] = ()
    ) -> list[str]:
        """Take roles from results' accounts except for some runs; return the accounts' names."""
        name, _ = _place(cluster_id, place)
        kept = {*_shared(cluster_id, place), *map(results_account, but)}
        released = [each for each in self.left_in(cluster_id, place) if each.name not in kept]
        for each in released:
            self.release_in(name, each.id)
        return [each.name for each in released]

    def left_in(self, cluster_id: ClusterId, place: str) -> list[Left]:
        """List those of a cluster, in an existing EKS cluster where named; none if it is gone.

        In the namespace of a team these are the ones with its tag.
        """
        name, namespace = _place(cluster_id, place)
        what, operation = (
            f"listing pod identity associations of {name}",
            "pod_identity_associations",
        )
        where = {"clusterName": name, "namespace": namespace}
        found = listed(self._client, f"list_{operation}", "associations", what, **where)
        try:
            return [
                Left(ResourceKind.POD_IDENTITY, each["serviceAccount"], each["associationId"])
                for each in found
                if "/" not in place or self._is_of(cluster_id, name, each["associationId"])
            ]
        except AwsNotFound:
            return []

    def _is_of(self, cluster_id: ClusterId, eks_name: str, association_id: str) -> bool:
        with aws_call(f"reading pod identity association {association_id}"):
            found = self._client.describe_pod_identity_association(
                clusterName=eks_name, associationId=association_id
            )["association"]
        return found.get("tags", {}).get(TAG_CLUSTER_ID) == cluster_id

    def release_in(self, eks_name: str, association_id: str) -> None:
        """Delete one of these, unless it is gone."""
        with ignoring_gone_or_busy(f"deleting pod identity association {association_id}"):
            self._client.delete_pod_identity_association(
                clusterName=eks_name, associationId=association_id
            )


def _place(cluster_id: ClusterId, place: str) -> tuple[str, str]:
    """Return the EKS cluster that a cluster is, or is a guest of, and its namespace there."""
    eks_name, _, namespace = place.partition("/")
    if eks_name:
        return eks_name, namespace or own_namespace(cluster_id)
    return cluster_name(cluster_id), NAMESPACE


def _shared(cluster_id: ClusterId, place: str) -> list[str]:
    """Name the accounts of relay and stager, which in a team's namespace are the cluster's own."""
    own = own_namespace(cluster_id)
    return [name_of_own(each, own) if "/" in place else each for each in (RELAY, STAGER)]

"""FSx data repository associations: objects of a bucket that a file system shows as files.

Read only: without an export policy FSx writes nothing to the bucket, and without an import policy
it adds no event notifications to it. Found by their tag and never by a remembered id. FSx deletes
an association with its file system.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from stationmaster.aws.calls import Adapter, AwsNotFound, aws_call, ignoring_gone_or_busy
from stationmaster.aws.kinds import Actions
from stationmaster.aws.tags import is_of, tag_list
from stationmaster.domain.frozen import Frozen
from stationmaster.domain.ids import ClusterId, RunId
from stationmaster.domain.resources import Left, ResourceKind

if TYPE_CHECKING:
    from mypy_boto3_fsx import FSxClient
    from mypy_boto3_fsx.type_defs import DataRepositoryAssociationTypeDef

ACTIONS: Final = Actions(
    permission="data-link",
    resource="fsx:association",
    parent="fsx:file-system",
    create=("fsx:CreateDataRepositoryAssociation", "fsx:TagResource"),
    read=("fsx:DescribeDataRepositoryAssociations",),
    delete=("fsx:DeleteDataRepositoryAssociation",),
)
_GONE: Final = "DataRepositoryAssociationNotFound"
# What FSx answers while it works on the association; the id is the call's only parameter.
_BUSY: Final = "BadRequest"


class DataLink(Frozen):
    """An association; `failure` is FSx's own sentence, empty where it has none."""

    association_id: str
    file_system_id: str
    path: str
    """The directory of the file system, as /linked."""
    source: str
    """The objects, as s3://BUCKET/PREFIX/."""
    lifecycle: str
    failure: str = ""

    @property
    def has_failed(self) -> bool:
        return self.lifecycle in ("FAILED", "MISCONFIGURED")


class DataLinks(Adapter):
    """Creates, finds and deletes associations of clusters' file systems."""

    _client: FSxClient

    def describe(self, cluster_id: ClusterId) -> DataLink | None:
        """Return the cluster's association, or None. Of several, one that is not being deleted."""
        found = self.list_tagged(cluster_id)
        return next((each for each in found if each.lifecycle != "DELETING"), None)

    def list_tagged(self, cluster_id: ClusterId) -> list[DataLink]:
        """List every association that carries the cluster's tag."""
        found: list[DataLink] = []
        arguments: dict[str, Any] = {}
        while True:
            try:
                with aws_call(f"listing data repository associations of {cluster_id}"):
                    answer = self._client.describe_data_repository_associations(**arguments)
            except AwsNotFound:  # the file system of one went while FSx listed them
                return found
            associations = answer["Associations"]
            found += [_data_link(each) for each in associations if is_of(cluster_id, each)]
            token = answer.get("NextToken")
            if not token:
                return found
            arguments = {"NextToken": token}

    def ensure(
        self,
        cluster_id: ClusterId,
        *,
        file_system_id: str,
        path: str,
        source: str,
        run_id: RunId | None = None,
    ) -> None:
        """Request the association; the request token makes a repeated call harmless.

        Raises:
            PermanentError: FSx refuses, e.g. because it may not read the bucket.
        """
        with aws_call(f"linking {source} to file system {file_system_id}"):
            self._client.create_data_repository_association(
                ClientRequestToken=cluster_id,
                FileSystemId=file_system_id,
                FileSystemPath=path,
                DataRepositoryPath=source,
                BatchImportMetaDataOnCreate=True,
                Tags=tag_list(cluster_id, run_id, shared=self._settings.shared_tags),
            )

    def release(self, cluster_id: ClusterId, association_id: str) -> None:
        """Request the deletion; one that is gone or busy is left to the next call."""
        what = f"deleting data repository association {association_id} of {cluster_id}"
        with ignoring_gone_or_busy(what, _GONE, _BUSY):
            self._client.delete_data_repository_association(AssociationId=association_id)

    def left(self, cluster_id: ClusterId) -> list[Left]:
        """List every association that carries the cluster's tag, also one that is being deleted."""
        return [
            Left(ResourceKind.DATA_LINK, found.association_id, found.association_id)
            for found in self.list_tagged(cluster_id)
        ]


def _data_link(item: DataRepositoryAssociationTypeDef) -> DataLink:
    return DataLink(
        association_id=item["AssociationId"],
        file_system_id=item.get("FileSystemId", ""),
        path=item.get("FileSystemPath", ""),
        source=item.get("DataRepositoryPath", ""),
        lifecycle=item.get("Lifecycle", "CREATING"),
        failure=item.get("FailureDetails", {}).get("Message", ""),
    )

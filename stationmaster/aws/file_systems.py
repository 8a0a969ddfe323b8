"""FSx for Lustre file systems: found by their tag and never by a remembered id."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stationmaster.aws.calls import Adapter, AwsNotFound, aws_call, ignoring_gone_or_busy, listed
from stationmaster.aws.kinds import Actions
from stationmaster.aws.tags import is_of, tag_list
from stationmaster.domain.errors import TransientError
from stationmaster.domain.frozen import Frozen
from stationmaster.domain.ids import ClusterId, RunId
from stationmaster.domain.planning.cost import deployment_type
from stationmaster.domain.resources import Left, ResourceKind
from stationmaster.rendering.shared_volume import SharedStorage

if TYPE_CHECKING:
    from mypy_boto3_fsx import FSxClient
    from mypy_boto3_fsx.type_defs import (
        CreateFileSystemLustreConfigurationTypeDef,
        FileSystemTypeDef,
    )

ACTIONS: Final = Actions(
    permission="file-system",
    resource="fsx:file-system",
    create=("fsx:CreateFileSystem", "fsx:TagResource"),
    read=("fsx:DescribeFileSystems",),
    delete=("fsx:DeleteFileSystem",),
)
# What FSx answers while it creates the file system; the id is the call's only parameter.
_BUSY: Final = "BadRequest"
# FSx says so of a group whose rules it does not know yet, made a moment ago.
_NO_LUSTRE: Final = "do not permit Lustre LNET network traffic"
# FSx documents no words for a lack of storage in a zone. A wrong guess asks the next zone in vain.
_TOO_LITTLE: Final = ("insufficient", "not sufficient", "not have sufficient", "not enough")
# The API's default is 2.10, which clients of AL2023 kernels cannot mount.
LUSTRE_VERSION: Final = "2.15"


class FileSystem(Frozen):
    """A file system; `mount_name` is empty until it is created far enough to have one."""

    file_system_id: str
    lifecycle: str
    failure: str = ""
    dns_name: str = ""
    mount_name: str = ""
    storage_gib: int = 0
    subnet_id: str = ""

    @property
    def has_failed(self) -> bool:
        return self.lifecycle in ("FAILED", "MISCONFIGURED", "MISCONFIGURED_UNAVAILABLE")

    @property
    def lacks_storage(self) -> bool:
        """Whether it failed for lack of storage in its zone, as far as FSx's words say."""
        said = self.failure.lower()
        return "capacity" in said and any(word in said for word in _TOO_LITTLE)


class FileSystems(Adapter):
    """Creates, finds and deletes file systems of clusters."""

    _client: FSxClient

    def describe(self, cluster_id: ClusterId) -> FileSystem | None:
        """Return the cluster's file system, or None. Of several, one that is not being deleted."""
        found = self.list_tagged(cluster_id)
        return next((fs for fs in found if fs.lifecycle != "DELETING"), found[0] if found else None)

    def mountable(self, cluster_id: ClusterId, *, existing_id: str = "") -> SharedStorage:
        """Return what a volume has to say of the cluster's file system.

        Args:
            existing_id: of one that was there before the cluster, and has no tag of it.

        Raises:
            TransientError: the file system is not there (any more), or not far enough.
        """
        found = self.find(existing_id) if existing_id else self.describe(cluster_id)
        if found is None or not found.mount_name:
            state = "missing" if found is None else found.lifecycle
            raise TransientError(
                f"the file system of cluster {cluster_id} cannot be mounted: {state}"
            )
        return SharedStorage(
            file_system_id=found.file_system_id,
            dns_name=found.dns_name,
            mount_name=found.mount_name,
            storage_gib=found.storage_gib,
        )

    def find(self, file_system_id: str) -> FileSystem | None:
        """Find the file system of this id, whatever its tags and its state, or None."""
        try:
            with aws_call(f"looking for file system {file_system_id}"):
                answer = self._client.describe_file_systems(FileSystemIds=[file_system_id])
        except AwsNotFound:
            return None
        return next(map(_file_system, answer["FileSystems"]), None)

    def list_tagged(self, cluster_id: ClusterId) -> list[FileSystem]:
        """List every file system that carries the cluster's tag."""
        what = f"listing file systems of {cluster_id}"
        found = listed(self._client, "describe_file_systems", "FileSystems", what)
        return [_file_system(each) for each in found if is_of(cluster_id, each)]

    def ensure(
        self,
        cluster_id: ClusterId,
        *,
        storage_gib: int,
        mbps_per_tib: int,
        subnet_id: str,
        security_group_id: str,
        number: int = 1,
        run_id: RunId | None = None,
    ) -> None:
        """Request the file system; the request token makes a repeated call harmless.

        `number` is 2 for the one that follows the nodes into another zone, and so on: it has a
        token of its own.
        """
        new = (security_group_id, _NO_LUSTRE)
        with aws_call(f"creating the file system of {cluster_id}", new=new):
            self._client.create_file_system(
                ClientRequestToken=cluster_id if number == 1 else f"{cluster_id}-{number}",
                FileSystemType="LUSTRE",
                FileSystemTypeVersion=LUSTRE_VERSION,
                StorageCapacity=storage_gib,
                StorageType="SSD",
                SubnetIds=[subnet_id],
                SecurityGroupIds=[security_group_id],
                LustreConfiguration=_lustre(mbps_per_tib),
                Tags=tag_list(cluster_id, run_id, shared=self._settings.shared_tags),
            )

    def release(self, cluster_id: ClusterId, file_system_id: str) -> None:
        """Request the deletion; a file system that is gone or busy is left to the next call."""
        what = f"deleting file system {file_system_id} of {cluster_id}"
        with ignoring_gone_or_busy(what, _BUSY):
            self._client.delete_file_system(FileSystemId=file_system_id)

    def left(self, cluster_id: ClusterId) -> list[Left]:
        """List every file system that carries the cluster's tag, also one that is being deleted."""
        return [
            Left(ResourceKind.FILE_SYSTEM, found.file_system_id, found.file_system_id)
            for found in self.list_tagged(cluster_id)
        ]


def _lustre(mbps_per_tib: int) -> CreateFileSystemLustreConfigurationTypeDef:
    """Describe the type of the file system; FSx takes the throughput of PERSISTENT_2 only."""
    if deployment_type(mbps_per_tib) == "SCRATCH_2":
        return {"DeploymentType": "SCRATCH_2", "DataCompressionType": "LZ4"}
    return {
        "DeploymentType": "PERSISTENT_2",
        "PerUnitStorageThroughput": mbps_per_tib,
        "DataCompressionType": "LZ4",
    }


def _file_system(item: FileSystemTypeDef) -> FileSystem:
    return FileSystem(
        file_system_id=item["FileSystemId"],
        lifecycle=item.get("Lifecycle", "CREATING"),
        failure=item.get("FailureDetails", {}).get("Message", ""),
        dns_name=item.get("DNSName", ""),
        mount_name=item.get("LustreConfiguration", {}).get("MountName", ""),
        storage_gib=item.get("StorageCapacity", 0),
        subnet_id=next(iter(item.get("SubnetIds", ())), ""),
    )

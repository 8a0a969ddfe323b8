"""FSx for Lustre: the run's shared file system, found by its tag and never by a remembered id."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pydantic import BaseModel, ConfigDict

from stationmaster.aws.calls import AwsConflict, AwsNotFound, aws_call
from stationmaster.domain.names import TAG_RUN_ID, tags

if TYPE_CHECKING:
    from mypy_boto3_fsx import FSxClient
    from mypy_boto3_fsx.type_defs import FileSystemTypeDef

# The API's default is 2.10, which clients of AL2023 kernels cannot mount.
LUSTRE_VERSION: Final = "2.15"


class FileSystem(BaseModel):
    """One FSx file system; `mount_name` is empty until it is created far enough to have one."""

    model_config = ConfigDict(frozen=True)

    file_system_id: str
    lifecycle: str
    failure: str = ""
    dns_name: str = ""
    mount_name: str = ""
    storage_gib: int = 0


class FileSystems:
    """Creates, finds and deletes file systems of runs."""

    def __init__(self, client: FSxClient) -> None:
        self._client = client

    def describe(self, run_id: str) -> FileSystem | None:
        """The run's file system, or None. Of several, one that is not being deleted."""
        found = self.list_for_run(run_id)
        return next((fs for fs in found if fs.lifecycle != "DELETING"), found[0] if found else None)

    def list_for_run(self, run_id: str) -> list[FileSystem]:
        """Every file system that carries the run's tag."""
        found: list[FileSystem] = []
        arguments: dict[str, str] = {}
        while True:
            with aws_call(f"listing file systems of run {run_id}"):
                answer = self._client.describe_file_systems(**arguments)  # type: ignore[arg-type]
            for item in answer["FileSystems"]:
                item_tags = {tag["Key"]: tag["Value"] for tag in item.get("Tags", [])}
                if item_tags.get(TAG_RUN_ID) == run_id:
                    found.append(_file_system(item))
            token = answer.get("NextToken")
            if not token:
                return found
            arguments = {"NextToken": token}

    def create(
        self,
        run_id: str,
        *,
        storage_gib: int,
        mbps_per_tib: int,
        subnet_id: str,
        security_group_id: str,
    ) -> None:
        """Request the run's file system; the request token makes a repeated call harmless."""
        with aws_call(f"creating the file system of run {run_id}"):
            self._client.create_file_system(
                ClientRequestToken=run_id,
                FileSystemType="LUSTRE",
                FileSystemTypeVersion=LUSTRE_VERSION,
                StorageCapacity=storage_gib,
                StorageType="SSD",
                SubnetIds=[subnet_id],
                SecurityGroupIds=[security_group_id],
                LustreConfiguration={
                    "DeploymentType": "PERSISTENT_2",
                    "PerUnitStorageThroughput": mbps_per_tib,
                    "DataCompressionType": "LZ4",
                },
                Tags=[{"Key": key, "Value": value} for key, value in tags(run_id).items()],
            )

    def delete(self, file_system_id: str) -> None:
        """Request the deletion; a file system that is gone or busy is left to the next call."""
        try:
            with aws_call(f"deleting file system {file_system_id}"):
                self._client.delete_file_system(FileSystemId=file_system_id)
        except (AwsNotFound, AwsConflict):
            return


def _file_system(item: FileSystemTypeDef) -> FileSystem:
    return FileSystem(
        file_system_id=item["FileSystemId"],
        lifecycle=item.get("Lifecycle", "CREATING"),
        failure=item.get("FailureDetails", {}).get("Message", ""),
        dns_name=item.get("DNSName", ""),
        mount_name=item.get("LustreConfiguration", {}).get("MountName", ""),
        storage_gib=item.get("StorageCapacity", 0),
    )

"""FSx data repository associations: objects of the local S3 become files of a file system.

Served by `fsx`. The real service reads an object when its file is first read; here its bytes are
written when the association imports what the bucket holds, so that pods read plain files. Only
imports on creation exist here: no import or export policies, so the bucket is never written to,
and no deletion of files with their association.
"""

from __future__ import annotations

import uuid
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from moto.s3.models import FakeKey, s3_backends

from stationmaster.local.aws.emulation import Emulation
from stationmaster.local.aws.observer import ImportedFile
from stationmaster.local.aws.wire import ApiError, NativeService, paged

# Emulated seconds. The real service takes minutes to link, and its import task runs after that.
LINK_S = 120.0
IMPORT_S = 60.0
UNLINK_S = 60.0
# Source: FSx API reference, CreateDataRepositoryAssociation.
MAX_ASSOCIATIONS = 8
# Source: FSx for Lustre user guide, "Unable to validate access to an S3 bucket".
_NO_ACCESS = (
    "Amazon FSx is unable to validate access to the S3 bucket. Ensure the IAM role or user you are "
    "using has s3:Get*, s3:List* and s3:PutObject permissions to the S3 bucket prefix."
)


def repeats(params: dict[str, Any], earlier: dict[str, Any]) -> bool:
    """Say whether a creation is an earlier one once more, by its ClientRequestToken.

    Raises:
        ApiError: it has the token of the earlier one, and asks for something else.
    """
    if not params.get("ClientRequestToken"):
        return False
    if params["ClientRequestToken"] != earlier.get("ClientRequestToken"):
        return False
    if params != earlier:
        raise ApiError(
            "IncompatibleParameterError",
            "The client request token was used with different parameters",
        )
    return True


@dataclass
class Association:
    """One association; `described` is what the API shows."""

    described: dict[str, Any]
    asked: dict[str, Any]
    is_importing: bool = False

    @property
    def file_system_id(self) -> str:
        """The file system that it belongs to."""
        return str(self.described["FileSystemId"])


class Associations(NativeService):
    """All associations of the account; the rest of FSx is `fsx`."""

    def __init__(self, emulation: Emulation) -> None:
        self.emulation = emulation
        self.associations: dict[str, Association] = {}

    @abstractmethod
    def file_system(self, identity: str) -> dict[str, Any]:
        """Return what the API shows of a file system."""

    def create_data_repository_association(self, params: dict[str, Any]) -> dict[str, Any]:
        """Start linking; the same ClientRequestToken returns the same association."""
        for existing in list(self.associations.values()):
            if repeats(params, existing.asked):
                return {"Association": existing.described}
        source = f"{params['DataRepositoryPath'].rstrip('/')}/"
        directory = params.get("FileSystemPath", "/")
        self._check(directory=directory, source=source, params=params)
        identity = f"dra-0{uuid.uuid4().hex[:16]}"
        region, account = self.emulation.region, self.emulation.account_id
        where = f"association/{params['FileSystemId']}/{identity}"
        described = {
            "AssociationId": identity,
            "ResourceARN": f"arn:aws:fsx:{region}:{account}:{where}",
            "FileSystemId": params["FileSystemId"],
            "Lifecycle": "CREATING",
            "FileSystemPath": directory,
            "DataRepositoryPath": source,
            "BatchImportMetaDataOnCreate": params.get("BatchImportMetaDataOnCreate", False),
            "ImportedFileChunkSize": params.get("ImportedFileChunkSize", 1024),
            "Tags": list(params.get("Tags", [])),
            "CreationTime": datetime.now(UTC),
        }
        association = self.associations[identity] = Association(described, params)
        self.emulation.clock.after(LINK_S, lambda: self._linked(association))
        return {"Association": described}

    def describe_data_repository_associations(self, params: dict[str, Any]) -> dict[str, Any]:
        """Return associations, by id or by their file system; an unknown id is an error."""
        if ids := params.get("AssociationIds"):
            return {"Associations": [self._association(each).described for each in ids]}
        found = [held.described for held in list(self.associations.values())]
        for each in params.get("Filters", []):
            if each["Name"] != "file-system-id":
                raise ApiError("BadRequest", f"Filter {each['Name']} is not emulated")
            found = [one for one in found if one["FileSystemId"] in each["Values"]]
        return paged("Associations", found, params, most=25)

    def delete_data_repository_association(self, params: dict[str, Any]) -> dict[str, Any]:
        """Start unlinking; the files stay."""
        described = self._association(params["AssociationId"]).described
        if described["Lifecycle"] == "CREATING":
            raise ApiError(
                "BadRequest",
                f"Data repository association '{params['AssociationId']}' is being created and "
                "cannot be deleted yet.",
            )
        if described["Lifecycle"] != "DELETING":
            described["Lifecycle"] = "DELETING"
            self.emulation.clock.after(
                UNLINK_S, lambda: self.associations.pop(described["AssociationId"], None)
            )
        return {
            "AssociationId": params["AssociationId"],
            "Lifecycle": "DELETING",
            "DeleteDataInFileSystem": False,
        }

    def of_file_system(self, identity: str) -> list[Association]:
        """Return the associations of a file system."""
        return [
            held for held in list(self.associations.values()) if held.file_system_id == identity
        ]

    # -- lifecycle --------------------------------------------------------------------------------

    def _linked(self, association: Association) -> None:
        described = association.described
        if (
            described["AssociationId"] not in self.associations
            or described["Lifecycle"] != "CREATING"
        ):
            return
        if self.file_system(association.file_system_id)["Lifecycle"] == "CREATING":
            # The request is queued until the file system is available.
            self.emulation.clock.after(LINK_S, lambda: self._linked(association))
            return
        if "data-link-fails" in self.emulation.faults:
            described["Lifecycle"] = "FAILED"
            described["FailureDetails"] = {
                "Message": "Amazon FSx could not access the S3 bucket of the data repository."
            }
            return
        described["Lifecycle"] = "AVAILABLE"
        if described["BatchImportMetaDataOnCreate"]:
            association.is_importing = True
            self.emulation.clock.after(IMPORT_S, lambda: self._imported(association))

    def _imported(self, association: Association) -> None:
        described = association.described
        if (
            described["AssociationId"] in self.associations
            and described["Lifecycle"] == "AVAILABLE"
        ):
            try:
                self.emulation.observer.files_imported(
                    file_system_id=association.file_system_id,
                    directory=described["FileSystemPath"],
                    files=self._files(described["DataRepositoryPath"]),
                )
            except OSError as exc:  # this machine's disk is full, or its directory is gone
                described["Lifecycle"] = "FAILED"
                described["FailureDetails"] = {"Message": f"{exc.filename}: {exc.strerror}"}
        association.is_importing = False

    def _files(self, source: str) -> Iterator[ImportedFile]:
        """Yield the objects that become files; those whose keys are no POSIX paths do not."""
        bucket, _, prefix = source.removeprefix("s3://").partition("/")
        with self.emulation.locks["s3"]:
            store = self._buckets()[bucket].keys if bucket in self._buckets() else {}
            newest = [(name, store[name]) for name in sorted(store)]
        for name, key in newest:
            if not isinstance(key, FakeKey):  # a marker that it was deleted
                continue
            path = name.removeprefix(prefix)
            parts = path.split("/")
            if not name.startswith(prefix) or any(part in ("", ".", "..") for part in parts):
                continue
            yield ImportedFile(path=path, content=bytes(key.value))

    # -- checking and finding ---------------------------------------------------------------------

    def _check(self, *, directory: str, source: str, params: Mapping[str, Any]) -> None:
        """Refuse what the service refuses."""
        file_system = self.file_system(params["FileSystemId"])
        if file_system["Lifecycle"] not in ("CREATING", "AVAILABLE", "UPDATING"):
            raise ApiError("BadRequest", f"The file system is {file_system['Lifecycle']}")
        others = [held.described for held in self.of_file_system(params["FileSystemId"])]
        if len(others) >= MAX_ASSOCIATIONS:
            raise ApiError(
                "BadRequest",
                f"A file system has at most {MAX_ASSOCIATIONS} data repository associations",
            )
        for other in others:
            for name, value in (("FileSystemPath", directory), ("DataRepositoryPath", source)):
                if _overlap(value, other[name]):
                    raise ApiError(
                        "BadRequest",
                        f"{name} '{value}' overlaps with '{other[name]}', which is linked already",
                    )
        bucket = source.removeprefix("s3://").partition("/")[0]
        if not source.startswith("s3://") or bucket not in self._buckets():
            raise ApiError("BadRequest", _NO_ACCESS)

    def _association(self, identity: str) -> Association:
        found = self.associations.get(identity)
        if found is None:
            raise ApiError(
                "DataRepositoryAssociationNotFound",
                f"Data repository association '{identity}' does not exist.",
            )
        return found

    def _buckets(self) -> Any:
        return s3_backends[self.emulation.account_id]["aws"].buckets


def _overlap(one: str, other: str) -> bool:
    first, second = (f"{path.rstrip('/')}/" for path in (one, other))
    return first.startswith(second) or second.startswith(first)

"""Amazon FSx for Lustre: file systems with the lifecycle and the validation of the real service.

A file system holds a network interface in its subnet, so that the subnet and its security groups
cannot be deleted before it. Only LUSTRE exists here.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from moto.cloudwatch.models import cloudwatch_backends
from moto.core.resource_tagging import TaggedResource
from moto.ec2.models import ec2_backends

from stationmaster.local.aws.emulation import Emulation
from stationmaster.local.aws.services.fsx_associations import Associations, repeats
from stationmaster.local.aws.wire import ApiError, paged

# Emulated seconds. Real file systems take 5-12 min to create and a few minutes to go.
CREATE_S = 360.0
DELETE_S = 120.0

# MB/s per TiB of PERSISTENT_2; SCRATCH_2 takes none. Source: FSx for Lustre API reference,
# PerUnitStorageThroughput.
_THROUGHPUT = (125, 250, 500, 1000)


@dataclass
class FileSystem:
    """One file system; `described` is what the API shows."""

    described: dict[str, Any]
    asked: dict[str, Any]
    eni_id: str | None = None


class FsxService(Associations):
    """The FSx API."""

    signing_name = "fsx"

    def __init__(self, emulation: Emulation) -> None:
        super().__init__(emulation)
        self.file_systems: dict[str, FileSystem] = {}

    def create_file_system(self, params: dict[str, Any]) -> dict[str, Any]:
        """Start creating a file system; the same ClientRequestToken returns the same one."""
        for existing in list(self.file_systems.values()):
            if repeats(params, existing.asked):
                return {"FileSystem": existing.described}
        _validate(params)
        described = self._describe_new(params)
        file_system = FileSystem(described=described, asked=params)
        file_system.eni_id = self._attach(params, described)
        described["NetworkInterfaceIds"] = [file_system.eni_id]
        self.file_systems[described["FileSystemId"]] = file_system
        self.emulation.clock.after(CREATE_S, lambda: self._created(file_system))
        return {"FileSystem": described}

    def describe_file_systems(self, params: dict[str, Any]) -> dict[str, Any]:
        """Return file systems; an unknown id is an error."""
        ids = params.get("FileSystemIds")
        if ids:
            return {"FileSystems": [self._find(each).described for each in ids]}
        everything = [held.described for held in list(self.file_systems.values())]
        return paged("FileSystems", everything, params)

    def delete_file_system(self, params: dict[str, Any]) -> dict[str, Any]:
        file_system = self._find(params["FileSystemId"])
        if file_system.described["Lifecycle"] == "CREATING":
            raise ApiError(
                "BadRequest",
                f"File system '{params['FileSystemId']}' is being created and cannot be "
                "deleted yet.",
            )
        if any(held.is_importing for held in self.of_file_system(params["FileSystemId"])):
            raise ApiError(
                "BadRequest",
                f"File system '{params['FileSystemId']}' has a data repository task that is "
                "executing and cannot be deleted yet.",
            )
        if file_system.described["Lifecycle"] != "DELETING":
            file_system.described["Lifecycle"] = "DELETING"
            self.emulation.clock.after(DELETE_S, lambda: self._gone(file_system))
        return {"FileSystemId": params["FileSystemId"], "Lifecycle": "DELETING"}

    def iter_tagged_resources(self) -> Iterator[TaggedResource]:
        """Yield what the tagging API may show."""
        for described in self._everything():
            is_link = "AssociationId" in described
            yield TaggedResource(
                arn=described["ResourceARN"],
                tags={tag["Key"]: tag["Value"] for tag in described["Tags"]},
                resource_type="fsx:association" if is_link else "fsx:file-system",
            )

    # -- lifecycle --------------------------------------------------------------------------------

    def _created(self, file_system: FileSystem) -> None:
        described = file_system.described
        if described["Lifecycle"] != "CREATING":
            return
        faults = self.emulation.faults
        if "no-storage-in-first-zone" in faults and self._is_in_first_zone(described):
            failure = "insufficient storage capacity in the Availability Zone of the subnet"
        elif "file-system-fails" in faults:
            failure = "internal failure"
        else:
            failure = self._stand_behind(described["FileSystemId"])
        described["Lifecycle"] = "FAILED" if failure else "AVAILABLE"
        if failure:
            message = f"The file system could not be created: {failure}"
            described["FailureDetails"] = {"Message": message}
        elif "file-system-fills" in faults:
            self._report_free(described["FileSystemId"])

    def _report_free(self, identity: str) -> None:
        """Tell CloudWatch that a GiB is free."""
        cloudwatch = cloudwatch_backends[self.emulation.account_id][self.emulation.region]
        about = {"Dimensions": [{"Name": "FileSystemId", "Value": identity}], "Value": 2**30}
        cloudwatch.put_metric_data("AWS/FSx", [about | {"MetricName": "FreeDataStorageCapacity"}])

    def _is_in_first_zone(self, described: dict[str, Any]) -> bool:
        subnet = self._ec2().get_subnet(described["SubnetIds"][0])
        return str(subnet.availability_zone) == f"{self.emulation.region}a"

    def _stand_behind(self, identity: str) -> str:
        """Let the observer bring what stands behind the file system; why it could not, if so."""
        try:
            self.emulation.observer.file_system_available(file_system_id=identity)
        except OSError as exc:  # this machine's disk is full, or its directory is gone
            return f"{exc.filename}: {(exc.strerror or str(exc)).lower()}"
        return ""

    def _gone(self, file_system: FileSystem) -> None:
        identity = file_system.described["FileSystemId"]
        with self.emulation.locks["ec2"]:
            self._ec2().enis.pop(file_system.eni_id, None)
        if self.file_systems.pop(identity, None) is not None:
            for held in self.of_file_system(identity):
                self.associations.pop(held.described["AssociationId"], None)
            self.emulation.observer.file_system_deleted(file_system_id=identity)

    def _attach(self, params: dict[str, Any], described: dict[str, Any]) -> str:
        """Put a network interface into the subnet, as the service does."""
        subnet_id = params["SubnetIds"][0]
        backend = self._ec2()
        with self.emulation.locks["ec2"]:
            subnet = next(
                (found[subnet_id] for found in backend.subnets.values() if subnet_id in found), None
            )
            if subnet is None:
                raise ApiError("InvalidNetworkSettings", f"The subnet {subnet_id} does not exist")
            for group_id in params.get("SecurityGroupIds", []):
                if backend.get_security_group_from_id(group_id) is None:
                    raise ApiError(
                        "InvalidNetworkSettings", f"The security group {group_id} does not exist"
                    )
                if self.emulation.first_calls.is_unknown(group_id, to="CreateFileSystem"):
                    # Source: https://github.com/aws/aws-parallelcluster/issues/6181
                    raise ApiError(
                        "InvalidNetworkSettings",
                        "The file system cannot be created because the default security group in "
                        "the subnet provided or the provided security groups do not permit Lustre "
                        "LNET network traffic on port 988",
                    )
            eni = backend.create_network_interface(
                subnet,
                None,
                group_ids=params.get("SecurityGroupIds"),
                description=f"FSx for Lustre {described['FileSystemId']}",
            )
            described["VpcId"] = subnet.vpc_id
            return str(eni.id)

    def _describe_new(self, params: dict[str, Any]) -> dict[str, Any]:
        identity = f"fs-0{uuid.uuid4().hex[:16]}"
        region, account = self.emulation.region, self.emulation.account_id
        lustre = {"DataCompressionType": "NONE", **params["LustreConfiguration"]}
        lustre["MountName"] = uuid.uuid4().hex[:8]
        return {
            "OwnerId": account,
            "CreationTime": datetime.now(UTC),
            "FileSystemId": identity,
            "FileSystemType": "LUSTRE",
            "FileSystemTypeVersion": params.get("FileSystemTypeVersion", "2.10"),
            "Lifecycle": "CREATING",
            "StorageCapacity": params["StorageCapacity"],
            "StorageType": params.get("StorageType", "SSD"),
            "SubnetIds": params["SubnetIds"],
            "DNSName": f"{identity}.fsx.{region}.amazonaws.com",
            "ResourceARN": f"arn:aws:fsx:{region}:{account}:file-system/{identity}",
            "Tags": list(params.get("Tags", [])),
            "LustreConfiguration": lustre,
        }

    # -- finding ----------------------------------------------------------------------------------

    def file_system(self, identity: str) -> dict[str, Any]:
        """Return what the API shows of a file system."""
        return self._find(identity).described

    def _find(self, identity: str) -> FileSystem:
        found = self.file_systems.get(identity)
        if found is None:
            raise ApiError("FileSystemNotFound", f"File system '{identity}' does not exist.")
        return found

    def _everything(self) -> list[dict[str, Any]]:
        """Return what the API shows of each file system and of each association."""
        file_systems = [held.described for held in list(self.file_systems.values())]
        return [*file_systems, *(held.described for held in list(self.associations.values()))]

    def _ec2(self) -> Any:
        return ec2_backends[self.emulation.account_id][self.emulation.region]


def _validate(params: dict[str, Any]) -> None:
    """Refuse what the service refuses of the deployment types that exist here."""
    lustre = params.get("LustreConfiguration") or {}
    kind = (params.get("FileSystemType"), lustre.get("DeploymentType"))
    if kind not in (("LUSTRE", "SCRATCH_2"), ("LUSTRE", "PERSISTENT_2")):
        raise ApiError(
            "BadRequest",
            f"FileSystemType {kind[0]} with DeploymentType {kind[1]} is not emulated; use LUSTRE "
            "with SCRATCH_2 or PERSISTENT_2",
        )
    deployment, throughput = kind[1], lustre.get("PerUnitStorageThroughput")
    allowed = _THROUGHPUT if deployment == "PERSISTENT_2" else (None,)
    if throughput not in allowed:
        raise ApiError(
            "InvalidPerUnitStorageThroughput",
            f"PerUnitStorageThroughput {throughput} is not valid for {deployment}; "
            f"use one of {', '.join(map(str, allowed))}",
        )
    capacity = int(params.get("StorageCapacity", 0))
    if capacity != 1200 and (capacity < 2400 or capacity % 2400):
        raise ApiError(
            "BadRequest",
            f"StorageCapacity {capacity} is not valid for a {deployment} file system; "
            "expected 1200 GiB or a multiple of 2400 GiB",
        )

"""A file system that somebody else keeps."""

from __future__ import annotations

from typing import Any

from stationmaster.domain.catalogue.instances import get_instance
from stationmaster.domain.cluster.events import ClusterPhase
from stationmaster.domain.cluster.spec import spec_for_any
from tests.support.aws_fixtures import until
from tests.support.aws_steps import Account


class Theirs:
    """A file system in the second of the deployment's zones."""

    def __init__(self, account: Account, **rule: Any) -> None:
        settings = account.settings
        self.ec2, self.fsx = account.aws.client("ec2"), account.aws.client("fsx")
        self.subnet_id = settings.subnet_ids[1]
        self.group_id = self.ec2.create_security_group(
            GroupName=f"of {account.run_id}", Description="theirs", VpcId=settings.vpc_id
        )["GroupId"]
        rule = rule or {"UserIdGroupPairs": [{"GroupId": self.group_id}]}
        self.ec2.authorize_security_group_ingress(
            GroupId=self.group_id, IpPermissions=[{"IpProtocol": "-1", **rule}]
        )
        self.file_system_id = self.fsx.create_file_system(
            FileSystemType="LUSTRE",
            FileSystemTypeVersion="2.12",
            StorageCapacity=1200,
            SubnetIds=[self.subnet_id],
            SecurityGroupIds=[self.group_id],
            LustreConfiguration={"DeploymentType": "SCRATCH_2"},
        )["FileSystem"]["FileSystemId"]
        until(lambda: self.described["Lifecycle"] == "AVAILABLE")

    @property
    def described(self) -> dict[str, Any]:
        found = self.fsx.describe_file_systems(FileSystemIds=[self.file_system_id])
        described: dict[str, Any] = found["FileSystems"][0]
        return described


def begin(account: Account, theirs: Theirs) -> None:
    """A kept cluster that is to use it, and of which nothing is made."""
    found = account.services.existing_file_systems.look_up(theirs.file_system_id)
    instance = get_instance("m5.2xlarge")
    spec = spec_for_any(instance, nodes=2, file_system_gib=1200, existing=found.spec)
    account.keep(ClusterPhase.PROVISIONING, spec=spec)

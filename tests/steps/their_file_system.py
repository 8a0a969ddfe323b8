"""A file system that somebody else keeps."""

from __future__ import annotations

from typing import Any

from stationmaster.domain.catalogue.instances import get_instance
from stationmaster.domain.cluster import events as cl
from stationmaster.domain.cluster.events import ClusterPhase
from stationmaster.domain.cluster.spec import spec_for_any
from stationmaster.services import Services
from tests.support.aws_fixtures import until
from tests.support.aws_steps import Account
from tests.support.factories import make_cluster_event


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
    services: Services = account.services
    found = services.existing_file_systems.look_up(theirs.file_system_id)
    instance = get_instance("m5.2xlarge")
    spec = spec_for_any(instance, nodes=2, file_system_gib=1200, existing=found.spec)
    services.cluster_states.create(
        make_cluster_event(
            cl.ClusterRequested,
            event_id="requested",
            cluster_id=account.cluster_id,
            at=account.now(),
            spec=spec,
            name=f"lab-{account.cluster_id}",
            requester=cl.Requester(team_id="T1", channel_id="C1", user_id="U1"),
        )
    )
    account.happen_to_cluster(cl.ClusterPhaseChanged, phase=ClusterPhase.PROVISIONING)

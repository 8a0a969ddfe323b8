"""What somebody else has in the account, which no workflow may touch; and all that an account has.

Used by the fixture `world`: what is there before the first run is there unchanged after the last.
"""

from __future__ import annotations

from typing import Any

from stationmaster.domain.names import TAG_CLUSTER_ID
from stationmaster.settings import Settings

_NAME = "somebody-elses"
# Of a cluster that the product does not know.
_TAGS = [{"Key": TAG_CLUSTER_ID, "Value": _NAME}]


def make_foreign(aws: Any, settings: Settings) -> None:
    """An EKS cluster, file systems and a security group of somebody else."""
    subnets = list(settings.subnet_ids)
    aws.client("eks").create_cluster(
        name=_NAME,
        roleArn=settings.cluster_role_arn,
        resourcesVpcConfig={"subnetIds": subnets},
    )
    for tags in ({}, {"Tags": _TAGS}):
        aws.client("fsx").create_file_system(
            FileSystemType="LUSTRE",
            StorageCapacity=1200,
            SubnetIds=subnets[:1],
            LustreConfiguration={"DeploymentType": "SCRATCH_2"},
            **tags,
        )
    aws.client("ec2").create_security_group(
        GroupName=_NAME, Description=_NAME, VpcId=settings.vpc_id
    )
    aws.finish_lifecycles()


def in_account(aws: Any) -> dict[str, Any]:
    """Everything that the account has and the product could make or delete, as AWS lists it."""
    eks, fsx, ec2 = (aws.client(name) for name in ("eks", "fsx", "ec2"))
    clusters = eks.list_clusters()["clusters"]
    return {
        "clusters": [eks.describe_cluster(name=name)["cluster"] for name in clusters],
        "file systems": sorted(
            fsx.describe_file_systems()["FileSystems"], key=lambda each: each["FileSystemId"]
        ),
        "security groups": sorted(
            ec2.describe_security_groups()["SecurityGroups"], key=lambda each: each["GroupId"]
        ),
        "launch templates": ec2.describe_launch_templates()["LaunchTemplates"],
        "placement groups": ec2.describe_placement_groups()["PlacementGroups"],
        "network interfaces": ec2.describe_network_interfaces()["NetworkInterfaces"],
        "clocks": aws.client("scheduler").list_schedules()["Schedules"],
    }

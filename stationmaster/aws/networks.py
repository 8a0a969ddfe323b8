"""EC2: what a run needs of the network, inside the VPC that the network stack made.

One security group that nodes and the file system share, a launch template with one EFA interface
for each network card, and a cluster placement group for EFA instances. The availability zone is
chosen once, when the security group is created, and kept in its tags: nodes and file system must
be in the same zone.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, Final

from pydantic import BaseModel, ConfigDict

from stationmaster.aws.calls import AwsConflict, AwsNotFound, aws_call
from stationmaster.domain.catalogue.instances import InstanceType
from stationmaster.domain.errors import PermanentError
from stationmaster.domain.names import (
    SYSTEM_NODE_GROUP,
    TAG_RUN_ID,
    TRAINING_NODE_GROUP,
    launch_template_name,
    placement_group_name,
    security_group_name,
    tags,
)
from stationmaster.settings import Settings

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

TAG_SUBNET: Final = "stationmaster:subnet-id"
# GPU images are tens of GB and are unpacked on the root volume; 80 GiB, the default, fills up.
ROOT_VOLUME_GIB: Final = {True: 500, False: 100}

_NODE_CONFIG: Final = """\
MIME-Version: 1.0
Content-Type: multipart/mixed; boundary="//"

--//
Content-Type: application/node.eks.aws

apiVersion: node.eks.aws/v1alpha1
kind: NodeConfig
spec:
  instance:
    localStorage:
      strategy: RAID0
--//--
"""


class SecurityGroup(BaseModel):
    """The run's security group and the subnet that was chosen with it."""

    model_config = ConfigDict(frozen=True)

    group_id: str
    subnet_id: str


class Networks:
    """Creates, finds and deletes the network parts of runs."""

    def __init__(self, settings: Settings, client: EC2Client) -> None:
        self._settings = settings
        self._client = client

    def choose_subnet(self, instance_type: str) -> str:
        """The first private subnet whose availability zone offers the instance type.

        Raises:
            PermanentError: no zone of the VPC offers it.
        """
        with aws_call("reading subnets"):
            subnets = self._client.describe_subnets(SubnetIds=list(self._settings.subnet_ids))
        zone_of = {s["SubnetId"]: s["AvailabilityZone"] for s in subnets["Subnets"]}
        with aws_call(f"asking where {instance_type} is offered"):
            answer = self._client.describe_instance_type_offerings(
                LocationType="availability-zone",
                Filters=[{"Name": "instance-type", "Values": [instance_type]}],
            )
        offered = {offer["Location"] for offer in answer["InstanceTypeOfferings"]}
        for subnet_id in self._settings.subnet_ids:
            if zone_of.get(subnet_id) in offered:
                return subnet_id
        raise PermanentError(
            f"{instance_type} is offered in none of the zones {', '.join(sorted(zone_of.values()))}"
            f" of region {self._settings.region}; use another instance or region"
        )

    def security_group(self, run_id: str) -> SecurityGroup | None:
        """The run's security group, or None."""
        with aws_call(f"reading the security group of run {run_id}"):
            answer = self._client.describe_security_groups(Filters=[_by_run(run_id)])
        for group in answer["SecurityGroups"]:
            group_tags = {tag["Key"]: tag["Value"] for tag in group.get("Tags", [])}
            return SecurityGroup(
                group_id=group["GroupId"], subnet_id=group_tags.get(TAG_SUBNET, "")
            )
        return None

    def ensure_security_group(self, run_id: str, *, instance_type: str) -> SecurityGroup:
        """The run's security group, created if missing, open to itself in both directions.

        EFA needs every protocol between members; Lustre needs TCP 988 and 1018-1023 among them.
        """
        group = self.security_group(run_id)
        if group is None:
            subnet_id = self.choose_subnet(instance_type)
            with aws_call(f"creating the security group of run {run_id}"):
                group_id = self._client.create_security_group(
                    GroupName=security_group_name(run_id),
                    Description=f"nodes and file system of training run {run_id}",
                    VpcId=self._settings.vpc_id,
                    TagSpecifications=[
                        _tag_specification("security-group", run_id, {TAG_SUBNET: subnet_id})
                    ],
                )["GroupId"]
            group = SecurityGroup(group_id=group_id, subnet_id=subnet_id)
        self._open_to_itself(group.group_id)
        return group

    def _open_to_itself(self, group_id: str) -> None:
        permission: Any = [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group_id}]}]
        for authorize in (
            self._client.authorize_security_group_ingress,
            self._client.authorize_security_group_egress,
        ):
            try:
                with aws_call(f"opening security group {group_id} to itself"):
                    authorize(GroupId=group_id, IpPermissions=permission)
            except AwsConflict:
                continue  # the rule is there

    def ensure_placement_group(self, run_id: str) -> None:
        """The cluster placement group of the run's EFA instances."""
        try:
            with aws_call(f"creating the placement group of run {run_id}"):
                self._client.create_placement_group(
                    GroupName=placement_group_name(run_id),
                    Strategy="cluster",
                    TagSpecifications=[_tag_specification("placement-group", run_id)],
                )
        except AwsConflict:
            return

    def ensure_launch_template(
        self, run_id: str, *, instance: InstanceType, security_group_ids: list[str]
    ) -> None:
        """The launch template of the training nodes: EFA interfaces, disk, metadata, local NVMe."""
        data: dict[str, Any] = {
            "BlockDeviceMappings": [
                {
                    "DeviceName": "/dev/xvda",
                    "Ebs": {
                        "VolumeSize": ROOT_VOLUME_GIB[instance.num_gpus > 0],
                        "VolumeType": "gp3",
                        "Encrypted": True,
                        "DeleteOnTermination": True,
                    },
                }
            ],
            "UserData": base64.b64encode(_NODE_CONFIG.encode()).decode(),
        }
        if instance.num_efa:
            data["NetworkInterfaces"] = _network_interfaces(instance, security_group_ids)
            data["Placement"] = {"GroupName": placement_group_name(run_id)}
        else:
            data["SecurityGroupIds"] = security_group_ids
        self._create_launch_template(run_id, TRAINING_NODE_GROUP, data)

    def ensure_system_launch_template(self, run_id: str) -> None:
        """The launch template of the system node: tags and metadata, the rest as EKS has it."""
        self._create_launch_template(run_id, SYSTEM_NODE_GROUP, {})

    def _create_launch_template(self, run_id: str, node_group: str, data: dict[str, Any]) -> None:
        name = launch_template_name(run_id, node_group)
        common = {
            # With one hop, an answer does not reach a pod: pods cannot take the node's role.
            "MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 1},
            "TagSpecifications": [
                _tag_specification("instance", run_id),
                _tag_specification("volume", run_id),
                _tag_specification("network-interface", run_id),
            ],
        }
        try:
            with aws_call(f"creating launch template {name} of run {run_id}"):
                self._client.create_launch_template(
                    LaunchTemplateName=name,
                    ClientToken=name.removeprefix("stationmaster-"),
                    LaunchTemplateData=common | data,  # type: ignore[arg-type]  # built from parts
                    TagSpecifications=[_tag_specification("launch-template", run_id)],
                )
        except AwsConflict:
            return

    def list_for_run(self, run_id: str) -> list[str]:
        """What is left of the run's network, as `kind name` for a person."""
        found = []
        if self.security_group(run_id) is not None:
            found.append(f"security group {security_group_name(run_id)}")
        with aws_call(f"listing launch templates of run {run_id}"):
            templates = self._client.describe_launch_templates(Filters=[_by_run(run_id)])
        found += [
            f"launch template {t['LaunchTemplateName']}" for t in templates["LaunchTemplates"]
        ]
        with aws_call(f"listing placement groups of run {run_id}"):
            groups = self._client.describe_placement_groups(Filters=[_by_run(run_id)])
        found += [
            f"placement group {g['GroupName']}"
            for g in groups["PlacementGroups"]
            if g.get("State") != "deleted"
        ]
        return found

    def delete(self, run_id: str) -> None:
        """Delete what is left of the run's network; what is in use stays for the next call."""
        left = self.list_for_run(run_id)
        for kind in left:
            try:
                if kind.startswith("launch template"):
                    with aws_call(f"deleting {kind} of run {run_id}"):
                        self._client.delete_launch_template(
                            LaunchTemplateName=kind.removeprefix("launch template ")
                        )
                elif kind.startswith("placement group"):
                    with aws_call(f"deleting the placement group of run {run_id}"):
                        self._client.delete_placement_group(GroupName=placement_group_name(run_id))
                else:
                    self._delete_security_group(run_id)
            except (AwsNotFound, AwsConflict):
                continue

    def _delete_security_group(self, run_id: str) -> None:
        group = self.security_group(run_id)
        if group is not None:
            with aws_call(f"deleting the security group of run {run_id}"):
                self._client.delete_security_group(GroupId=group.group_id)


def _network_interfaces(
    instance: InstanceType, security_group_ids: list[str]
) -> list[dict[str, Any]]:
    """One EFA interface a card; the primary interface is on card 0, device 0.

    On an instance whose card 0 has EFA, each interface carries IP and EFA, on device 1 of every
    other card. Where card 0 has none, it gets a plain interface, and the other cards take EFA
    without IP, on device 0. Source: as for `InstanceType.efa_cards`.
    """
    if 0 in instance.efa_cards:
        kinds = [(card, 0 if card == 0 else 1, "efa") for card in instance.efa_cards]
    else:
        kinds = [(0, 0, "interface"), *((card, 0, "efa-only") for card in instance.efa_cards)]
    return [
        {
            "NetworkCardIndex": card,
            "DeviceIndex": device,
            "InterfaceType": kind,
            "Groups": security_group_ids,
            "DeleteOnTermination": True,
        }
        for card, device, kind in kinds
    ]


def _by_run(run_id: str) -> Any:
    return {"Name": f"tag:{TAG_RUN_ID}", "Values": [run_id]}


def _tag_specification(resource_type: str, run_id: str, more: dict[str, str] | None = None) -> Any:
    pairs = tags(run_id) | (more or {})
    return {
        "ResourceType": resource_type,
        "Tags": [{"Key": key, "Value": value} for key, value in pairs.items()],
    }

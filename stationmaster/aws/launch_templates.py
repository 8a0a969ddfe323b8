"""EC2 launch templates: one for each node group, with an EFA interface for each network card."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, Final

from stationmaster.aws.calls import Adapter, aws_call, ignoring_existing, ignoring_gone_or_busy
from stationmaster.aws.kinds import Actions
from stationmaster.aws.tags import by_cluster, tag_specification
from stationmaster.domain.catalogue.instances import InstanceType
from stationmaster.domain.cluster.spec import Reservation
from stationmaster.domain.ids import ClusterId, RunId
from stationmaster.domain.names import (
    SYSTEM_NODE_GROUP,
    TRAINING_NODE_GROUP,
    launch_template_name,
    placement_group_name,
)
from stationmaster.domain.resources import Left, ResourceKind

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

ACTIONS: Final = Actions(
    permission="network",
    resource="ec2:launch-template",
    create=("ec2:CreateLaunchTemplate",),
    read=("ec2:DescribeLaunchTemplates",),
    delete=("ec2:DeleteLaunchTemplate",),
)
_EXISTS: Final = "InvalidLaunchTemplateName.AlreadyExistsException"
_GONE: Final = ("InvalidLaunchTemplateId.NotFound", "InvalidLaunchTemplateName.NotFoundException")

# What an instance is launched with, and is tagged as the instance is.
LAUNCHED: Final = ("instance", "volume", "network-interface")

# GPU images are tens of GB and are unpacked on the root volume; 80 GiB, the default, fills up.
ROOT_VOLUME_GIB: Final = {True: 500, False: 100}
SYSTEM_VOLUME_GIB: Final = 20  # EKS's default

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


class LaunchTemplates(Adapter):
    """Creates, finds and deletes launch templates of clusters."""

    _client: EC2Client

    def ensure_training(
        self,
        cluster_id: ClusterId,
        *,
        instance: InstanceType,
        security_group_ids: list[str],
        reservation: Reservation | None = None,
        run_id: RunId | None = None,
    ) -> None:
        """Make the launch template of the training nodes: EFA interfaces, disk, metadata, local
        NVMe.

        Instances of a reservation are where it was made: in its placement group, or in none. A
        group of ours would ask for another place, and EC2 answers that it has no capacity. Source:
        https://github.com/terraform-aws-modules/terraform-aws-eks/issues/3730
        """
        data: dict[str, Any] = {
            "BlockDeviceMappings": _root_volume(ROOT_VOLUME_GIB[instance.num_gpus > 0]),
            "UserData": base64.b64encode(_NODE_CONFIG.encode()).decode(),
        }
        if instance.num_efa:
            data["NetworkInterfaces"] = _network_interfaces(instance, security_group_ids)
        else:
            data["SecurityGroupIds"] = security_group_ids
        group = (
            reservation.placement_group
            if reservation is not None
            else placement_group_name(cluster_id)
            if instance.num_efa
            else ""
        )
        if group:
            data["Placement"] = {"GroupName": group}
        if reservation is not None:
            # Never anything else: what is not left of it is not launched on demand.
            data["CapacityReservationSpecification"] = {
                "CapacityReservationTarget": {"CapacityReservationId": reservation.reservation_id}
            }
        if reservation is not None and reservation.window is not None:
            # EKS reads the type of a block's instances here alone. Source: EKS user guide, "Create
            # a managed node group with Capacity Blocks for ML".
            data |= {
                "InstanceType": instance.name,
                "InstanceMarketOptions": {"MarketType": "capacity-block"},
            }
        self._ensure(cluster_id, TRAINING_NODE_GROUP, data, run_id)

    def ensure_system(
        self,
        cluster_id: ClusterId,
        *,
        security_group_ids: list[str],
        run_id: RunId | None = None,
    ) -> None:
        """Make the launch template of the system node: disk, tags, metadata, mounting of FSx."""
        data = {
            "BlockDeviceMappings": _root_volume(SYSTEM_VOLUME_GIB),
            "SecurityGroupIds": security_group_ids,
        }
        self._ensure(cluster_id, SYSTEM_NODE_GROUP, data, run_id)

    def release(self, cluster_id: ClusterId, template_id: str) -> None:
        """Delete a launch template; one that is gone or in use is left to the next call."""
        what = f"deleting launch template {template_id} of {cluster_id}"
        with ignoring_gone_or_busy(what, *_GONE):
            self._client.delete_launch_template(LaunchTemplateId=template_id)

    def left(self, cluster_id: ClusterId) -> list[Left]:
        """List every launch template that carries the cluster's tag."""
        with aws_call(f"listing launch templates of {cluster_id}"):
            templates = self._client.describe_launch_templates(Filters=[by_cluster(cluster_id)])
        return [
            Left(
                ResourceKind.LAUNCH_TEMPLATE,
                template["LaunchTemplateName"],
                template["LaunchTemplateId"],
            )
            for template in templates["LaunchTemplates"]
        ]

    def _ensure(
        self, cluster_id: ClusterId, node_group: str, data: dict[str, Any], run_id: RunId | None
    ) -> None:
        name = launch_template_name(cluster_id, node_group)

        def tagged(kind: str) -> Any:
            return tag_specification(kind, cluster_id, run_id, shared=self._settings.shared_tags)

        common = {
            # With one hop, an answer does not reach a pod: pods cannot take the node's role.
            "MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 1},
            "TagSpecifications": [tagged(kind) for kind in LAUNCHED],
        }
        with ignoring_existing(f"creating launch template {name}", _EXISTS):
            self._client.create_launch_template(
                LaunchTemplateName=name,
                ClientToken=name.removeprefix("stationmaster-"),
                LaunchTemplateData=common | data,  # type: ignore[arg-type]  # built from parts
                TagSpecifications=[tagged("launch-template")],
            )


def _root_volume(size_gib: int) -> list[dict[str, Any]]:
    """Describe the disk that the instance starts from."""
    return [
        {
            "DeviceName": "/dev/xvda",
            "Ebs": {
                "VolumeSize": size_gib,
                "VolumeType": "gp3",
                "Encrypted": True,
                "DeleteOnTermination": True,
            },
        }
    ]


def _network_interfaces(
    instance: InstanceType, security_group_ids: list[str]
) -> list[dict[str, Any]]:
    """Describe an EFA interface a card; the primary interface is on card 0, device 0.

    On smaller instances each interface carries IP and EFA, on device 1 of every other card. On
    larger ones card 0 gets a plain interface, and EFA without IP is beside it, where the card has
    EFA, and on device 0 of the other cards: 31 addresses less for 32 cards. Source: as for
    `InstanceType.efa_cards`.
    """
    if instance.has_efa_without_ip:
        beside = [(card, 1 if card == 0 else 0, "efa-only") for card in instance.efa_cards]
        kinds = [(0, 0, "interface"), *beside]
    else:
        kinds = [(card, 0 if card == 0 else 1, "efa") for card in instance.efa_cards]
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

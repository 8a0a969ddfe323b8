"""Rules for what AWS, CloudFormation and eksctl answer while a cluster is made or deleted."""

from __future__ import annotations

from typing import Final

from stationmaster.diagnosis.rules import TOOL, Rank, Rule, Where

_ANSWER: Final = TOOL | frozenset({Where.EVENT})
_EC2: Final = "Amazon EC2 API reference, error codes"
_OTHER_WAYS: Final = (
    "start it again with capacity=odcr:ID, capacity=block:ID or another instance=TYPE; "
    "`/train plan {recipe} instance=TYPE` says whether that fits"
)

RULES: Final = (
    Rule(
        id="capacity-reservation-full",
        where=_ANSWER,
        hint="reservationcapacityexceeded",
        pattern=r"ReservationCapacityExceeded",
        rank=Rank.CAPACITY,
        diagnosis="the capacity reservation has fewer free instances than were asked for",
        remedy="start it again with fewer nodes=, or enlarge the reservation; "
        "`/train preflight {recipe}` counts its free instances",
        source=_EC2,
    ),
    Rule(
        id="capacity-reservation",
        where=_ANSWER,
        hint="capacityreservation|capacity reservation",
        pattern=r"CapacityReservationNotFound|InvalidCapacityReservationId"
        r"|capacity reservation.{0,160}(?:availability zone|instance type|does not match)",
        rank=Rank.CAPACITY,
        diagnosis="the capacity reservation is not there, or is for another zone or instance type",
        remedy="`aws ec2 describe-capacity-reservations`, then capacity=odcr:ID with an id of "
        "this region; its zone and type are taken from it",
        source=_EC2,
    ),
    Rule(
        id="capacity-block",
        where=_ANSWER,
        hint="capacity block|capacityblock|capacity-block",
        pattern=r"capacity[- ]?block.{0,120}?(?:expired|not active|has ended|not started"
        r"|is required|must specify)",
        rank=Rank.CAPACITY,
        diagnosis="the capacity block has not begun, has ended, or was not named as one",
        remedy="`aws ec2 describe-capacity-reservations` has its times; type capacity=block:ID, "
        "and the run waits for it",
        source="EC2 user guide, Capacity Blocks for ML",
    ),
    Rule(
        id="capacity",
        where=_ANSWER,
        hint="insufficientinstancecapacity|sufficient|unfulfillablecapacity",
        pattern=r"InsufficientInstanceCapacity|UnfulfillableCapacity"
        r"|do not have sufficient .{0,40}capacity",
        rank=Rank.CAPACITY,
        diagnosis="AWS has no free instances of this type in this zone now",
        remedy=_OTHER_WAYS,
        source=_EC2,
    ),
    Rule(
        id="quota",
        where=_ANSWER,
        hint="vcpulimitexceeded|vcpu capacity|maxspotinstancecountexceeded",
        pattern=r"VcpuLimitExceeded|more vCPU capacity than your current vCPU limit"
        r"|MaxSpotInstanceCountExceeded",
        rank=Rank.CAPACITY,
        diagnosis="the account's quota of vCPUs is too low (96 for each p4d, 192 for each p5)",
        remedy="`/train preflight {recipe}` names the quota and its value; ask for more in "
        "Service Quotas",
        source=_EC2,
    ),
    Rule(
        id="zone-without-type",
        where=_ANSWER,
        hint="not supported in your requested availability zone|unsupportedavailabilityzone",
        pattern=r"not supported in your requested Availability Zone|UnsupportedAvailabilityZone",
        rank=Rank.CAPACITY,
        diagnosis="this zone does not have the instance type, or no EKS control planes",
        remedy="use a subnet in another zone; `/train preflight {recipe}` lists the zones that "
        "have the type",
        source=_EC2,
    ),
    Rule(
        id="nodes-do-not-join",
        where=_ANSWER,
        hint="nodecreationfailure|failed to stabilize|failed to join",
        pattern=r"NodeCreationFailure|failed to join the kubernetes cluster"
        r"|Nodegroup \S{1,120} failed to stabilize",
        rank=Rank.CAPACITY,
        diagnosis="instances started and did not become nodes: no way out of the subnet, missing "
        "policies of the node role, or a wrong NodeConfig",
        remedy="`aws ec2 get-console-output --instance-id ID` has nodeadm's error; "
        "`/train preflight {recipe}` checks network and role",
        source="EKS user guide, troubleshooting, node creation failure",
    ),
    Rule(
        id="subnet-missing",
        where=_ANSWER,
        hint="subnet",
        pattern=r"The subnet ID '(?P<subnet>[^']{1,60})' does not exist|InvalidSubnetID\.NotFound",
        rank=Rank.CAPACITY,
        diagnosis="a subnet of the settings does not exist in this region and account",
        remedy="correct the deployment's subnets (docs/settings.md); `/train preflight {recipe}` "
        "looks them up",
        source=_EC2,
    ),
    Rule(
        id="file-system-capacity",
        where=_ANSWER,
        hint="storage capacity|storagecapacity",
        pattern=r"InsufficientStorageCapacity|insufficient storage capacity",
        rank=Rank.CAPACITY,
        diagnosis="AWS has no storage left for such a file system in this zone now",
        remedy="`/train plan {recipe} file_system_type=persistent-250` shows another type; or type "
        "its command again later, or with file_system=fs-... that exists",
        source="Amazon FSx API reference, CreateFileSystem",
    ),
    Rule(
        id="file-system-size",
        where=_ANSWER,
        hint="storage capacity|storagecapacity",
        pattern=r"(?:invalid|unsupported) storage ?capacity|storage ?capacity (?:must|should|is not"
        r"|of \d+ GiB is not|value is not)",
        rank=Rank.CAPACITY,
        diagnosis="FSx does not make file systems of this size",
        remedy="start it again with file_system=1200, or a multiple of 2400",
        source="Amazon FSx API reference, CreateFileSystem, StorageCapacity",
    ),
    Rule(
        id="not-authorized",
        where=_ANSWER,
        hint="is not authorized to perform",
        pattern=r"is not authorized to perform: (?P<action>[\w:-]{1,80})",
        rank=Rank.CAPACITY,
        diagnosis="the role that was used may not call {action}",
        remedy="add {action} to the role's policy; `/train preflight {recipe}` tries what a start "
        "needs",
        source="IAM user guide, troubleshooting access denied",
    ),
    Rule(
        id="in-use-by-others",
        where=_ANSWER,
        hint="dependencyviolation|dependent object",
        pattern=r"DependencyViolation|has a dependent object",
        rank=Rank.CAPACITY,
        diagnosis="AWS cannot delete it while something else uses it: an interface of a file "
        "system, a load balancer, or a rule of another security group",
        remedy="delete that first: `aws ec2 describe-network-interfaces --filters "
        "Name=group-id,Values=sg-...`, file systems before their network",
        source=_EC2,
    ),
    Rule(
        id="root-volume",
        where=_ANSWER,
        hint="space needed on the / filesystem|failed to install efa",
        pattern=r"more space needed on the / filesystem|failed to install EFA packages",
        rank=Rank.CAPACITY,
        diagnosis="the node's root volume is too small for the EFA installer",
        remedy="set volumeSize: 500 in the node group, or use the AL2023 NVIDIA image, which has "
        "the driver",
        source="eksctl-io/eksctl#6869",
    ),
)

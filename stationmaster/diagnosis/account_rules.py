"""Rules for what AWS, CloudFormation and eksctl answer: to a program, and about a cluster."""

from __future__ import annotations

from functools import partial
from typing import Final

from stationmaster.diagnosis.rules import ANSWER, Rank, Rule

_EC2: Final = "Amazon EC2 API reference, error codes"
_OTHER_WAYS: Final = (
    "start it again with capacity=odcr:ID, capacity=block:ID or another instance=TYPE; "
    "`/train plan {recipe} instance=TYPE` says whether that fits"
)

_refused = partial(Rule, where=ANSWER, rank=Rank.CAPACITY, source=_EC2)

RULES: Final = (
    _refused(
        id="capacity-reservation-full",
        pattern=r"ReservationCapacityExceeded",
        diagnosis="the capacity reservation has fewer free instances than were asked for",
        remedy="start it again with fewer nodes=, or enlarge the reservation; "
        "`/train preflight {recipe}` counts its free instances",
    ),
    _refused(
        id="capacity-reservation",
        pattern=r"CapacityReservationNotFound|InvalidCapacityReservationId"
        r"|capacity reservation.{0,160}(?:availability zone|instance type|does not match)",
        diagnosis="the capacity reservation is not there, or is for another zone or instance type",
        remedy="`aws ec2 describe-capacity-reservations`, then capacity=odcr:ID with an id of "
        "this region; its zone and type are taken from it",
    ),
    _refused(
        id="capacity-block",
        pattern=r"capacity[- ]?block.{0,120}?(?:expired|not active|has ended|not started"
        r"|is required|must specify)",
        diagnosis="the capacity block has not begun, has ended, or was not named as one",
        remedy="`aws ec2 describe-capacity-reservations` has its times; type capacity=block:ID, "
        "and the run waits for it",
        source="EC2 user guide, Capacity Blocks for ML",
    ),
    _refused(
        id="capacity",
        pattern=r"InsufficientInstanceCapacity|UnfulfillableCapacity"
        r"|do not have sufficient .{0,40}capacity",
        diagnosis="AWS has no free instances of this type in this zone now",
        remedy=_OTHER_WAYS,
    ),
    _refused(
        id="quota",
        pattern=r"VcpuLimitExceeded|more vCPU capacity than your current vCPU limit"
        r"|MaxSpotInstanceCountExceeded",
        diagnosis="the account's quota of vCPUs is too low (96 for each p4d, 192 for each p5)",
        remedy="`/train preflight {recipe}` names the quota and its value; ask for more in "
        "Service Quotas",
    ),
    _refused(
        id="zone-without-type",
        pattern=r"not supported in your requested Availability Zone|UnsupportedAvailabilityZone",
        diagnosis="this zone does not have the instance type, or no EKS control planes",
        remedy="use a subnet in another zone; `/train preflight {recipe}` lists the zones that "
        "have the type",
    ),
    _refused(
        id="nodes-do-not-join",
        pattern=r"NodeCreationFailure|failed to join the kubernetes cluster"
        r"|Nodegroup \S{1,120} failed to stabilize",
        diagnosis="instances started and did not become nodes: no way out of the subnet, missing "
        "policies of the node role, or a wrong NodeConfig",
        remedy="`aws ec2 get-console-output --instance-id ID` has nodeadm's error; "
        "`/train preflight {recipe}` checks network and role",
        source="EKS user guide, troubleshooting, node creation failure",
    ),
    _refused(
        id="subnet-missing",
        pattern=r"The subnet ID '(?P<subnet>[^']{1,60})' does not exist|InvalidSubnetID\.NotFound",
        diagnosis="a subnet of the settings does not exist in this region and account",
        remedy="correct the deployment's subnets (docs/settings.md); `/train preflight {recipe}` "
        "looks them up",
    ),
    _refused(
        id="file-system-capacity",
        pattern=r"InsufficientStorageCapacity|insufficient storage capacity",
        diagnosis="AWS has no storage left for such a file system in this zone now",
        remedy="`/train plan {recipe} file_system_type=persistent-250` shows another type; or type "
        "its command again later, or with file_system=fs-... that exists",
        source="Amazon FSx API reference, CreateFileSystem",
    ),
    _refused(
        id="file-system-size",
        pattern=r"(?:invalid|unsupported) storage ?capacity|storage ?capacity (?:must|should|is not"
        r"|of \d+ GiB is not|value is not)",
        diagnosis="FSx does not make file systems of this size",
        remedy="start it again with file_system=1200, or a multiple of 2400",
        source="Amazon FSx API reference, CreateFileSystem, StorageCapacity",
    ),
    _refused(
        id="not-authorized",
        pattern=r"is not authorized to perform: (?P<action>[\w:-]{1,80})",
        diagnosis="the role that was used may not call {action}",
        remedy="add {action} to the role's policy; `/train preflight {recipe}` tries what a start "
        "needs",
        source="IAM user guide, troubleshooting access denied",
    ),
    _refused(
        id="in-use-by-others",
        pattern=r"DependencyViolation|has a dependent object",
        diagnosis="AWS cannot delete it while something else uses it: an interface of a file "
        "system, a load balancer, or a rule of another security group",
        remedy="delete that first: `aws ec2 describe-network-interfaces --filters "
        "Name=group-id,Values=sg-...`, file systems before their network",
    ),
    _refused(
        id="root-volume",
        pattern=r"more space needed on the / filesystem|failed to install EFA packages",
        diagnosis="the node's root volume is too small for the EFA installer",
        remedy="set volumeSize: 500 in the node group, or use the AL2023 NVIDIA image, which has "
        "the driver",
        source="eksctl-io/eksctl#6869",
    ),
    Rule(
        id="s3-refused",
        pattern=r"ClientError: An error occurred \((?:403|AccessDenied)\) when calling the "
        r"(?P<call>\w{1,60}) operation",
        diagnosis="S3 refused {call}: the pods have no right to that bucket or key",
        remedy="give the role of the pods' service account s3:ListBucket and s3:GetObject there, "
        "or name a bucket that the deployment may read: dataset=s3://BUCKET/PREFIX",
        source="botocore ClientError; Amazon S3, HeadObject answers 403 without a reason",
    ),
)

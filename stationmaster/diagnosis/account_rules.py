"""Rules for what AWS, CloudFormation and eksctl answer: to a program, and about a cluster.

Then those for FSx for Lustre in Kubernetes: the driver, mounts and claims.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from stationmaster.diagnosis.rules import ANSWER, EVENT, LOG, Rank, Rule, Severity

_EC2: Final = "Amazon EC2 API reference, error codes"
_OTHER_WAYS: Final = (
    "start it again with capacity=odcr:ID, capacity=block:ID or another instance=TYPE; "
    "`/train plan {recipe} instance=TYPE` says whether that fits"
)

_refused = partial(Rule, where=ANSWER, rank=Rank.CAPACITY, source=_EC2)
_FSX: Final = "kubernetes-sigs/aws-fsx-csi-driver, docs/troubleshooting.md"
_LUSTRE: Final = r"(?:fsx|lustre|@tcp:).{0,600}?"
_SCHEDULER: Final = "Kubernetes, kube-scheduler, FailedScheduling"

_volume = partial(Rule, where=EVENT, rank=Rank.VOLUME)
_mount = partial(_volume, where=EVENT | LOG)

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
    _volume(
        id="csi-missing",
        pattern=r"driver name (?P<driver>\S{1,80}) not found in the list of registered CSI drivers",
        diagnosis="the driver {driver} does not run on that node, or has just started",
        remedy="`kubectl -n kube-system get pods -l app=fsx-csi-node -o wide`; "
        "`/train validate {cluster}` looks again",
        source=_FSX,
    ),
    _mount(
        id="mount-version",
        pattern=_LUSTRE + r"(?:mount failed: exit status 22|failed: Invalid argument)"
        r"|mount failed: exit status 22",
        diagnosis="Lustre refused the mount: the file system's version is older than the client's, "
        "or the mount name is wrong",
        remedy="make the file system with version 2.15 (file_system=GIB does), and compare the "
        "volume's mountname with `aws fsx describe-file-systems`",
        source="kubernetes-sigs/aws-fsx-csi-driver#437",
    ),
    _mount(
        id="mount-client",
        pattern=r"mount failed: exit status 19|Are the lustre modules loaded",
        diagnosis="the node has no Lustre client",
        remedy="use the AL2023 images of EKS; clusters that `/train cluster create NAME` makes "
        "have them",
        source="kubernetes-sigs/aws-fsx-csi-driver#35; bottlerocket-os/bottlerocket#3459",
    ),
    _mount(
        id="mount-stale",
        pattern=r"mount failed: exit status 17|" + _LUSTRE + r"failed: File exists",
        severity=Severity.WARNING,
        diagnosis="a mount of the same file system was left on the node",
        remedy="it is tried again by itself; where it stays, delete the pod, then drain the node",
        source="kubernetes-sigs/aws-fsx-csi-driver#180",
    ),
    _mount(
        id="mount-server",
        pattern=r"Is the MGS running|mount failed: exit status 5\b"
        r"|" + _LUSTRE + r"failed: Input/output error",
        diagnosis="the node does not reach the file system's management server, or the file system "
        "does not run",
        remedy="`aws fsx describe-file-systems` says whether it is AVAILABLE; then allow TCP 988 "
        "and 1018-1023 between the security groups of the file system and of the nodes",
        source="Lustre mount.lustre(8), EIO; FSx for Lustre user guide, troubleshooting",
    ),
    _mount(
        id="mount-refused",
        pattern=r"mount failed: exit status (?:1|13)\b"
        r"|" + _LUSTRE + r"failed: (?:Permission denied|Operation not permitted)",
        diagnosis="the file system, or the node's kernel, refused the mount",
        remedy="mount as root (the driver's pod must be privileged), and look at the file system's "
        "root squash: `aws fsx describe-file-systems`",
        source="Lustre mount.lustre(8), EPERM and EACCES",
    ),
    _mount(
        id="mount-name",
        pattern=r"Is the MGS specification correct|mount failed: exit status 2\b",
        diagnosis="the file system's mount name or address is wrong",
        remedy="compare dnsname and mountname of the volume with `aws fsx describe-file-systems`",
        source="FSx for Lustre user guide, troubleshooting",
    ),
    _mount(
        id="mount-ports",
        pattern=r"mount failed: exit status (?:107|108|110|111|113)\b"
        r"|" + _LUSTRE + r"(?:Connection timed out|No route to host|Connection refused"
        r"|transport endpoint)",
        diagnosis="the node cannot reach the file system: a security group, another zone or "
        "another network",
        remedy="allow TCP 988 and 1018-1023 in both directions between the file system's and the "
        "nodes' security group; `/train validate {cluster}` mounts it again",
        source="FSx for Lustre user guide, limiting access with security groups",
    ),
    _mount(
        id="mount-hangs",
        pattern=r"An operation with the given volume=?.{1,160}? (?:is )?already in progress",
        diagnosis="an earlier mount of the volume still hangs, most often at a security group",
        remedy="allow TCP 988 and 1018-1023 in both directions between the file system's and the "
        "nodes' security group; `/train validate {cluster}` mounts it again",
        source="kubernetes-sigs/aws-fsx-csi-driver#369",
    ),
    _volume(
        id="volume-failed",
        pattern=r"ProvisioningFailed: (?P<why>.{1,200})",
        diagnosis="no file system was made for the claim: {why}",
        remedy="`aws fsx describe-file-systems` has FailureDetails; the size must be 1200 GiB or a "
        "multiple of 2400, and the driver's role needs fsx:CreateFileSystem; `file_system=GIB` "
        "in `/train` makes one without a claim",
        source="kubernetes-sigs/aws-fsx-csi-driver#496",
    ),
    _volume(
        id="claim-missing",
        pattern=r'persistentvolumeclaim "(?P<claim>[^"]{1,120})" not found',
        diagnosis="the namespace has no claim {claim}; claims belong to one namespace",
        remedy="`kubectl get pvc -A`, then correct the name in the manifest or make the claim",
        source=_SCHEDULER,
    ),
    _volume(
        id="claim-unbound",
        pattern=r"unbound immediate PersistentVolumeClaims",
        diagnosis="the pod's claim has no volume yet",
        remedy="`kubectl describe pvc` says why; a new file system takes about 10 minutes, and a "
        "failed one never comes",
        source=_SCHEDULER,
    ),
    Rule(
        id="mount",
        where=EVENT,
        pattern=r"(?:FailedMount|FailedAttachVolume): (?P<why>.{1,200})",
        rank=Rank.WRAPPER,
        diagnosis="a volume cannot be mounted: {why}",
        remedy="`kubectl describe pod` has the first message; `/train validate {cluster}` mounts "
        "the file system again",
        source=_FSX,
    ),
)

"""Rules for FSx for Lustre in Kubernetes: the driver, mounts and claims."""

from __future__ import annotations

from typing import Final

from stationmaster.diagnosis.rules import EVENT, LOG, Rank, Rule, Severity

_FSX: Final = "kubernetes-sigs/aws-fsx-csi-driver, docs/troubleshooting.md"
_LUSTRE: Final = r"(?:fsx|lustre|@tcp:).{0,600}?"
_SCHEDULER: Final = "Kubernetes, kube-scheduler, FailedScheduling"

RULES: Final = (
    Rule(
        id="csi-missing",
        where=EVENT,
        hint="registered csi drivers",
        pattern=r"driver name (?P<driver>\S{1,80}) not found in the list of registered CSI drivers",
        rank=Rank.VOLUME,
        diagnosis="the driver {driver} does not run on that node, or has just started",
        remedy="`kubectl -n kube-system get pods -l app=fsx-csi-node -o wide`; "
        "`/train validate {cluster}` looks again",
        source=_FSX,
    ),
    Rule(
        id="mount-version",
        where=EVENT | LOG,
        hint="exit status |invalid argument",
        pattern=_LUSTRE + r"(?:mount failed: exit status 22|failed: Invalid argument)"
        r"|mount failed: exit status 22",
        rank=Rank.VOLUME,
        diagnosis="Lustre refused the mount: the file system's version is older than the client's, "
        "or the mount name is wrong",
        remedy="make the file system with version 2.15 (file_system=GIB does), and compare the "
        "volume's mountname with `aws fsx describe-file-systems`",
        source="kubernetes-sigs/aws-fsx-csi-driver#437",
    ),
    Rule(
        id="mount-client",
        where=EVENT | LOG,
        hint="exit status |lustre modules loaded",
        pattern=r"mount failed: exit status 19|Are the lustre modules loaded",
        rank=Rank.VOLUME,
        diagnosis="the node has no Lustre client",
        remedy="use the AL2023 images of EKS; clusters that `/train cluster create NAME` makes "
        "have them",
        source="kubernetes-sigs/aws-fsx-csi-driver#35; bottlerocket-os/bottlerocket#3459",
    ),
    Rule(
        id="mount-stale",
        where=EVENT | LOG,
        hint="exit status |file exists",
        pattern=r"mount failed: exit status 17|" + _LUSTRE + r"failed: File exists",
        rank=Rank.VOLUME,
        severity=Severity.WARNING,
        diagnosis="a mount of the same file system was left on the node",
        remedy="it is tried again by itself; where it stays, delete the pod, then drain the node",
        source="kubernetes-sigs/aws-fsx-csi-driver#180",
    ),
    Rule(
        id="mount-name",
        where=EVENT | LOG,
        hint="mgs specification",
        pattern=r"Is the MGS specification correct",
        rank=Rank.VOLUME,
        diagnosis="the file system's mount name or address is wrong",
        remedy="compare dnsname and mountname of the volume with `aws fsx describe-file-systems`",
        source="FSx for Lustre user guide, troubleshooting",
    ),
    Rule(
        id="mount-ports",
        where=EVENT | LOG,
        hint="exit status |connection timed out",
        pattern=r"mount failed: exit status 110|" + _LUSTRE + r"Connection timed out",
        rank=Rank.VOLUME,
        diagnosis="the node cannot reach the file system: a security group, another zone or "
        "another network",
        remedy="allow TCP 988 and 1018-1023 in both directions between the file system's and the "
        "nodes' security group; `/train validate {cluster}` mounts it again",
        source="FSx for Lustre user guide, limiting access with security groups",
    ),
    Rule(
        id="mount-hangs",
        where=EVENT | LOG,
        hint="is already in progress",
        pattern=r"An operation with the given volume=?.{1,160}? (?:is )?already in progress",
        rank=Rank.VOLUME,
        diagnosis="an earlier mount of the volume still hangs, most often at a security group",
        remedy="allow TCP 988 and 1018-1023 in both directions between the file system's and the "
        "nodes' security group; `/train validate {cluster}` mounts it again",
        source="kubernetes-sigs/aws-fsx-csi-driver#369",
    ),
    Rule(
        id="volume-failed",
        where=EVENT,
        hint="provisioningfailed",
        pattern=r"ProvisioningFailed: (?P<why>.{1,200})",
        rank=Rank.VOLUME,
        diagnosis="no file system was made for the claim: {why}",
        remedy="`aws fsx describe-file-systems` has FailureDetails; the size must be 1200 GiB or a "
        "multiple of 2400, and the driver's role needs fsx:CreateFileSystem; `file_system=GIB` "
        "in `/train` makes one without a claim",
        source="kubernetes-sigs/aws-fsx-csi-driver#496",
    ),
    Rule(
        id="claim-missing",
        where=EVENT,
        hint="persistentvolumeclaim",
        pattern=r'persistentvolumeclaim "(?P<claim>[^"]{1,120})" not found',
        rank=Rank.VOLUME,
        diagnosis="the namespace has no claim {claim}; claims belong to one namespace",
        remedy="`kubectl get pvc -A`, then correct the name in the manifest or make the claim",
        source=_SCHEDULER,
    ),
    Rule(
        id="claim-unbound",
        where=EVENT,
        hint="unbound immediate",
        pattern=r"unbound immediate PersistentVolumeClaims",
        rank=Rank.VOLUME,
        diagnosis="the pod's claim has no volume yet",
        remedy="`kubectl describe pvc` says why; a new file system takes about 10 minutes, and a "
        "failed one never comes",
        source=_SCHEDULER,
    ),
    Rule(
        id="mount",
        where=EVENT,
        hint="failedmount|failedattachvolume",
        pattern=r"(?:FailedMount|FailedAttachVolume): (?P<why>.{1,200})",
        rank=Rank.WRAPPER,
        diagnosis="a volume cannot be mounted: {why}",
        remedy="`kubectl describe pod` has the first message; `/train validate {cluster}` mounts "
        "the file system again",
        source=_FSX,
    ),
)

"""Rules for FSx for Lustre in Kubernetes: the driver, mounts and claims."""

from __future__ import annotations

from functools import partial
from typing import Final

from stationmaster.diagnosis.rules import EVENT, LOG, Rank, Rule, Severity

_FSX: Final = "kubernetes-sigs/aws-fsx-csi-driver, docs/troubleshooting.md"
_LUSTRE: Final = r"(?:fsx|lustre|@tcp:).{0,600}?"
_SCHEDULER: Final = "Kubernetes, kube-scheduler, FailedScheduling"

_volume = partial(Rule, where=EVENT, rank=Rank.VOLUME)
_mount = partial(_volume, where=EVENT | LOG)

RULES: Final = (
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

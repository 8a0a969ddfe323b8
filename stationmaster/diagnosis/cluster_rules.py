"""Rules for Kubernetes: admission, the scheduler, images and evictions, in that order."""

from __future__ import annotations

from typing import Final

from stationmaster.diagnosis.rules import EVENT, LOG, TOOL, Rank, Rule, Severity, Where

_ANSWER: Final = TOOL | frozenset({Where.EVENT})
_KUBELET: Final = "Kubernetes, kubelet, events of images"
_SCHEDULER: Final = "Kubernetes, kube-scheduler, FailedScheduling"

_ADMISSION: Final = (
    Rule(
        id="webhook",
        where=_ANSWER,
        hint="failed calling webhook",
        pattern=r'failed calling webhook "(?P<webhook>[^"]{1,120})"',
        rank=Rank.ADMISSION,
        diagnosis="the operator behind the webhook {webhook} does not answer; in the first minutes "
        "after its installation that is usual",
        remedy="try again in a minute: `kubectl -n kubeflow rollout status "
        "deploy/training-operator`, then `/train validate {cluster}`",
        source="Kubernetes, dynamic admission control",
    ),
    Rule(
        id="container-name",
        where=_ANSWER,
        hint="container with name pytorch",
        pattern=r"must have at least one container with name pytorch",
        rank=Rank.ADMISSION,
        diagnosis="the training operator refused the job: each replica needs a container named "
        "pytorch",
        remedy="rename the container; `stationmaster lint FILE` finds what else would be refused",
        source="kubeflow/trainer v1.9.4, pkg/webhooks/pytorch",
    ),
    Rule(
        id="denied",
        where=_ANSWER,
        hint="denied the request",
        pattern=r'admission webhook "[^"]{1,120}" denied the request: '
        r"(?!.{0,400}container with name pytorch)(?P<why>.{1,200})",
        rank=Rank.ADMISSION,
        diagnosis="the operator refused the object: {why}",
        remedy="`stationmaster lint FILE` names the field and the fix",
        source="kubeflow/trainer v1.9.4, pkg/webhooks",
    ),
    Rule(
        id="mpi-versions",
        where=_ANSWER,
        hint="mpijob",
        pattern=r'no matches for kind "MPIJob" in version "(?P<version>[^"]{1,60})"'
        r"|MPIJob in version \S{1,40} cannot be handled",
        rank=Rank.ADMISSION,
        diagnosis="the cluster serves another version of MPIJob: the training operator has v1, the "
        "MPI operator v2beta1, and only one of them can own the name",
        remedy="write kubeflow.org/v2beta1, and run the training operator with "
        "--enable-scheme=pytorchjob; `stationmaster lint FILE` checks the version",
        source="kubeflow/trainer#1777",
    ),
    Rule(
        id="crd-missing",
        where=_ANSWER,
        hint="no matches for kind|doesn't have a resource type",
        pattern=r'no matches for kind "(?P<kind>(?!MPIJob")\w{1,60})" in version'
        r"|the server doesn't have a resource type",
        rank=Rank.ADMISSION,
        diagnosis="the cluster does not know this kind of object: its operator is not installed, "
        "or in another version",
        remedy="`/train validate {cluster}` says which operator is missing; clusters that "
        "`/train cluster create NAME` makes have it",
        source="kubectl, REST mapping",
    ),
    Rule(
        id="crd-size",
        where=_ANSWER,
        hint="annotations: too long",
        pattern=r"metadata\.annotations: Too long",
        rank=Rank.ADMISSION,
        diagnosis="kubectl keeps a copy of what it applies, and this object is too large for that",
        remedy="`kubectl apply --server-side -f FILE`",
        source="Kubernetes, server-side apply",
    ),
    Rule(
        id="forbidden",
        where=_ANSWER,
        hint="is forbidden: user",
        pattern=r'is forbidden: User "(?P<user>[^"]{1,200})" cannot (?P<verb>\w{1,20}) resource '
        r'"(?P<resource>[^"]{1,80})"',
        rank=Rank.ADMISSION,
        diagnosis="{user} may not {verb} {resource} in the cluster",
        remedy="give the role an access entry with these rights; `kubectl auth can-i {verb} "
        "{resource}` and `/train preflight` check it",
        source="Kubernetes, RBAC; EKS, access entries",
    ),
    Rule(
        id="exists-already",
        where=_ANSWER,
        hint="already exists|unchanged",
        pattern=r"(?P<kind>pytorchjobs?|mpijobs?|trainjobs?)(?:(?:\.trainer)?\.kubeflow\.org)?"
        r'(?: "|/)(?P<name>[\w.-]{1,80})"? (?:already exists|unchanged)',
        rank=Rank.ADMISSION,
        diagnosis="a job {name} is there already; what is finished is not started again",
        remedy="`kubectl delete {kind} {name}`, or give the new one another name",
        source="kubectl create and apply; awsome-distributed-ai, FSDP on EKS",
    ),
    Rule(
        id="ssh-modes",
        where=LOG | _ANSWER,
        hint="bad ownership or modes",
        pattern=r"bad ownership or modes for (?:directory|file) (?P<path>\S{1,120})",
        rank=Rank.ADMISSION,
        diagnosis="sshd of an MPI worker refuses the launcher: {path} has open permissions",
        remedy="set `StrictModes no` in the image's sshd_config, as the MPI operator's images do",
        source="OpenSSH sshd_config(5); kubeflow/mpi-operator build/base",
    ),
    Rule(
        id="metrics-missing",
        where=_ANSWER,
        hint="failedgetresourcemetric",
        pattern=r"FailedGetResourceMetric",
        rank=Rank.NOTE,
        severity=Severity.WARNING,
        diagnosis="an autoscaler that the job's elasticPolicy made finds no metrics",
        remedy="remove elasticPolicy.metrics from the job, or install the metrics server",
        source="Kubernetes, HorizontalPodAutoscaler; kubeflow/trainer#1972",
    ),
)

_PLACEMENT: Final = (
    Rule(
        id="no-gpu",
        where=EVENT,
        hint="insufficient nvidia.com/gpu",
        pattern=r"Insufficient nvidia\.com/gpu",
        rank=Rank.PLACEMENT,
        diagnosis="no node has enough free GPUs: another job has them, nodes are missing, or the "
        "NVIDIA plugin does not run",
        remedy="`/train validate {cluster}` counts GPUs; `/train list` shows runs that have them; "
        "`/train cluster resize {cluster} nodes=N` adds nodes",
        source=_SCHEDULER,
    ),
    Rule(
        id="no-efa",
        where=EVENT,
        hint="insufficient vpc.amazonaws.com/efa",
        pattern=r"Insufficient vpc\.amazonaws\.com/efa",
        rank=Rank.PLACEMENT,
        diagnosis="no node has as many EFA adapters as the pod asks for: the EFA plugin does not "
        "run, or the number is too high for the instance type",
        remedy="`stationmaster instances` has the number of each type, `/train validate {cluster}` "
        "counts those of the nodes",
        source=_SCHEDULER,
    ),
    Rule(
        id="no-hugepages",
        where=EVENT,
        hint="insufficient hugepages",
        pattern=r"Insufficient hugepages-2Mi",
        rank=Rank.PLACEMENT,
        diagnosis="the nodes reserve fewer huge pages than the pod asks for",
        remedy="remove hugepages-2Mi from the pod or ask for at most 5120Mi; "
        "`stationmaster lint FILE` checks a manifest",
        source=_SCHEDULER,
    ),
    Rule(
        id="no-room",
        where=EVENT,
        hint="insufficient cpu|insufficient memory",
        pattern=r"Insufficient (?P<what>cpu|memory)\b",
        rank=Rank.PLACEMENT,
        diagnosis="the pod asks for more {what} than a node has left for pods, which is less than "
        "the instance type has",
        remedy="ask for less (a p4d.24xlarge has 95.69 CPUs and 1,082,712 MiB for pods); "
        "`stationmaster lint FILE --instance TYPE` compares",
        source=_SCHEDULER,
    ),
    Rule(
        id="volume-zone",
        where=EVENT,
        hint="volume node affinity",
        pattern=r"volume node affinity conflict",
        rank=Rank.PLACEMENT,
        diagnosis="the volume is in another zone than the nodes",
        remedy="keep nodes and file system in one zone: `/train cluster create NAME` does",
        source=_SCHEDULER,
    ),
    Rule(
        id="taint",
        where=EVENT,
        hint="untolerated taint|didn't tolerate",
        pattern=r"untolerated taint(?:\(s\))?(?! \{node\.kubernetes\.io/(?:not-ready"
        r"|unreachable|unschedulable))|had taint.{0,80} that the pod didn't tolerate",
        rank=Rank.PLACEMENT,
        diagnosis="the nodes have a taint that the pod does not tolerate",
        remedy="add the toleration to the pod's template, or remove the taint: "
        "`kubectl describe nodes | grep -A2 Taints`",
        source=_SCHEDULER,
    ),
    Rule(
        id="selector",
        where=EVENT,
        hint="node affinity/selector|match node selector",
        pattern=r"didn't match (?:Pod's node affinity/selector|node selector)",
        rank=Rank.PLACEMENT,
        diagnosis="no node has the labels that the pod asks for, e.g. its instance type, which "
        "begins with ml. on HyperPod",
        remedy="`kubectl get nodes -L node.kubernetes.io/instance-type`, then correct "
        "nodeSelector; `/train validate {cluster}` compares them",
        source=_SCHEDULER,
    ),
    Rule(
        id="no-addresses",
        where=EVENT,
        hint="failed to assign an ip address",
        pattern=r"failed to assign an IP address to container",
        rank=Rank.PLACEMENT,
        diagnosis="the subnet has no free addresses for pods",
        remedy="use a larger subnet; `/train preflight` counts the free addresses",
        source="aws/amazon-vpc-cni-k8s, docs/troubleshooting.md",
    ),
)

_IMAGES: Final = (
    Rule(
        id="image-access",
        where=EVENT,
        hint="basic auth credentials|pull access denied|authorization token| forbidden"
        "| unauthorized",
        pattern=r"no basic auth credentials|pull access denied|authorization token has expired"
        r"|(?:pull|resolve).{0,300}(?:403 Forbidden|401 Unauthorized)",
        rank=Rank.IMAGE,
        diagnosis="the registry refused the node: it has no rights for this repository, or the "
        "repository is in another region or account",
        remedy="use an image of the cluster's region that the node role may pull, or "
        "`/train {recipe}` without image=",
        source=_KUBELET,
    ),
    Rule(
        id="image-missing",
        where=EVENT,
        hint="manifest unknown|not found|does not exist",
        pattern=r"manifest unknown|(?:pull|resolve).{0,300}: not found|repository .{1,200} does "
        r"not exist",
        rank=Rank.IMAGE,
        diagnosis="the registry has no such image or tag",
        remedy="check image=REPOSITORY:TAG: `aws ecr describe-images --repository-name NAME`",
        source=_KUBELET,
    ),
    Rule(
        id="image-limit",
        where=EVENT,
        hint="toomanyrequests",
        pattern=r"toomanyrequests",
        rank=Rank.IMAGE,
        diagnosis="the registry limits how often images are pulled without an account",
        remedy="copy the image to ECR and give that as image=",
        source="Docker Hub, pull rate limit",
    ),
    Rule(
        id="image-architecture",
        where=EVENT | LOG,
        hint="exec format error|no match for platform",
        pattern=r"exec format error|no match for platform in manifest",
        rank=Rank.IMAGE,
        diagnosis="the image was built for another processor architecture than the node has",
        remedy="build it with --platform linux/amd64 (linux/arm64 for Graviton) and start it "
        "again with that image=",
        source=_KUBELET,
    ),
    Rule(
        id="image-disk",
        where=EVENT,
        hint="no space left on device",
        pattern=r"(?:pull|unpack|extract|layer|container).{0,400}no space left on device",
        rank=Rank.IMAGE,
        diagnosis="the node's root volume is too small for the image",
        remedy="a larger root volume for the node group, or a smaller image; clusters that "
        "`/train cluster create NAME` makes have room for the training image",
        source=_KUBELET,
    ),
    Rule(
        id="evicted",
        where=EVENT,
        hint="evicted|low on resource|ephemeral|usage of emptydir",
        pattern=r"low on resource: (?P<what>[\w-]{1,40})|ephemeral local storage usage exceeds"
        r"|Usage of EmptyDir volume .{1,120} exceeds|\bEvicted\b",
        rank=Rank.KILLED,
        diagnosis="the kubelet evicted the pod: it filled the node's disk or memory, e.g. with "
        "checkpoints or a download cache inside the container",
        remedy="write to the shared file system; `/train resume {run}` continues from the last "
        "saved checkpoint",
        source="Kubernetes, node-pressure eviction",
    ),
    Rule(
        id="image",
        where=EVENT,
        hint="imagepullbackoff|errimagepull|pulling image|failed to pull image",
        pattern=r"ImagePullBackOff|ErrImagePull|Back-off pulling image|Failed to pull image",
        rank=Rank.WRAPPER,
        diagnosis="the image cannot be pulled",
        remedy="`kubectl describe pod` has the registry's answer; `/train {recipe}` without "
        "image= uses the deployment's image",
        source=_KUBELET,
    ),
    Rule(
        id="crash-loop",
        where=EVENT,
        hint="crashloopbackoff|restarting failed container|backofflimitexceeded|backoff limit",
        pattern=r"CrashLoopBackOff|Back-off restarting failed container|BackoffLimitExceeded"
        r"|reached the specified backoff limit",
        rank=Rank.WRAPPER,
        diagnosis="a container ends again and again, or too often",
        remedy="`/train logs {run}`: the container's own log says why",
        source="Kubernetes, container restart policy; kubeflow/trainer v1.9.4",
    ),
)

RULES: Final = (*_ADMISSION, *_PLACEMENT, *_IMAGES)

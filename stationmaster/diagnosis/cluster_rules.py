"""Rules for Kubernetes: admission, the scheduler, images and evictions, in that order."""

from __future__ import annotations

from functools import partial
from typing import Final

from stationmaster.diagnosis.rules import ANSWER, EVENT, LOG, Rank, Rule, Severity

_KUBELET: Final = "Kubernetes, kubelet, events of images"
_SCHEDULER: Final = "Kubernetes, kube-scheduler, FailedScheduling"

_admission = partial(Rule, where=ANSWER, rank=Rank.ADMISSION)
_placement = partial(Rule, where=EVENT, rank=Rank.PLACEMENT, source=_SCHEDULER)
_image = partial(Rule, where=EVENT, rank=Rank.IMAGE, source=_KUBELET)

_ADMISSION: Final = (
    _admission(
        id="webhook",
        pattern=r'failed calling webhook "(?P<webhook>[^"]{0,100}(?:kubeflow|jobset)[^"]{0,60})"',
        diagnosis="the operator behind the webhook {webhook} does not answer; in the first minutes "
        "after its installation that is usual",
        remedy="try again in a minute: `kubectl -n kubeflow rollout status "
        "deploy/training-operator`, then `/train validate {cluster}`",
        source="Kubernetes, dynamic admission control",
    ),
    _admission(
        id="webhook-foreign",
        pattern=r'failed calling webhook "(?P<webhook>(?![^"]*(?:kubeflow|jobset))[^"]{1,160})"',
        diagnosis="the webhook {webhook} of another program in the cluster does not answer, and "
        "the API server waits for it",
        remedy="start that program's pods again; `kubectl get "
        "validatingwebhookconfigurations,mutatingwebhookconfigurations` names its service",
        source="Kubernetes, dynamic admission control",
    ),
    _admission(
        id="unknown-field",
        pattern=r'strict decoding error: (?P<fields>(?:unknown|duplicate) field "[^"]{1,200}"'
        r".{0,160})",
        diagnosis="the manifest has a field that its kind does not know: {fields}",
        remedy="write it in its place or as it is spelled in the API; `stationmaster lint FILE` "
        "names the place",
        source="Kubernetes, server-side field validation",
    ),
    _admission(
        id="wrong-type",
        pattern=r"json: cannot unmarshal (?P<given>\w{1,20}) into Go struct field "
        r"(?P<field>\S{1,160}) of type (?P<type>\S{1,60})",
        diagnosis="the manifest's field {field} has a {given} where {type} is expected",
        remedy="correct its value; `stationmaster lint FILE` names the place",
        source="Kubernetes, decoding of objects",
    ),
    _admission(
        id="quota-pods",
        pattern=r"exceeded quota: (?P<quota>[^,]{1,80}), requested: (?P<wanted>.{1,160})",
        diagnosis="the namespace's quota {quota} does not allow it: requested {wanted}",
        remedy="end other jobs of the namespace, ask for less, or raise the quota: `kubectl "
        "describe resourcequota`",
        source="Kubernetes, resource quotas",
    ),
    _admission(
        id="container-name",
        pattern=r"must have at least one container with name pytorch",
        diagnosis="the training operator refused the job: each replica needs a container named "
        "pytorch",
        remedy="rename the container; `stationmaster lint FILE` finds what else would be refused",
        source="kubeflow/trainer v1.9.4, pkg/webhooks/pytorch",
    ),
    _admission(
        id="denied",
        pattern=r'admission webhook "[^"]{0,120}(?:kubeflow|kb\.io)[^"]{0,120}" denied the '
        r"request: (?!.{0,400}container with name pytorch)(?P<why>.{1,200})",
        diagnosis="the operator refused the object: {why}",
        remedy="`stationmaster lint FILE` names the field and the fix",
        source="kubeflow/trainer v1.9.4, pkg/webhooks",
    ),
    _admission(
        id="not-there",
        pattern=r'(?P<kind>secret|configmap|serviceaccount) "(?P<name>[^"]{1,120})" not found',
        diagnosis="the {kind} {name} that the pod names does not exist in its namespace",
        remedy="create it there, or correct the name in the manifest: `kubectl get {kind}`",
        source="Kubernetes, kubelet and ServiceAccount admission",
    ),
    _admission(
        id="policy",
        pattern=r'admission webhook "(?P<webhook>(?![^"]{0,120}(?:kubeflow|kb\.io))[^"]{1,120})" '
        r"denied the request: (?P<why>.{1,300})",
        diagnosis="{webhook}, a policy of this cluster and not the operator, refused the object: "
        "{why}",
        remedy="write what it asks for into the manifest, or ask whoever runs that policy",
        source="Kubernetes, dynamic admission control; Kyverno, Gatekeeper",
    ),
    _admission(
        id="mpi-versions",
        pattern=r'no matches for kind "MPIJob" in version "(?P<version>[^"]{1,60})"'
        r"|MPIJob in version \S{1,40} cannot be handled",
        not_in=r"strict decoding error|json: cannot unmarshal",
        diagnosis="the cluster serves another version of MPIJob: the training operator has v1, the "
        "MPI operator v2beta1, and only one of them can own the name",
        remedy="write kubeflow.org/v2beta1, and run the training operator with "
        "--enable-scheme=pytorchjob; `stationmaster lint FILE` checks the version",
        source="kubeflow/trainer#1777",
    ),
    _admission(
        id="crd-missing",
        pattern=r'no matches for kind "(?P<kind>(?!MPIJob")\w{1,60})" in version'
        r"|the server doesn't have a resource type",
        diagnosis="the cluster does not know this kind of object: its operator is not installed, "
        "or in another version",
        remedy="`/train validate {cluster}` says which operator is missing; clusters that "
        "`/train cluster create NAME` makes have it",
        source="kubectl, REST mapping",
    ),
    _admission(
        id="crd-size",
        pattern=r"metadata\.annotations: Too long",
        diagnosis="kubectl keeps a copy of what it applies, and this object is too large for that",
        remedy="`kubectl apply --server-side -f FILE`",
        source="Kubernetes, server-side apply",
    ),
    _admission(
        id="forbidden",
        pattern=r'is forbidden: User "(?P<user>[^"]{1,200})" cannot (?P<verb>\w{1,20}) resource '
        r'"(?P<resource>[^"]{1,80})"',
        diagnosis="{user} may not {verb} {resource} in the cluster",
        remedy="give the role an access entry with these rights; `kubectl auth can-i {verb} "
        "{resource}` and `/train preflight` check it",
        source="Kubernetes, RBAC; EKS, access entries",
    ),
    _admission(
        id="exists-already",
        pattern=r"(?P<kind>pytorchjobs?|mpijobs?|trainjobs?)(?:(?:\.trainer)?\.kubeflow\.org)?"
        r'(?: "|/)(?P<name>[\w.-]{1,80})"? (?:already exists|unchanged)',
        diagnosis="a job {name} is there already; what is finished is not started again",
        remedy="`kubectl delete {kind} {name}`, or give the new one another name",
        source="kubectl create and apply; awsome-distributed-ai, FSDP on EKS",
    ),
    Rule(
        id="ssh-modes",
        where=LOG | ANSWER,
        pattern=r"bad ownership or modes for (?:directory|file) (?P<path>\S{1,120})",
        rank=Rank.ADMISSION,
        diagnosis="sshd of an MPI worker refuses the launcher: {path} has open permissions",
        remedy="set `StrictModes no` in the image's sshd_config, as the MPI operator's images do",
        source="OpenSSH sshd_config(5); kubeflow/mpi-operator build/base",
    ),
    Rule(
        id="metrics-missing",
        where=ANSWER,
        pattern=r"FailedGetResourceMetric",
        rank=Rank.NOTE,
        severity=Severity.WARNING,
        diagnosis="an autoscaler that the job's elasticPolicy made finds no metrics",
        remedy="remove elasticPolicy.metrics from the job, or install the metrics server",
        source="Kubernetes, HorizontalPodAutoscaler; kubeflow/trainer#1972",
    ),
)

_PLACEMENT: Final = (
    _placement(
        id="no-gpu",
        pattern=r"Insufficient nvidia\.com/gpu",
        diagnosis="no node has enough free GPUs: another job has them, nodes are missing, or the "
        "NVIDIA plugin does not run",
        remedy="`/train validate {cluster}` counts GPUs; `/train list` shows runs that have them; "
        "`/train cluster resize {cluster} nodes=N` adds nodes",
    ),
    _placement(
        id="no-efa",
        pattern=r"Insufficient vpc\.amazonaws\.com/efa",
        diagnosis="no node has as many EFA adapters as the pod asks for: the EFA plugin does not "
        "run, or the number is too high for the instance type",
        remedy="`stationmaster instances` has the number of each type, `/train validate {cluster}` "
        "counts those of the nodes",
    ),
    _placement(
        id="no-hugepages",
        pattern=r"Insufficient hugepages-2Mi",
        diagnosis="the nodes reserve fewer huge pages than the pod asks for",
        remedy="remove hugepages-2Mi from the pod or ask for at most 5120Mi; "
        "`stationmaster lint FILE` checks a manifest",
    ),
    _placement(
        id="no-room",
        pattern=r"Insufficient (?P<what>cpu|memory)\b",
        diagnosis="the pod asks for more {what} than a node has left for pods, which is less than "
        "the instance type has",
        remedy="ask for less (a p4d.24xlarge has 95.69 CPUs and 1,082,712 MiB for pods); "
        "`stationmaster lint FILE --instance TYPE` compares",
    ),
    _placement(
        id="volume-zone",
        pattern=r"volume node affinity conflict",
        diagnosis="the volume is in another zone than the nodes",
        remedy="keep nodes and file system in one zone: `/train cluster create NAME` does",
    ),
    _placement(
        id="taint",
        pattern=r"untolerated taint(?:\(s\))?(?! \{node\.kubernetes\.io/(?:not-ready"
        r"|unreachable|unschedulable))|had taint.{0,80} that the pod didn't tolerate",
        diagnosis="the nodes have a taint that the pod does not tolerate",
        remedy="add the toleration to the pod's template, or remove the taint: "
        "`kubectl describe nodes | grep -A2 Taints`",
    ),
    _placement(
        id="selector",
        pattern=r"didn't match (?:Pod's node affinity/selector|node selector)",
        diagnosis="no node has the labels that the pod asks for, e.g. its instance type, which "
        "begins with ml. on HyperPod",
        remedy="`kubectl get nodes -L node.kubernetes.io/instance-type`, then correct "
        "nodeSelector; `/train validate {cluster}` compares them",
    ),
    _placement(
        id="no-type",
        where=EVENT | LOG,
        pattern=r"no instance type (?:met the scheduling requirements|satisfied|which had enough)"
        r"|incompatible with nodepool|exceed limits for nodepool",
        diagnosis="Karpenter knows no instance type that fits the pod in its node pools, or AWS "
        "has none on offer",
        remedy="compare the pod's requests, selectors and tolerations with requirements and "
        "limits of `kubectl get nodepools -o yaml`, and allow more types or zones",
        source="Karpenter, troubleshooting, scheduling",
    ),
    _placement(
        id="no-efa-on-node",
        where=EVENT | LOG,
        pattern=r"No (?:valid )?EFA devices (?:were )?found",
        diagnosis="the node has no EFA interface, so its EFA plugin offers none",
        remedy="use an instance type with EFA (`stationmaster instances`), and give its "
        "interfaces in the launch template or node group; `/train cluster create NAME` does",
        source="aws/eks-charts, aws-efa-k8s-device-plugin",
    ),
    _placement(
        id="no-addresses",
        pattern=r"failed to assign an IP address to container",
        diagnosis="the subnet has no free addresses for pods",
        remedy="use a larger subnet; `/train preflight` counts the free addresses",
        source="aws/amazon-vpc-cni-k8s, docs/troubleshooting.md",
    ),
)

_IMAGES: Final = (
    _image(
        id="image-access",
        pattern=r"no basic auth credentials|pull access denied|authorization token has expired"
        r"|(?:pull|resolve).{0,300}(?:403 Forbidden|401 Unauthorized)",
        diagnosis="the registry refused the node: it has no rights for this repository, or the "
        "repository is in another region or account",
        remedy="use an image of the cluster's region that the node role may pull, or "
        "`/train {recipe}` without image=",
    ),
    _image(
        id="image-missing",
        pattern=r"manifest unknown|(?:pull|resolve).{0,300}: not found|repository .{1,200} does "
        r"not exist",
        diagnosis="the registry has no such image or tag",
        remedy="check image=REPOSITORY:TAG: `aws ecr describe-images --repository-name NAME`",
    ),
    _image(
        id="image-limit",
        pattern=r"toomanyrequests",
        diagnosis="the registry limits how often images are pulled without an account",
        remedy="copy the image to ECR and give that as image=",
        source="Docker Hub, pull rate limit",
    ),
    Rule(
        id="image-architecture",
        where=EVENT | LOG,
        pattern=r"exec format error|no match for platform in manifest",
        rank=Rank.IMAGE,
        diagnosis="the image was built for another processor architecture than the node has",
        remedy="build it with --platform linux/amd64 (linux/arm64 for Graviton) and start it "
        "again with that image=",
        source=_KUBELET,
    ),
    _image(
        id="image-disk",
        pattern=r"(?:pull|unpack|extract|layer|container).{0,400}no space left on device",
        diagnosis="the node's root volume is too small for the image",
        remedy="a larger root volume for the node group, or a smaller image; clusters that "
        "`/train cluster create NAME` makes have room for the training image",
    ),
    Rule(
        id="evicted-memory",
        where=EVENT,
        pattern=r"low on resource: memory",
        rank=Rank.KILLED,
        diagnosis="the kubelet evicted the pod because the node had too little memory left",
        remedy="ask in the pod for the memory that it uses, so that it gets a node with as much; "
        "`/train resume {run}` continues from the last saved checkpoint",
        source="Kubernetes, node-pressure eviction",
    ),
    Rule(
        id="evicted-disk",
        where=EVENT,
        pattern=r"low on resource: (?!memory)(?P<what>[\w-]{1,40})"
        r"|ephemeral local storage usage exceeds|Usage of EmptyDir volume .{1,120} exceeds",
        rank=Rank.KILLED,
        diagnosis="the kubelet evicted the pod: it filled the node's disk, e.g. with checkpoints "
        "or a download cache inside the container",
        remedy="write to the shared file system; `/train resume {run}` continues from the last "
        "saved checkpoint",
        source="Kubernetes, node-pressure eviction",
    ),
    Rule(
        id="evicted",
        where=EVENT,
        pattern=r"\bEvicted\b",
        not_in=r"low on resource|exceeds",
        rank=Rank.UNKNOWN_SIGNAL,
        diagnosis="the kubelet evicted the pod",
        remedy="`kubectl describe pod` says of what the node had too little; `/train resume {run}` "
        "continues from the last saved checkpoint",
        source="Kubernetes, node-pressure eviction",
    ),
    Rule(
        id="init-master",
        where=EVENT,
        pattern=r"failed container init-pytorch|init-pytorch.{0,80}(?:CrashLoopBackOff|exit code)",
        rank=Rank.RENDEZVOUS,
        diagnosis="the worker waits for the job's master: its init container looks up the master's "
        "service, which is not there while the master does not run",
        remedy="`kubectl describe pod` of the master, and `kubectl get events`: what keeps the "
        "master from running",
        source="kubeflow/trainer v1.9.4, pkg/config, init container template",
    ),
    Rule(
        id="image",
        where=EVENT,
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
        pattern=r"CrashLoopBackOff|Back-off restarting failed container|BackoffLimitExceeded"
        r"|reached the specified backoff limit",
        rank=Rank.WRAPPER,
        diagnosis="a container ends again and again, or too often",
        remedy="`/train logs {run}`: the container's own log says why",
        source="Kubernetes, container restart policy; kubeflow/trainer v1.9.4",
    ),
)

RULES: Final = (*_ADMISSION, *_PLACEMENT, *_IMAGES)

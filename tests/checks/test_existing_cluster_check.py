"""What an existing EKS cluster must have, and how each thing that it lacks is said."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal

import pytest

from stationmaster.checks import existing, nodes
from stationmaster.domain.cluster.spec import spec_for
from stationmaster.domain.job_kinds import JobKind
from stationmaster.domain.planning.recipe_lookup import get_recipe
from stationmaster.inspection import LiveCluster, Verdict
from stationmaster.kubernetes.rights import EVERYTHING, Right, common_rights, job_rights
from stationmaster.kubernetes.room import PodLoad
from stationmaster.kubernetes.views import (
    ClaimView,
    DeploymentView,
    NodeView,
    parse_node,
)
from stationmaster.rendering import pytorch_job
from stationmaster.rendering.job_backends import backend_of

GIB = 1 << 30
SMALL = spec_for(get_recipe("tiny-llama"), nodes=2, instance_type="m5.2xlarge").model_copy(
    update={"eks_name": "theirs"}
)
LARGE = spec_for(get_recipe("llama2-7b"), nodes=2, instance_type="p4d.24xlarge").model_copy(
    update={"eks_name": "theirs"}
)
ROOM = {"cpu": "7910m", "memory": f"{30 * GIB}"}
LARGE_ROOM = {
    "cpu": "95690m",
    "memory": f"{1082712 << 20}",
    "nvidia.com/gpu": "8",
    "vpc.amazonaws.com/efa": "4",
}


def node(name: str, **fields: object) -> NodeView:
    known = {
        "hostname": name,
        "ready": True,
        "instance_type": "m5.2xlarge",
        "zone": "us-west-2a",
        "allocatable": ROOM,
    }
    return NodeView(**{"name": name} | known | fields)


def labelled(label: str, value: str) -> NodeView:
    """A node as its maker labels it: EKS or Karpenter."""
    labels = {"node.kubernetes.io/instance-type": "m5.2xlarge", label: value}
    conditions = [{"type": "Ready", "status": "True"}]
    status = {"allocatable": ROOM, "conditions": conditions}
    return parse_node({"metadata": {"name": "n-1", "labels": labels}, "status": status})


def large(name: str, **fields: object) -> NodeView:
    about = {"instance_type": "p4d.24xlarge", "allocatable": LARGE_ROOM, "taints": ()}
    return node(name, **about | fields)


@dataclass
class Theirs:
    """Services and gateway in one: somebody's Kubernetes cluster, which lacks nothing."""

    listed: list[NodeView] = field(default_factory=lambda: [node("n-1"), node("n-2")])
    held: list[PodLoad] = field(default_factory=list)
    denied: set[tuple[str, str]] = field(default_factory=set)
    types: tuple[str, ...] = ("pytorchjobs.kubeflow.org",)
    operator: dict[str, str] = field(
        default_factory=lambda: {"tools/operator": "kubeflow/training-operator:v1-855e096"}
    )
    trainer: dict[str, str] = field(default_factory=dict)
    available: bool = True
    drivers: tuple[str, ...] = ("fsx.csi.aws.com",)
    namespace: str = "stationmaster-c-1"
    asked: list[Right] = field(default_factory=list)
    is_administered: bool = False
    missing: Right | None = None
    claims: dict[str, ClaimView] = field(default_factory=dict)

    backend = pytorch_job

    def kubernetes(self, cluster_id):
        return self

    def may(self, right):
        self.asked.append(right)
        if right == EVERYTHING:
            return self.is_administered
        return (right.verb, right.resource) not in self.denied and right != self.missing

    def crd_established(self, name):
        return name in self.types

    def deployments(self, *, of):
        found = {**self.operator, **self.trainer}
        places = {where.partition("/")[::2]: image for where, image in found.items()}
        return [
            DeploymentView(namespace=space, name=name, image=image, is_ready=self.available)
            for (space, name), image in places.items()
            if of in image
        ]

    def exists(self, api_version, kind, *, name):
        return (api_version, kind) == ("storage.k8s.io/v1", "CSIDriver") and name in self.drivers

    def claim(self, claim):
        return self.claims.get(claim)

    def volume_spec(self, name):
        return {"capacity": {"storage": "1200Gi"}, "csi": {}}

    def nodes(self, *, labels=None):
        wanted = (labels or {}).get("node.kubernetes.io/instance-type")
        return [each for each in self.listed if wanted in (None, each.instance_type)]

    def loads(self):
        return self.held


def look(theirs: Theirs, spec=SMALL):
    return existing.look(LiveCluster(theirs, "c-1", spec))[0]


TRAINER_TYPES = (
    "trainjobs.trainer.kubeflow.org",
    "trainingruntimes.trainer.kubeflow.org",
    "jobsets.jobset.x-k8s.io",
)
TRAINER = {
    "kubeflow-system/trainer": "ghcr.io/kubeflow/trainer/trainer-controller-manager:v2.3.0",
    "jobset-system/jobset": "registry.k8s.io/jobset/jobset:v0.12.0",
}


def with_trainer(**changes) -> Theirs:
    """Kubeflow Trainer v2 in place of the Training Operator."""
    return Theirs(**{"types": TRAINER_TYPES, "operator": {}, "trainer": TRAINER} | changes)


def load(on: str, namespace: str = "others", **requests: int) -> PodLoad:
    amounts = {name: Decimal(amount) for name, amount in requests.items()}
    return PodLoad(namespace=namespace, node=on, requests=amounts)


@pytest.mark.parametrize("kind", JobKind)
def test_each_right_that_is_missing_is_named(kind):
    made = Theirs() if kind is JobKind.PYTORCH_JOB else with_trainer()
    rights = [*common_rights(made.namespace), *job_rights(made.namespace, backend_of(kind))]

    for right in rights:
        made.missing = right
        finding = look(made)
        assert finding.verdict is Verdict.BAD
        assert f"the product's role may not {right}; type kubectl apply" in finding.sentence


def test_claim_is_looked_at_in_place_of_the_driver_of_fsx():
    file_system = SMALL.file_system.model_copy(update={"existing_id": "pvc:ml/data"})
    spec = SMALL.model_copy(update={"file_system": file_system})
    usable = ClaimView(phase="Bound", access_modes=("ReadWriteMany",), lets_guests_in=True)
    theirs = Theirs(drivers=(), claims={"ml/data": usable})
    unread = Right("get", "", "persistentvolumeclaims", "ml")

    assert look(theirs, spec).verdict is Verdict.GOOD
    assert "storage=pvc:ml/data: there is no such claim" in look(Theirs(), spec).sentence
    theirs.missing = unread
    assert f"the product's role may not {unread}; type" in look(theirs, spec).sentence


def test_pods_of_the_cluster_itself_do_not_count_as_others():
    mine = load("n-1", namespace="stationmaster-c-1", cpu=7, memory=20 * GIB)

    in_team = mine.model_copy(update={"namespace": "hyperpod-ns-a", "placed_for": "c-1"})

    assert look(Theirs(held=[mine, in_team])).verdict is Verdict.GOOD


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"denied": {("list", "batch"), ("get", "pods/log"), ("delete", "pods")}},
            [
                "may not delete pods in namespace stationmaster-c-1 and 1 other right;",
                "aws eks update-access-entry --cluster-name theirs --principal-arn ROLE",
            ],
        ),
        ({"types": ()}, ["type pytorchjobs.kubeflow.org", "kubectl apply"]),
        (
            {"types": ("hyperpodpytorchjobs.sagemaker.amazonaws.com",)},
            ["type pytorchjobs.kubeflow.org", "HyperPod's own operator is there, but starts only"],
        ),
        ({"operator": {}}, ["no Deployment runs the Training Operator; type kubectl apply"]),
        (
            {"operator": {"tools/operator": "kubeflow/training-operator:v2.1.0"}},
            ["Deployment tools/operator runs the Training Operator with tag v2.1.0, v1 needed"],
        ),
        (
            {"operator": {"tools/operator": "kubeflow/training-operator@sha256:" + "0" * 64}},
            ["an image without a tag"],
        ),
        ({"available": False}, ["not available; see kubectl --namespace tools describe"]),
        (
            {"drivers": ()},
            [
                "aws eks create-addon --cluster-name theirs --addon-name aws-fsx-csi-driver",
                "fsx.csi.aws.com is not there",
            ],
        ),
        (
            {"listed": [node("n-1", instance_type="c5.large")]},
            ["it has no m5.2xlarge nodes, 2 are needed; its nodes are c5.large; type aws eks"],
        ),
        (
            {"listed": [labelled("eks.amazonaws.com/nodegroup", "pool")]},
            [
                "1 of its 1 m5.2xlarge nodes have",
                "2 are needed; type aws",
                "--nodegroup-name pool ",
            ],
        ),
        (
            {"listed": [labelled("karpenter.sh/nodepool", "cpu")]},
            ["2 are needed; NodePool cpu of Karpenter makes nodes for pods that wait"],
        ),
        ({"listed": [node("n-1")]}, ["2 are needed; let nodes of that type join, or ask for"]),
        (
            {"listed": [node("n-1"), node("n-2", ready=False)]},
            ["1 of its 2 m5.2xlarge nodes have room", "2 are needed: node n-2 is not ready"],
        ),
        (
            {"listed": [node("n-1"), node("n-2", schedulable=False)]},
            ["node n-2 is cordoned (kubectl uncordon)"],
        ),
        (
            {"listed": [node("n-1"), node("n-2", taints=("team/only",))]},
            ["node n-2 has the taint team/only, which training pods do not tolerate"],
        ),
        (
            {"listed": [node("n-1"), node("n-2", allocatable={"cpu": "2", "memory": "64Gi"})]},
            ["node n-2 has 2 CPUs for pods, 7 CPUs asked for"],
        ),
        ({"held": [load("n-2", cpu=4)]}, ["node n-2 has 3.91 CPUs free, 7 CPUs asked for"]),
        (
            {"held": [load("n-1", memory=20 * GIB)]},
            ["node n-1 has 10 GiB of memory free, 27 GiB of memory asked for"],
        ),
    ],
)
def test_each_thing_that_is_missing_is_said_with_what_to_type(changes, words):
    finding = look(Theirs(**changes))

    assert finding.verdict is Verdict.BAD
    assert finding.sentence.startswith("EKS cluster theirs: ")
    for each in words:
        assert each in finding.sentence


@pytest.mark.parametrize(
    ("theirs", "kind"),
    [
        (Theirs(), JobKind.PYTORCH_JOB),
        (with_trainer(), JobKind.TRAIN_JOB),
        (
            Theirs(types=("pytorchjobs.kubeflow.org", *TRAINER_TYPES), trainer=TRAINER),
            JobKind.PYTORCH_JOB,
        ),
        (
            Theirs(
                types=("pytorchjobs.kubeflow.org", *TRAINER_TYPES), trainer=TRAINER, operator={}
            ),
            JobKind.TRAIN_JOB,
        ),
    ],
)
def test_jobs_are_of_the_kind_whose_operator_is_there(theirs, kind):
    finding, chosen = existing.look(LiveCluster(theirs, "c-1", SMALL))

    assert (finding.verdict, chosen) == (Verdict.GOOD, kind)
    assert f"runs {kind}s" in finding.sentence
    plurals = {right.resource for right in theirs.asked}
    assert ("trainjobs" in plurals) is (kind is JobKind.TRAIN_JOB)
    assert ("pytorchjobs" in plurals) is (kind is JobKind.PYTORCH_JOB)


def test_kind_that_was_chosen_stays_though_the_other_operator_came():
    both = Theirs(types=("pytorchjobs.kubeflow.org", *TRAINER_TYPES), trainer=TRAINER)
    gone = Theirs()

    _, stays = existing.look(LiveCluster(both, "c-1", SMALL, job_kind=JobKind.TRAIN_JOB))
    finding, _ = existing.look(LiveCluster(gone, "c-1", SMALL, job_kind=JobKind.TRAIN_JOB))

    assert stays is JobKind.TRAIN_JOB
    assert finding.verdict is Verdict.BAD
    assert "type trainjobs.trainer.kubeflow.org of Kubeflow Trainer v2" in finding.sentence


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"types": TRAINER_TYPES[:2]},
            "type jobsets.jobset.x-k8s.io of Kubeflow Trainer v2 is not there; type kubectl apply",
        ),
        ({"trainer": dict([*TRAINER.items()][:1])}, "no Deployment runs JobSet; type kubectl"),
        ({"trainer": {}}, "no Deployment runs Kubeflow Trainer v2; type kubectl apply"),
        ({"available": False}, "Kubeflow Trainer v2 is not available; see kubectl --namespace"),
        ({"denied": {("create", "trainingruntimes")}}, "create trainingruntimes.trainer.kubeflow"),
        (
            {"types": ()},
            "pytorchjobs.kubeflow.org of the Training Operator v1 is not there; type kubectl apply "
            "--server-side --filename manifests/training-operator, in a checkout of Stationmaster "
            "or install Kubeflow Trainer v2 with JobSet",
        ),
    ],
)
def test_what_trainer_lacks_is_said_with_what_to_type(changes, says):
    finding = look(with_trainer(**changes))

    assert finding.verdict is Verdict.BAD
    assert says in finding.sentence


def test_range_of_nodes_is_refused_where_jobs_have_a_fixed_number():
    ranged = SMALL.model_copy(update={"min_nodes": 1})

    assert "nodes=1:2 cannot be had" in look(with_trainer(), ranged).sentence
    assert look(Theirs(), ranged).verdict is Verdict.GOOD


def test_gpus_and_efa_that_others_hold_or_that_no_plugin_offers_are_named():
    no_efa = {name: LARGE_ROOM[name] for name in ("cpu", "memory", "nvidia.com/gpu")}
    system = node("s-1", instance_type="m5.large")

    held = look(
        Theirs(
            listed=[large("n-1"), large("n-2"), system],
            held=[PodLoad(namespace="o", node="n-2", requests={"nvidia.com/gpu": Decimal(3)})],
        ),
        LARGE,
    )
    plain = look(Theirs(listed=[large("n-1"), large("n-2", allocatable=no_efa), system]), LARGE)

    assert "node n-2 has 5 nvidia.com/gpu free, 8 nvidia.com/gpu asked for" in held.sentence
    assert "n-2 has 0 vpc.amazonaws.com/efa for pods, 4 vpc.amazonaws.com/efa" in plain.sentence


def test_efa_nodes_must_be_in_one_zone_and_others_need_not():
    apart = {"n-1": "us-west-2a", "n-2": "us-west-2b"}
    system = node("s-1", instance_type="m5.large")
    listed = [large(name, zone=zone) for name, zone in apart.items()]

    for others in ([system], [system, large("n-3", zone="us-west-2a")]):
        sentence = look(Theirs(listed=[*listed, *others]), LARGE).sentence
        assert "are in 2 zones (us-west-2a, us-west-2b), and EFA works in one; cordon" in sentence
    small = Theirs(listed=[node(name, zone=zone) for name, zone in apart.items()])
    assert look(small).verdict is Verdict.GOOD
    assert nodes.look(LiveCluster(small, "c-1", SMALL)).verdict is Verdict.GOOD


def test_relay_needs_a_node_without_taints_that_training_leaves_room_on():
    tainted = [large(name, taints=("nvidia.com/gpu",)) for name in ("n-1", "n-2")]

    nowhere = look(Theirs(listed=tainted), LARGE)
    beside = look(Theirs(listed=[*tainted, node("s-1", instance_type="m5.large")]), LARGE)
    full = look(Theirs(held=[load("n-1", cpu=0), load("n-2", memory=0)]))
    packed = {"cpu": "7", "memory": f"{30 * GIB}"}
    no_room = look(
        Theirs(listed=[node("n-1", allocatable=packed), node("n-2", allocatable=packed)])
    )

    assert "no node has 200m CPU and 256Mi free beside training" in nowhere.sentence
    assert beside.verdict is Verdict.GOOD
    assert full.verdict is Verdict.GOOD
    assert "add a small node group without taints" in no_room.sentence


def pod_node(name: str, **labels: str) -> NodeView:
    """One of HyperPod's, as the API server sends it: multithreading is off."""
    known = {
        "node.kubernetes.io/instance-type": "ml.m5.2xlarge",
        "sagemaker.amazonaws.com/node-health-status": "Schedulable",
    }
    labels = {f"sagemaker.amazonaws.com/{key}": value for key, value in labels.items()}
    item = {
        "metadata": {"name": name, "labels": known | labels},
        "status": {
            "allocatable": {"cpu": "3920m", "memory": f"{30 * GIB}"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }
    return parse_node(item)


def test_nodes_of_hyperpod_are_known_by_their_labels_and_asked_for_half_the_cpus():
    theirs = Theirs(listed=[pod_node("n-1"), pod_node("n-2"), node("n-3")])
    live = LiveCluster(theirs, "c-1", SMALL)

    finding, _ = existing.look(live)

    assert (finding.verdict, finding.figures) == (Verdict.GOOD, {"nodes": 2})
    assert (live.hyperpod_vcpus, live.asked["cpu"]) == (4, "3")
    assert Right("patch", "", "nodes") in theirs.asked
    theirs.denied = {("patch", "nodes")}
    assert "may not patch nodes in the whole cluster" in look(theirs).sentence
    settled = SMALL.model_copy(update={"hyperpod_vcpus": 4})
    assert nodes.look(LiveCluster(theirs, "c-1", settled)).verdict is Verdict.GOOD


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        ({"node-health-status": "UnschedulablePendingReplacement"}, "UnschedulablePendingRepl"),
        ({"deep-health-check-status": "InProgress"}, "is InProgress by HyperPod's label sage"),
        ({"deep-health-check-status": "Passed"}, ""),
    ],
)
def test_nodes_that_hyperpod_calls_unfit_do_not_count_and_are_named(labels, says):
    finding = look(Theirs(listed=[pod_node("n-1"), pod_node("n-2", **labels)]))

    assert ("node n-2 is" in finding.sentence) is bool(says)
    assert ("raise InstanceCount of its HyperPod" in finding.sentence) is bool(says)
    assert says in finding.sentence


def test_training_nodes_are_those_with_room_whoever_made_them():
    theirs = Theirs(
        listed=[node("n-1"), node("n-2"), node("n-3"), node("x", instance_type="c5.large")],
        held=[load("n-2", cpu=6)],
    )

    assert [each.name for each in LiveCluster(theirs, "c-1", SMALL).training_nodes] == [
        "n-1",
        "n-3",
    ]

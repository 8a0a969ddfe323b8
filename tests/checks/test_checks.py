"""What checks say of nodes, and which checks a cluster needs."""

from dataclasses import dataclass
from types import ModuleType

import pytest

from stationmaster import checks
from stationmaster.checks import nodes, room
from stationmaster.checks.devices import EFA, GPUS
from stationmaster.domain.cluster.spec import spec_for
from stationmaster.domain.errors import PermanentError
from stationmaster.domain.planning.recipe_lookup import get_recipe
from stationmaster.inspection import LiveCluster, Verdict
from stationmaster.kubernetes.views import NodeView

SPEC = spec_for(get_recipe("llama2-7b"), nodes=2, instance_type="p4d.24xlarge")
DEVICES = {"nvidia.com/gpu": "8", "vpc.amazonaws.com/efa": "4"}
# What Karpenter's tables say of a p4d.24xlarge.
P4D_ROOM = {"cpu": "95690m", "memory": "1082712Mi"}


@dataclass
class Listing:
    """Services and gateway in one, as far as these checks ask: nodes of one cluster."""

    listed: list[NodeView]

    def kubernetes(self, cluster_id):
        return self

    def nodes(self, *, labels):
        wanted = {"stationmaster/node-group": "training", "stationmaster/cluster-id": "c-1"}
        return self.listed if labels == wanted else []


def node(name, **fields):
    known = {
        "ready": True,
        "instance_type": "p4d.24xlarge",
        "zone": "us-west-2a",
        "allocatable": DEVICES,
    }
    return NodeView(**{"name": name, "hostname": name} | known | fields)


def look(check: ModuleType, *listed: NodeView):
    return check.look(LiveCluster(Listing([*listed]), "c-1", SPEC))


@pytest.mark.parametrize(
    ("listed", "verdict", "sentence", "figures"),
    [
        (
            [node("n-1"), node("n-2")],
            Verdict.GOOD,
            "2 of 2 p4d.24xlarge nodes are ready in us-west-2a",
            {"nodes_ready": 2, "nodes_expected": 2},
        ),
        (
            [node("n-1"), node("n-2", ready=False)],
            Verdict.WAITING,
            "1 of 2 p4d.24xlarge nodes are ready",
            {"nodes_ready": 1, "nodes_expected": 2},
        ),
        (
            [node("n-1"), node("n-2", instance_type="p3.2xlarge")],
            Verdict.WAITING,
            "node n-2 is a p3.2xlarge, p4d.24xlarge expected",
            {},
        ),
        (
            [node("n-1"), node("n-2", zone="us-west-2b")],
            Verdict.WAITING,
            "2 of 2 p4d.24xlarge nodes are ready, but in 2 zones (us-west-2a, us-west-2b), not 1",
            {"nodes_ready": 2, "nodes_expected": 2, "zones": 2},
        ),
    ],
)
def test_nodes_are_good_only_if_all_are_ready_of_one_type_and_in_one_zone(
    listed, verdict, sentence, figures
):
    finding = look(nodes, *listed)

    assert (finding.verdict, finding.sentence, finding.figures) == (verdict, sentence, figures)


@pytest.mark.parametrize(
    ("check", "device", "expected"),
    [(GPUS, "nvidia.com/gpu", 8), (EFA, "vpc.amazonaws.com/efa", 4)],
)
def test_devices_are_good_only_if_every_node_offers_all_of_them(check, device, expected):
    few = node("n-2", allocatable=DEVICES | {device: "3"})
    more = node("n-2", allocatable=DEVICES | {device: "16"})
    none = node("n-1", allocatable={})

    good = look(check, node("n-1"), node("n-2"))
    waiting = [look(check, node("n-1"), each) for each in (few, more)]
    both = look(check, none, few)

    assert good.verdict is Verdict.GOOD
    assert good.sentence == f"{expected} {device} on each of 2 nodes"
    assert good.figures == {"devices_offered": expected, "nodes": 2}
    assert [(each.verdict, each.figures["devices_offered"]) for each in waiting] == [
        (Verdict.WAITING, 3),
        (Verdict.WAITING, 16),
    ]
    assert waiting[0].bad_nodes == {"n-2": f"it offers 3 {device}, {expected} expected"}
    assert both.bad_nodes.keys() == {"n-1", "n-2"}
    assert (
        f"offers 0 {device}, {expected} expected (2 of 2 nodes are wrong): its kubelet has heard "
        "of none from the device plugin" in both.sentence
    )
    assert "device plugin" not in waiting[0].sentence


@pytest.mark.parametrize(
    ("offered", "verdict", "sentence"),
    [
        (P4D_ROOM, Verdict.GOOD, "a training pod's 91 CPUs and 969 GiB fit on each of 2 nodes"),
        (
            {"cpu": "91", "memory": "969Gi"},
            Verdict.GOOD,
            "a training pod's 91 CPUs and 969 GiB fit on each of 2 nodes",
        ),
        (
            P4D_ROOM | {"cpu": "90990m"},
            Verdict.BAD,
            "node n-2 can give pods 90 CPUs and 1057 GiB, "
            "a training pod asks for 91 CPUs and 969 GiB",
        ),
        (
            P4D_ROOM | {"memory": "1016070143Ki"},
            Verdict.BAD,
            "node n-2 can give pods 95 CPUs and 968 GiB, "
            "a training pod asks for 91 CPUs and 969 GiB",
        ),
    ],
)
def test_room_is_good_only_if_a_training_pod_fits_on_every_node(offered, verdict, sentence):
    finding = look(room, node("n-1", allocatable=P4D_ROOM), node("n-2", allocatable=offered))

    assert (finding.verdict, finding.sentence) == (verdict, sentence)


@pytest.mark.parametrize(
    ("recipe", "instance", "checked"),
    [
        ("tiny-llama", "p4d.24xlarge", ["access", "nodes", "room", "storage"]),
        (
            "llama2-7b",
            "p4d.24xlarge",
            ["access", "nodes", "gpus", "efa", "room", "gpu-health", "storage", "network"],
        ),
        (
            "llama2-7b",
            "p3dn.24xlarge",
            ["access", "nodes", "gpus", "room", "gpu-health", "storage", "network"],
        ),
    ],
)
def test_cluster_gets_the_checks_that_apply_to_it(recipe, instance, checked):
    spec = spec_for(get_recipe(recipe), nodes=2, instance_type=instance)

    assert checks.names_for(spec) == checked
    assert checks.names_for(spec, is_full=True)[-2:] == ["network", "training"]


@pytest.mark.parametrize(
    ("recipe", "instance", "check", "is_full", "first"),
    [
        ("llama2-7b", "p4d.24xlarge", "gpu-health", False, ["gpus", "efa"]),
        ("llama2-7b", "p4d.24xlarge", "network", False, ["gpu-health"]),
        ("llama2-7b", "p4d.24xlarge", "storage", False, []),
        ("llama2-7b", "p4d.24xlarge", "storage", True, ["network"]),
        ("llama2-7b", "p4d.24xlarge", "training", True, ["gpu-health", "network", "storage"]),
        ("tiny-llama", "m5.2xlarge", "training", True, ["network", "storage"]),
        ("tiny-llama", "m5.2xlarge", "network", True, []),
        ("tiny-llama", "m5.2xlarge", "gpu-health", True, []),
    ],
)
def test_check_that_another_one_would_disturb_starts_after_it(
    recipe, instance, check, is_full, first
):
    spec = spec_for(get_recipe(recipe), nodes=2, instance_type=instance)

    assert checks.before(check, spec, is_full=is_full) == first


def test_unknown_check_is_refused_with_the_known_ones():
    with pytest.raises(
        PermanentError, match=r'check "nope" is not known; known: access, nodes, gpus, efa, room, '
    ):
        checks.get_check("nope")


def test_nodes_beyond_those_of_the_cluster_are_good_once_all_are_ready():
    three = [node("n-1"), node("n-2"), node("n-3")]

    assert look(nodes, *three).verdict is Verdict.GOOD
    assert look(nodes, *three[:2], node("n-3", ready=False)).verdict is Verdict.WAITING

"""Whether everybody who acts in a cluster may do so: who is asked for, and what is said."""

from dataclasses import dataclass, field

import pytest

from stationmaster.checks import access
from stationmaster.domain.cluster.spec import spec_for
from stationmaster.domain.planning.recipe_lookup import get_recipe
from stationmaster.inspection import LiveCluster, Verdict
from stationmaster.kubernetes.rights import EVERYTHING
from stationmaster.rendering import pytorch_job
from stationmaster.rendering.placing import placed

SPEC = spec_for(get_recipe("tiny-llama"), nodes=2, instance_type="m5.2xlarge")
OWN = "the product's role"


@dataclass
class World:
    """Services and gateway in one: a cluster that denies some verbs on resources to some."""

    denied: set[tuple[str, str, str]] = field(default_factory=set)
    accounts: tuple[str, ...] = ("stationmaster-relay", "stationmaster-saver")
    is_administered: bool = True
    namespace: str = "stationmaster"
    asked: list[str] = field(default_factory=list)

    backend = pytorch_job

    def kubernetes(self, cluster_id):
        return self

    def placed(self, item):
        return placed(item, self.namespace)

    def exists(self, api_version, kind, *, name):
        return kind == "ServiceAccount" and name in self.accounts

    def may(self, right, *, account=None):
        who = OWN if account is None else account.name
        self.asked.append(f"{who} {right}")
        if right == EVERYTHING:
            return self.is_administered
        return (who, right.verb, right.kind) not in self.denied

    def look(self):
        return access.look(LiveCluster(self, "c-1", SPEC))


def test_everybody_with_their_rights_is_good_and_asked_for_few_questions():
    world = World()

    finding = world.look()

    assert (finding.verdict, finding.figures) == (
        Verdict.GOOD,
        {"accounts": 2, "account_rights": 18},
    )
    assert finding.sentence == (
        "the product has every right that it uses, and 2 accounts of its pods have their 18"
    )
    assert len(world.asked) == 19
    assert "stationmaster-relay watch events in namespace stationmaster" in world.asked
    assert "stationmaster-relay list nodes in the whole cluster" in world.asked
    assert "stationmaster-saver get pods/log in namespace stationmaster" in world.asked


@pytest.mark.parametrize(
    ("world", "verdict", "said"),
    [
        (
            World(is_administered=False, denied={(OWN, "delete", "pytorchjobs.kubeflow.org")}),
            Verdict.WAITING,
            [
                "the product's role may not delete pytorchjobs.kubeflow.org in namespace "
                "stationmaster; type aws eks associate-access-policy --cluster-name "
                "stationmaster-c-1 ",
            ],
        ),
        (
            World(denied={("stationmaster-relay", "watch", "events")}),
            Verdict.MISSING,
            [
                "ServiceAccount stationmaster/stationmaster-relay may not watch events in "
                "namespace stationmaster, though",
                "kubectl auth can-i watch events --namespace stationmaster --as "
                "system:serviceaccount:stationmaster:stationmaster-relay,",
            ],
        ),
        (
            World(denied={("stationmaster-relay", verb, "nodes") for verb in ("get", "list")}),
            Verdict.MISSING,
            ["may not get nodes in the whole cluster and 1 other right, ", "can-i get nodes --as "],
        ),
        (
            World(denied={("stationmaster-saver", "get", "pods/log")}),
            Verdict.MISSING,
            ["stationmaster-saver may not get pods/log in namespace stationmaster,"],
        ),
        (
            World(accounts=("stationmaster-relay",)),
            Verdict.MISSING,
            ["ServiceAccount stationmaster/stationmaster-saver is not there"],
        ),
    ],
)
def test_right_that_is_missing_is_named_with_its_owner_and_what_to_type(world, verdict, said):
    finding = world.look()

    assert finding.verdict is verdict
    for each in said:
        assert each in finding.sentence


def test_what_is_rendered_makes_every_account_that_is_asked_about():
    kinds = [item["kind"] for item in access.render(LiveCluster(World(), "c-1", SPEC))]

    assert kinds[0] == "Namespace"
    assert kinds.count("ServiceAccount") == len(World().accounts)


def test_rights_of_a_namespace_of_its_own_are_asked_for_there():
    world = World(namespace="stationmaster-c-1", is_administered=False)

    assert world.look().verdict is Verdict.GOOD
    assert "stationmaster-relay list pods in namespace stationmaster-c-1" in world.asked
    assert all("in namespace stationmaster-c-1" in each or "whole" in each for each in world.asked)

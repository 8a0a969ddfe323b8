"""A plan for a range of nodes: what is the same in it, whether its fewest fit, and who refuses."""

import pytest

from stationmaster.domain.catalogue.entries import CATALOGUE
from stationmaster.domain.cluster import events as cl
from stationmaster.domain.cluster.changes import apply
from stationmaster.domain.cluster.events import ClusterPhase, Requester
from stationmaster.domain.commands.grammar import parse_command
from stationmaster.domain.errors import BadCommand
from tests.support.factories import make_cluster, make_cluster_event
from tests.support.plans import make_plan

LANGUAGE = [
    name
    for name, recipe in CATALOGUE.items()
    if recipe.task != "image-classification" and recipe.uses_own_trainer
]


@pytest.mark.parametrize("name", LANGUAGE)
def test_language_models_train_on_any_number_of_nodes(name):
    most = CATALOGUE[name].default_nodes
    plan = make_plan(name, nodes=most, min_nodes=1)

    assert plan.min_nodes == 1
    assert plan.node_words == f"1:{most}"


def test_plan_of_a_range_is_that_of_its_most_nodes_and_has_the_figures_of_its_fewest():
    plan = make_plan("llama2-7b", nodes=8, min_nodes=2)
    most, fewest = make_plan("llama2-7b", nodes=8), make_plan("llama2-7b", nodes=2)

    assert plan.fits
    assert plan.price_per_hour_usd == most.price_per_hour_usd
    assert plan.fewest.model_dump() == {
        "nodes": 2,
        "fits": True,
        "memory_per_gpu_gib": fewest.memory_per_gpu_gib.total,
        "price_per_hour_usd": fewest.price_per_hour_usd,
        "estimated_duration_s": fewest.estimated_duration_s,
        "estimated_cost_usd": fewest.estimated_cost_usd,
        "micro_batches": fewest.micro_batches,
    }
    assert plan.longest_duration_s == fewest.estimated_duration_s > most.estimated_duration_s
    assert "1 node group of 2 to 8 x p4d.24xlarge" in plan.will_create[2]
    notes = "\n".join(plan.warnings)
    assert "64 sequences at any number of nodes: 4 x 1 in each process on 2 nodes, 1 x 1" in notes
    assert "does not divide over 3, 5, 6, 7 nodes" in notes
    assert f"on 2 nodes: ${fewest.price_per_hour_usd:,.2f} an hour" in notes
    assert "rendezvous=etcd lets them go on without it" in notes


def test_range_that_does_not_fit_on_its_fewest_nodes_is_offered_with_more():
    request = parse_command("plan mixtral-8x7b nodes=2:8").request

    assert not request.plan.fits
    assert "does not fit on 2 nodes, the fewest of 2:8" in request.plan.misfits[0]
    assert request.fitting_words == "mixtral-8x7b nodes=3:8"
    assert parse_command(request.fitting_words).plan.fits


@pytest.mark.parametrize(
    ("name", "most", "size", "passes_of_fewest"),
    [("resnet50", 4, 64, 4), ("resnet50", 2, 128, 2), ("efficientnet-b7", 3, 16, 3)],
)
def test_images_go_through_the_passes_of_the_most_nodes_on_any_number(
    name, most, size, passes_of_fewest
):
    plan = make_plan(name, nodes=most, min_nodes=1)

    assert (plan.norm_batch_size, plan.micro_batch_size, plan.micro_batches) == (size, size, 1)
    assert plan.settled_keys == {"norm_batch_size": str(size)}
    assert plan.fewest.micro_batches == passes_of_fewest
    assert f"batch normalisation sees the same {size} together" in "\n".join(plan.warnings)


def test_images_that_do_not_divide_over_some_nodes_take_as_long_there_as_on_fewer():
    overrides = {"norm_batch_size": "64"}
    two = make_plan("resnet50", nodes=2, overrides=overrides)
    three = make_plan("resnet50", nodes=4, min_nodes=3)

    assert three.fewest.micro_batches == two.micro_batches == 2
    assert "does not divide over 3 nodes, where some processes wait" in "\n".join(three.warnings)
    assert make_plan("resnet50", nodes=2).settled_keys == {}


def on_cluster(text, *, nodes=4, used=0):
    cluster = make_cluster(ClusterPhase.READY, nodes=nodes, leased=False).model_copy(
        update={
            "name": "team-a",
            "requester": Requester(team_id="T1", channel_id="C1", user_id="U1"),
        }
    )
    if used:
        cluster = apply(cluster, make_cluster_event(cl.LeaseGranted, run_id="r", nodes=used))
    return parse_command(text, find_cluster=lambda _: cluster)


@pytest.mark.parametrize(
    ("typed", "planned"), [("2:8", (4, 2)), ("1:2", (2, 1)), ("4:8", (4, None))]
)
def test_range_on_a_kept_cluster_is_planned_for_the_nodes_that_it_has(typed, planned):
    start = on_cluster(f"tiny-llama nodes={typed} on=team-a")

    assert (start.plan.nodes, start.plan.min_nodes) == planned
    assert f"nodes={typed}" in start.words


def test_range_on_a_kept_cluster_waits_only_for_its_fewest_nodes():
    free = on_cluster("plan tiny-llama nodes=1:4 on=team-a", used=3).request.plan
    full = on_cluster("plan tiny-llama nodes=2:4 on=team-a", used=3).request.plan

    assert not any("waits in place" in note for note in free.warnings)
    assert any("waits in place 1" in note for note in full.warnings)
    with pytest.raises(BadCommand, match="nodes=5 is more than cluster team-a has: 4"):
        on_cluster("tiny-llama nodes=5:8 on=team-a")

"""What the channel sees of runs in an existing EKS cluster: whose it is, and that it stays."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from cluster_blocks import make_cluster
from cluster_blocks import seen as seen_blocks
from run_blocks import NOW, START, in_phase

from bot.blocks import cluster_answers
from bot.blocks.card import run_card
from bot.blocks.cluster_card import cluster_card
from bot.blocks.receipt import run_receipt
from stationmaster.domain.catalogue.instances import get_instance
from stationmaster.domain.cluster.aggregate import TeardownStatus
from stationmaster.domain.cluster.spec import FileSystemSpec, spec_for_any
from stationmaster.domain.run import events as ev
from stationmaster.domain.run.view import ClusterView
from stationmaster.local.slack.blocks import check_blocks

ID = "fs-0123456789abcdef0"
SPEC = spec_for_any(
    get_instance("m5.2xlarge"),
    nodes=2,
    file_system_gib=1200,
    existing=FileSystemSpec(storage_gib=4800, mbps_per_tib=200, existing_id=ID),
).model_copy(update={"eks_name": "theirs"})


def test_card_of_a_kept_guest_says_what_goes_and_how_to_reach_the_cluster_of_others():
    view = ClusterView(make_cluster(spec=SPEC))

    card = cluster_card(view, now=NOW)
    shown = cluster_answers.cluster_shown(view, now=NOW, reach=cluster_answers.Reach("us-west-2"))

    assert check_blocks(card.blocks) == []
    text = seen_blocks(card)
    assert "m5.2xlarge of EKS cluster theirs" in text
    assert "goes with its namespace in EKS cluster theirs, which stays as it is" in text
    assert f"file system {ID} stays with all that is on it" in text
    assert "aws eks update-kubeconfig --name theirs --region us-west-2" in seen_blocks(shown)


def test_card_and_receipt_of_a_guest_say_whose_the_cluster_is_and_that_it_stays():
    view = in_phase(
        ev.RunPhase.SUCCEEDED,
        teardown=TeardownStatus.COMPLETED,
        torn_down_at=START + timedelta(minutes=9),
    )
    request = view.run.request.model_copy(update={"eks_name": "theirs"})
    view = type(view)(
        view.run.model_copy(update={"request": request}),
        view.cluster.model_copy(update={"spec": SPEC}),
    )

    card, receipt = run_card(view, now=NOW), run_receipt(view, now=NOW)

    for content in (card, receipt):
        assert check_blocks(content.blocks) == []
    assert "guest in EKS cluster `theirs`, not in the price" in seen_blocks(card)
    assert (
        f"EKS cluster `theirs`, its nodes and plugins, and file system `{ID}` stay as they were, "
        "and are not in this bill."
    ) in seen_blocks(receipt)


@pytest.mark.parametrize("words", ["plan tiny-llama", "tiny-llama", "cluster create lab"])
def test_cluster_that_the_deployment_does_not_list_is_refused_and_nothing_is_made(
    person, services, slack, words
):
    answer = person.type(f"{words} cluster=eks:theirs")

    said = json.dumps(answer["answer"]["blocks"])
    assert "this deployment uses no existing EKS cluster" in said
    assert "eks_clusters in cdk.json" in said
    assert services.runs.list_recent(limit=5) == []
    assert services.cluster_states.list_open() == []
    assert slack.cards == []

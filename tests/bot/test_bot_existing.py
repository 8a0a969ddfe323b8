"""What the channel sees of existing file systems and EKS clusters: they stay, and cost nothing."""

from __future__ import annotations

import pytest
from bot_world import CHANNEL, seen
from cluster_blocks import make_cluster
from run_blocks import NOW
from run_blocks import seen as seen_blocks

from bot.blocks import cluster_answers
from bot.blocks.cluster_card import cluster_card
from stationmaster.domain.catalogue.instances import get_instance
from stationmaster.domain.cluster.spec import FileSystemSpec, spec_for_any
from stationmaster.domain.run.view import ClusterView
from stationmaster.local.slack.blocks import check_blocks
from stationmaster.settings import Settings

ID = "fs-0123456789abcdef0"
SPEC = spec_for_any(
    get_instance("m5.2xlarge"),
    nodes=2,
    file_system_gib=1200,
    existing=FileSystemSpec(storage_gib=4800, mbps_per_tib=200, existing_id=ID),
)
GUEST = SPEC.model_copy(update={"eks_name": "theirs"})


def test_card_of_a_cluster_says_whose_file_system_it_is_and_that_it_stays():
    cluster = make_cluster(spec=SPEC)

    card = cluster_card(ClusterView(cluster), now=NOW)
    answer = cluster_answers.cluster_requested(cluster, created=True)

    for content in (card, answer):
        assert check_blocks(content.blocks) == []
        assert f"`{ID}`, which stays and is not in the bill" in seen_blocks(content)
    assert f"file system {ID} stays with all that is on it. No run uses it." in seen_blocks(card)
    claim = SPEC.file_system.model_copy(update={"existing_id": "pvc:ml/data"})
    claimed = make_cluster(spec=SPEC.model_copy(update={"file_system": claim}))
    shown = seen_blocks(cluster_card(ClusterView(claimed), now=NOW))
    assert "claim `pvc:ml/data`, which stays" in shown, "of no size that is known"


@pytest.mark.parametrize("words", ["plan tiny-llama", "tiny-llama", "cluster create lab"])
@pytest.mark.parametrize(
    ("key", "said"),
    [
        (f"file_system={ID}", f"there is no file system {ID} in region "),
        ("cluster=eks:theirs", "this deployment uses no existing EKS cluster"),
        ("cluster=hyperpod:pod", "cluster=hyperpod:pod is not available here"),
    ],
)
def test_what_aws_or_the_deployment_does_not_know_is_refused_and_nothing_is_made(
    person, services, slack, words, key, said
):
    assert said in seen(person.type(f"{words} {key}"))
    assert services.runs.list_recent(limit=5) == []
    assert services.cluster_states.list_open() == []
    assert slack.cards == []


def test_data_on_the_file_system_of_a_kept_cluster_is_planned_and_of_a_new_one_is_not(
    person, cluster
):
    cluster.begin()

    on = person.type("plan tiny-llama nodes=1 on=team-a dataset=/fsx/books")
    alone = person.type("plan tiny-llama nodes=1 dataset=/fsx/books")

    assert "/fsx/books is read where it lies" in seen(on)
    said = seen(alone)
    assert "file_system=fs-... names one that exists, and on= a kept cluster" in said


@pytest.mark.parametrize("words", ["plan tiny-llama", "cluster create lab"])
@pytest.mark.parametrize(
    ("typed", "field"),
    [
        (f"file_system={ID}", "file_systems"),
        ("capacity=odcr:cr-0123456789abcdef0", "reservations"),
        ("capacity=block:cr-0123456789abcdef0", "reservations"),
    ],
)
def test_what_the_account_has_and_the_deployment_does_not_list_is_refused(
    person, settings, monkeypatch, words, typed, field
):
    monkeypatch.setenv(f"STATIONMASTER_{field.upper()}", "listed-1")

    said = seen(person.type(f"{words} {typed}"))

    assert "is not one that this deployment may use: listed-1; its owner lists them as" in said
    assert f"{field} in cdk.json" in said


@pytest.mark.parametrize(
    ("channel", "path", "is_refused"),
    [
        (CHANNEL, "/fsx/runs/{run}/output", False),
        ("C0ELSEWHERE", "/fsx/runs/{run}/output", True),
        ("C0ELSEWHERE", "stream:/fsx/runs/{run}", True),
        (CHANNEL, "/fsx/runs", True),
        (CHANNEL, "/fsx/runs/unknown-00000000", True),
        ("C0ELSEWHERE", "/fsx/runs-of-books", False),
    ],
)
def test_directory_of_a_run_is_data_for_its_own_channel_only(
    person, cluster, services, channel, path, is_refused
):
    cluster.begin()
    person.type("tiny-llama nodes=1", channel_id=channel)
    (run,) = services.runs.list_recent(limit=5)
    dataset = path.format(run=run.run_id)

    said = seen(person.type(f"plan tiny-llama nodes=1 on=team-a dataset={dataset}"))

    assert ("may read those of its own runs only" in said) == is_refused
    assert is_refused or "is read where it lies" in said


def test_card_of_a_kept_guest_says_what_goes_and_how_to_reach_the_cluster_of_others():
    view = ClusterView(make_cluster(spec=GUEST))

    card = cluster_card(view, now=NOW)
    settings = Settings(region="us-west-2", table_name="t", bus_name="b")
    shown = cluster_answers.cluster_shown(view, now=NOW, settings=settings)

    assert check_blocks(card.blocks) == []
    text = seen_blocks(card)
    assert "m5.2xlarge of EKS cluster theirs" in text
    assert "goes with its namespace in EKS cluster theirs, which stays as it is" in text
    assert f"file system {ID} stays with all that is on it" in text
    assert "aws eks update-kubeconfig --name theirs --region us-west-2" in seen_blocks(shown)

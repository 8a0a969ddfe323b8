"""What a person types of existing EKS clusters: `cluster=eks:NAME` with a start and a plan."""

from __future__ import annotations

import pytest

from stationmaster.domain.commands.grammar import parse_command
from stationmaster.domain.commands.requests import CreateCluster
from stationmaster.domain.errors import NotPossibleNow
from stationmaster.domain.keys.registry import typed_options
from tests.support.typed import (
    FILE_SYSTEM,
    STORAGE,
    Account,
    finding,
    kept,
    parse,
    refused,
    start_of,
)

GUEST = f"cluster=eks:theirs file_system={FILE_SYSTEM}"


def test_guest_makes_and_pays_for_nothing_of_what_is_there() -> None:
    eks = Account()

    start = start_of(f"tiny-llama nodes=2 {GUEST}", account=eks)
    alone = start_of("tiny-llama nodes=2")

    assert (start.options.eks_name, "theirs" in eks.asked) == ("theirs", True)
    plan = start.plan
    assert (plan.price_per_hour_usd, plan.estimated_cost_usd) == (0.0, 0.0)
    assert 0 < plan.time_to_first_step_s < alone.plan.time_to_first_step_s / 2
    (made,) = plan.will_create
    assert "a namespace in EKS cluster theirs" in made
    assert "deleted after the run" in made
    (note,) = (each for each in plan.warnings if "cluster=eks:theirs" in each)
    assert "stay as they are and are not in the bill" in note
    assert not any("nodes are made in its zone" in each for each in plan.warnings)


def test_plan_and_a_kept_cluster_take_the_key_as_well() -> None:
    kept = parse(f"cluster create lab nodes=2 {GUEST}")

    assert start_of(f"plan tiny-llama {GUEST}").options.eks_name == "theirs"
    assert isinstance(kept, CreateCluster)
    assert (kept.spec.eks_name, kept.spec.file_system) == ("theirs", STORAGE)
    assert kept.spec.price_per_hour_usd == 0.0


def test_hyperpod_cluster_is_the_eks_cluster_that_sagemaker_names() -> None:
    account = Account()

    typed = f"tiny-llama nodes=2 {GUEST.replace('eks:', 'hyperpod:pod-')}"
    start = start_of(typed, account=account)

    assert (start.options.eks_name, account.asked[-2:]) == (
        "theirs",
        ["hyperpod pod-theirs", "theirs"],
    )
    assert typed_options(start.options)["cluster"] == "eks:theirs"
    assert "cluster=hyperpod:pod-theirs is EKS cluster theirs" in start.plan.warnings
    price = "2 x ml.m5.2xlarge cost their owner $0.92 an hour on demand, with the run or without it"
    assert any(each.startswith(price) for each in start.plan.warnings)
    assert start.plan.price_per_hour_usd == 0.0


def test_guest_may_be_on_machines_without_a_price_in_the_catalogue() -> None:
    words = f"nodes=2 instance=p5e.48xlarge {GUEST}"

    assert start_of(f"llama2-7b {words}").plan.price_per_hour_usd == 0.0
    made = parse(f"cluster create lab {words}")
    assert isinstance(made, CreateCluster)
    on = start_of("llama2-7b on=team-a", find_cluster=finding(kept(made.spec)))
    assert on.plan.price_per_hour_usd == 0.0
    assert "has no on-demand price" in str(refused("llama2-7b instance=p5e.48xlarge"))


def test_types_of_hyperpod_are_those_of_ec2_in_clusters_of_others_only() -> None:
    start = start_of(f"tiny-llama nodes=1 instance=ml.c5.2xlarge {GUEST}")

    assert start.options.instance_type == "c5.2xlarge"
    assert start.plan.instance_type == "c5.2xlarge"
    assert (
        "1 x ml.c5.2xlarge are billed by SageMaker, at a price that is not known here"
        in start.plan.warnings
    )
    said = str(refused("tiny-llama instance=ml.c5.2xlarge"))
    assert "expected cluster=hyperpod:NAME beside it, or instance=c5.2xlarge" in said


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("theirs", ""),
        ("HyperPod/pod-1", "hyperpod:pod-1"),
        ("hyperpod:", ""),
        ("eks/theirs", "eks:theirs"),
        ("EKS:theirs", "eks:theirs"),
        ("arn:aws:eks:us-west-2:123456789012:cluster/theirs", "eks:theirs"),
        ("eks:", ""),
        ("eks:-no", ""),
    ],
)
def test_other_spellings_are_refused_and_corrected_where_one_is_meant(
    typed: str, meant: str
) -> None:
    error = refused(f"tiny-llama file_system={FILE_SYSTEM} cluster={typed}")

    assert f"cluster={typed} is not accepted: expected eks:NAME" in str(error)
    assert ("did you mean cluster=" in str(error)) == bool(meant)
    if meant:
        assert error.suggestion == f"/train tiny-llama file_system={FILE_SYSTEM} cluster={meant}"
    else:
        assert error.suggestion == f"/train plan tiny-llama file_system={FILE_SYSTEM}"
    assert parse(error.suggestion.removeprefix("/train "))


def test_cluster_that_cannot_be_used_is_refused_once_with_what_eks_says() -> None:
    eks = Account()

    error = refused(f"tiny-llama cluster=eks:gone file_system={FILE_SYSTEM}", account=eks)

    assert str(error) == "there is no EKS cluster gone"
    assert eks.asked.count("gone") == 1
    assert error.suggestion == f"/train plan tiny-llama file_system={FILE_SYSTEM}"


def test_where_nobody_can_ask_eks_the_channel_is_named() -> None:
    with pytest.raises(NotPossibleNow, match="type the command in the channel"):
        parse_command(f"tiny-llama {GUEST}", find_file_system=Account().find_file_system)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("plan tiny-llama cluster=eks:theirs", "or storage=pvc:NAME, a claim of it: no new"),
        ("cluster create lab cluster=eks:theirs file_system=2400", "needs file_system=fs-..., one"),
        (f"tiny-llama on=team-a {GUEST}", "cluster=eks:theirs and on=team-a name two clusters"),
        (f"tiny-llama file_system={FILE_SYSTEM} eks=eks:theirs", "did you mean cluster"),
    ],
)
def test_guest_without_its_file_system_or_of_two_clusters_is_refused(text: str, said: str) -> None:
    assert said in str(refused(text))

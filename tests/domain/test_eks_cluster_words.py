"""What a person types of existing EKS clusters: `cluster=eks:NAME` with a start and a plan."""

from __future__ import annotations

import pytest
from file_system_account import ID, SPEC, Account

from stationmaster.domain.cluster import aggregate
from stationmaster.domain.cluster import events as cl
from stationmaster.domain.cluster.spec import spec_for
from stationmaster.domain.commands.grammar import parse_command
from stationmaster.domain.commands.requests import CreateCluster, ShowPlan
from stationmaster.domain.commands.start import StartRun
from stationmaster.domain.errors import NotPossibleNow, UserError
from stationmaster.domain.planning.recipe_lookup import get_recipe
from tests.support.factories import make_cluster_event

GUEST = f"cluster=eks:theirs file_system={ID}"


class Eks:
    """Knows one cluster that runs may use, and counts what it is asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, name: str) -> None:
        self.asked.append(name)
        if name != "theirs":
            raise NotPossibleNow(f"there is no EKS cluster {name}")


def parse(text: str, **questions: object) -> object:
    known = {"find_file_system": Account(), "find_eks_cluster": Eks()}
    return parse_command(text, **(known | questions))


def start_of(text: str, **questions: object) -> StartRun:
    start = parse(text, **questions)
    assert isinstance(start, StartRun)
    return start


def refused(text: str, **questions: object) -> UserError:
    with pytest.raises(UserError) as caught:
        parse(text, **questions)
    return caught.value


def test_guest_makes_and_pays_for_nothing_of_what_is_there() -> None:
    eks = Eks()

    start = start_of(f"tiny-llama nodes=2 {GUEST}", find_eks_cluster=eks)
    alone = start_of("tiny-llama nodes=2")

    assert (start.eks_name, eks.asked) == ("theirs", ["theirs"])
    plan = start.plan
    assert (plan.price_per_hour_usd, plan.estimated_cost_usd) == (0.0, 0.0)
    assert 0 < plan.time_to_first_step_s < alone.plan.time_to_first_step_s / 2
    (made,) = plan.will_create
    assert "a namespace in EKS cluster theirs" in made
    assert "deleted after the run" in made
    (note,) = (each for each in plan.warnings if "cluster=eks:theirs" in each)
    assert "stay as they are and are not in the bill" in note
    assert not any("nodes are made in its zone" in each for each in plan.warnings)


def test_request_of_a_guest_can_be_typed_again() -> None:
    start = start_of(f"tiny-llama steps=9 {GUEST} nodes=1 keep=2h")

    assert start.words == f"tiny-llama nodes=1 keep=2h cluster=eks:theirs file_system={ID} steps=9"
    assert start_of(start.words) == start
    assert any("costs $0.00 an hour" in each for each in start.plan.warnings)


def test_plan_and_a_kept_cluster_take_the_key_as_well() -> None:
    plan = parse(f"plan tiny-llama {GUEST}")
    kept = parse(f"cluster create lab nodes=2 {GUEST}")

    assert isinstance(plan, ShowPlan)
    assert plan.request.eks_name == "theirs"
    assert isinstance(kept, CreateCluster)
    assert (kept.spec.eks_name, kept.spec.file_system) == ("theirs", SPEC)
    assert kept.spec.price_per_hour_usd == 0.0


@pytest.mark.parametrize("command", ["tiny-llama", "plan tiny-llama", "cluster create lab"])
@pytest.mark.parametrize("storage", ["", " file_system=2400"])
def test_guest_without_a_file_system_that_exists_is_refused_with_the_reason(
    command: str, storage: str
) -> None:
    error = refused(f"{command} cluster=eks:theirs{storage}")

    assert "needs file_system=fs-..., one that its nodes reach: no new file system" in str(error)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("theirs", ""),
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
    error = refused(f"tiny-llama file_system={ID} cluster={typed}")

    assert f"cluster={typed} is not accepted: expected eks:NAME" in str(error)
    assert ("did you mean cluster=" in str(error)) == bool(meant)
    if meant:
        assert error.suggestion == f"/train tiny-llama file_system={ID} cluster={meant}"
    else:
        assert error.suggestion == f"/train plan tiny-llama file_system={ID}"
    assert parse(error.suggestion.removeprefix("/train "))


def test_suggestion_keeps_the_cluster_wherever_its_file_system_stands() -> None:
    error = refused(f"tiny-llama cluster=eks:theirs nods=1 file_system={ID}")

    assert error.suggestion is not None
    assert parse(error.suggestion.removeprefix("/train ")).eks_name == "theirs"


def test_cluster_that_cannot_be_used_is_refused_once_with_what_eks_says() -> None:
    eks = Eks()

    error = refused(f"tiny-llama cluster=eks:gone file_system={ID}", find_eks_cluster=eks)

    assert str(error) == "there is no EKS cluster gone"
    assert eks.asked == ["gone"]
    assert error.suggestion == f"/train plan tiny-llama file_system={ID}"


def test_where_nobody_can_ask_eks_the_channel_is_named() -> None:
    with pytest.raises(NotPossibleNow, match="type the command in the channel"):
        parse_command(f"tiny-llama {GUEST}", find_file_system=Account())


def test_two_clusters_for_one_run_are_refused() -> None:
    spec = spec_for(get_recipe("tiny-llama"), nodes=2, instance_type="m5.2xlarge")
    kept = aggregate.start(make_cluster_event(cl.ClusterRequested, spec=spec, name="lab"))

    error = refused(f"tiny-llama on=lab {GUEST}", find_cluster=lambda label: kept)

    assert "cluster=eks:theirs and on=lab name two clusters; keep one" in str(error)


@pytest.mark.parametrize("key", ["eks", "eks_cluster", "clustr"])
def test_words_of_the_same_meaning_lead_to_the_key(key: str) -> None:
    error = refused(f"tiny-llama file_system={ID} {key}=eks:theirs")

    assert f'has no key "{key}"; did you mean cluster' in str(error)
    assert error.suggestion == f"/train tiny-llama file_system={ID} cluster=eks:theirs"

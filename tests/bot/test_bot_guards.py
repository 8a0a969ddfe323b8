"""Limits of what may run at once: refused with figures, and never passed by two together."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from bot_world import (
    CHANNEL,
    TEAM,
    USER,
    Clock,
    ClusterStory,
    Person,
    Story,
    started_clusters,
    started_workflows,
)

from bot import lambda_handler
from stationmaster import commands
from stationmaster.commands.runs import Announced
from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.commands.grammar import parse_command
from stationmaster.domain.errors import NotPossibleNow
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import RunPhase
from stationmaster.services import Services
from stationmaster.settings import Settings

START = "tiny-llama nodes=2"


def limited(services: Services, **limits: float) -> Services:
    """Services of the same deployment, with limits."""
    settings = services.settings.model_copy(update=limits)
    return Services(settings, now=services.now)


def with_rules(services: Services, tmp_path: Path, **rules: Any) -> Services:
    path = tmp_path / "rules.json"
    path.write_text(json.dumps({"channels": {CHANNEL: rules}}))
    return limited(services, rules_file=str(path))


def start(services: Services, number: int, *, channel_id: str = CHANNEL, **more: Any) -> Run:
    run, created = commands.request_run(
        services,
        parse_command(START),
        request_id=str(number),
        **more,
        who=commands.Actor(
            words=f"/train {START} # {number}", team_id=TEAM, channel_id=channel_id, user_id=USER
        ),
    )
    assert created
    return run


def test_run_beyond_the_most_is_refused_until_one_has_ended(
    services: Services, clock: Clock
) -> None:
    services = limited(services, max_concurrent_runs=1)
    first = start(services, 1)

    with pytest.raises(NotPossibleNow) as refused:
        start(services, 2)

    said = str(refused.value)
    assert "this deployment runs at most 1 at a time, and 1 has not ended" in said
    assert f"{first.run_id} by {USER}" in said
    Story(services, clock, first.run_id).phases(RunPhase.FAILED)
    assert start(services, 3).phase is RunPhase.REQUESTED


def test_channel_has_limits_of_its_own(services: Services) -> None:
    services = limited(services, max_concurrent_runs_per_channel=1)
    start(services, 1, channel_id="C0OTHERS")
    start(services, 2)

    with pytest.raises(NotPossibleNow, match="this channel runs at most 1"):
        start(services, 3)


def test_start_that_would_cost_too_much_is_refused_with_the_figures(services: Services) -> None:
    price = start(services, 1).price_per_hour_usd
    services = limited(services, max_usd_per_hour=1.5 * price)

    with pytest.raises(NotPossibleNow) as refused:
        start(services, 2, channel_id="C0OTHERS")

    figures = f"${1.5 * price:,.2f} an hour; ${price:,.2f} is spent now, and this would add"
    assert figures in str(refused.value)
    assert f"1 in other channels (${price:,.2f} an hour)" in str(refused.value)


def test_kept_cluster_counts_and_is_refused_as_well(services: Services, person: Person) -> None:
    wish = parse_command("cluster create lab nodes=2 instance=m5.2xlarge")
    asked = {"who": commands.Actor(team_id=TEAM, channel_id=CHANNEL, user_id=USER)}
    cluster, _ = commands.create_cluster(services, wish, request_id="1", **asked)
    price = cluster.spec.price_per_hour_usd
    services = limited(services, max_usd_per_hour_per_channel=price)

    with pytest.raises(NotPossibleNow, match="this channel spends at most"):
        start(services, 1)
    other = parse_command("cluster create lab-2 nodes=2 instance=m5.2xlarge")
    with pytest.raises(NotPossibleNow, match=rf"cluster lab by {USER}"):
        commands.create_cluster(services, other, request_id="2", **asked)
    assert len(started_clusters(services.settings)) == 1


def test_of_two_starts_in_the_same_moment_one_passes(services: Services) -> None:
    services = limited(services, max_concurrent_runs=1)
    faster: list[Run] = []
    taken_back: list[str] = []

    def announce(run: Run) -> Any:
        # After the first look and before the write, as in another function.
        faster.append(start(limited(services), 1))
        return Announced(lambda: taken_back.append(run.run_id))

    with pytest.raises(NotPossibleNow, match=r"at most 1 at a time, and 1 has not ended"):
        start(services, 2, announce=announce)

    assert services.runs.list_open() == faster
    assert len(taken_back) == 1


def resize(services: Services, name: str, *, nodes: int) -> Cluster:
    return commands.resize_cluster(
        services, name, nodes=nodes, who=commands.Actor(channel_id=CHANNEL, user_id=USER)
    )


def node_price(services: Services) -> float:
    """USD an hour of one more node of such a cluster."""
    spec = parse_command("cluster create any nodes=2 instance=m5.2xlarge").spec
    larger = spec.model_copy(update={"nodes": 3})
    return float(larger.price_per_hour_usd - spec.price_per_hour_usd)


def ready_cluster(services: Services, clock: Clock, name: str) -> Cluster:
    return ClusterStory(services, clock, f"{name}-0", name, nodes=2).become_ready()


def test_resize_beyond_the_limit_is_refused_and_fewer_nodes_pass(
    services: Services, clock: Clock
) -> None:
    cluster = ready_cluster(services, clock, "lab")
    price = cluster.spec.price_per_hour_usd
    services = limited(services, max_usd_per_hour=price + 1.5 * node_price(services))

    with pytest.raises(NotPossibleNow) as refused:
        resize(services, "lab", nodes=4)

    assert f"would add ${2 * node_price(services):,.2f}" in str(refused.value)
    assert services.cluster_states.load(cluster.cluster_id).spec.nodes == 2
    assert resize(services, "lab", nodes=3).spec.nodes == 3


def test_new_size_that_the_index_does_not_show_yet_counts(
    services: Services, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("lab", "lab-2"):
        ready_cluster(services, clock, name)
    listed = services.cluster_states.list_open()
    price = sum(each.spec.price_per_hour_usd for each in listed)
    services = limited(services, max_usd_per_hour=price + 1.5 * node_price(services))
    resize(services, "lab", nodes=3)
    monkeypatch.setattr(services.cluster_states, "list_open", lambda: listed)

    with pytest.raises(NotPossibleNow, match="this deployment spends at most"):
        resize(services, "lab-2", nodes=3)


def test_refused_start_posts_no_card_and_starts_nothing(
    settings: Settings, person: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    person.type(START)
    monkeypatch.setenv("STATIONMASTER_MAX_CONCURRENT_RUNS", "1")
    lambda_handler._endpoint.cache_clear()
    posted = len(person.slack.calls)

    answer = person.type("tiny-llama nodes=1")["answer"]

    assert "this deployment runs at most 1 at a time" in json.dumps(answer)
    assert f"by <@{USER}>" in answer["text"]
    assert len(started_workflows(settings)) == 1
    assert len(person.slack.calls) == posted


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ({"each_person": {"runs": 1}}, "each person of this channel runs at most 1 at a time"),
        ({"each_person": {"gpus": 8}}, "takes at most 8 GPUs at a time; 8 are taken now"),
        ({"together": {"gpus": 12}}, "this channel takes at most 12 GPUs at a time"),
        ({"together": {"runs": 1}}, "this channel runs at most 1 at a time"),
    ],
)
def test_rules_of_the_channel_limit_it_and_each_person(
    services: Services, tmp_path: Path, rules: dict[str, Any], said: str
) -> None:
    services = with_rules(services, tmp_path, **rules)

    def start_gpus(user_id: str, number: int) -> None:
        who = commands.Actor(user_id=user_id, channel_id=CHANNEL, team_id=TEAM, words=f"{number}")
        wish = parse_command("llama2-7b nodes=1 instance=p4d.24xlarge")
        commands.request_run(services, wish, who, request_id=str(number))

    start_gpus(USER, 1)
    with pytest.raises(NotPossibleNow, match=said):
        start_gpus(USER, 2)
    with nullcontext() if "each_person" in rules else pytest.raises(NotPossibleNow, match=said):
        start_gpus("U0OTHER", 3)


@pytest.mark.parametrize(
    ("whose", "where"),
    [("each_person", "each person of this channel"), ("together", "this channel")],
)
def test_month_counts_what_a_run_is_expected_to_cost_also_where_an_index_is_behind(
    services: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whose: str, where: str
) -> None:
    price = parse_command(START).plan.estimated_cost_usd
    services = with_rules(services, tmp_path, **{whose: {"usd_a_month": 1.5 * price}})
    start(services, 1)
    monkeypatch.setattr(services.runs, "list_open", list)
    monkeypatch.setattr(services.runs, "list_newest", lambda **_: iter(()))

    with pytest.raises(NotPossibleNow) as refused:
        start(services, 2)

    figures = f"costs ${price:,.2f} with what is still expected, and this would add about "
    assert f"{where} spends at most ${1.5 * price:,.2f} a month; " in str(refused.value)
    assert f"{figures}${price:,.2f}" in str(refused.value)


def test_another_budget_needs_room_in_the_month_and_waits_above_a_limit(
    person: Person, services: Services, set_rules: Any
) -> None:
    its = {"approvers": [USER, "U0LEAD"], "approval": {"usd": 50}}
    set_rules(its | {"together": {"usd_a_month": 100}})
    person.type("tiny-llama nodes=2 budget=20")
    (run,) = services.runs.list_open()

    for typed, user, said in (
        ("last usd=60", USER, "waits for an approval on the card"),
        ("last usd=60", "U0OTHER", "may not change the budget of this run here, which"),
        ("last usd=120", "U0LEAD", "spends at most $100.00 a month"),
        ("last usd=0.001", USER, "usd=0.001 is not accepted"),
        ("last", USER, "/train budget takes a run and usd=N"),
        ("last usd=30", USER, "is stopped once it has cost $30.00"),
    ):
        answer = person.type(f"budget {typed}", user_id=user)["answer"]
        assert said in json.dumps(answer), typed
    assert services.runs.load(run.run_id).request.budget_usd == 30


def test_month_counts_how_long_a_kept_cluster_stays_and_a_longer_life(
    services: Services, tmp_path: Path, clock: Clock
) -> None:
    cluster = ready_cluster(services, clock, "lab")  # for 8 hours
    price = cluster.spec.price_per_hour_usd
    services = with_rules(services, tmp_path, together={"usd_a_month": 10 * price})
    who = commands.Actor(channel_id=CHANNEL, user_id=USER)

    with pytest.raises(NotPossibleNow, match=r"a month.*this would add about"):
        commands.extend_cluster(services, "lab", who, seconds=3 * 3600)
    with pytest.raises(NotPossibleNow, match=r"a month.*this would add about"):
        resize(services, "lab", nodes=4)
    assert commands.extend_cluster(services, "lab", who, seconds=3600).keep_until is not None


def test_drained_deployment_refuses_starts_only(services: Services) -> None:
    services.guard.drain("it is about to be upgraded", at=services.now())

    with pytest.raises(NotPossibleNow, match=r"since 20\d\d-.* it is about to be upgraded"):
        start(services, 2)
    services.guard.undrain()
    start(services, 4)

"""Money of a channel's month: kept when a run is granted, and not passed by more than a poll."""

from __future__ import annotations

import itertools
from contextlib import nullcontext
from datetime import datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stationmaster.commands.approving import BY_IAM, approve, reject
from stationmaster.commands.changing import change_budget, scale_run
from stationmaster.commands.guarding import spending_of_run, write_guarded
from stationmaster.commands.permitting import Actor
from stationmaster.deciding import look_at_approval, record_decision
from stationmaster.domain.approvals import REMINDED_AFTER
from stationmaster.domain.catalogue.instances import CATALOGUE
from stationmaster.domain.cluster import events as cl
from stationmaster.domain.cluster.shares import shares
from stationmaster.domain.errors import NotPermitted, NotPossibleNow
from stationmaster.domain.ids import ClusterId, RunId
from stationmaster.domain.planning.cost import node_group_price
from stationmaster.domain.reactions.budgets import percent_reached
from stationmaster.domain.rules import Rules
from stationmaster.domain.run import events as ev
from stationmaster.domain.run.goodput import Cause, goodput
from stationmaster.domain.run.view import RunView
from stationmaster.spending import month_of
from stationmaster.steps.parts.budgets import look_at_budget, look_at_months
from tests.support.money_world import CHANNEL, NODES, MoneyWorld

BUDGET = 100.0
often = settings(max_examples=40, deadline=None)
CENTS = st.integers(1, 8_000).map(lambda cents: cents / 100)


def play(world: MoneyWorld, acts: list[tuple[str, float, int]], granted: dict[str, float]) -> None:
    """Do the next act; another comes after so many calls of the table, while it is under way."""
    act, usd, after = acts.pop(0)
    name = f"tiny-llama-{len(acts):08}"
    if act == "end":
        if granted:
            world.tell(granted.popitem()[0], ev.PhaseChanged, phase=ev.RunPhase.FAILED)
        return
    budget = {"budget_usd": usd} if act == "budget" else {}
    asked = world.requested(name, 0.01 if budget else usd, **budget)
    before, calls = world.table.called, itertools.count(1)

    def called(_: str) -> None:
        if next(calls) == after and acts:
            play(world, acts, granted)

    world.table.called = called
    try:
        write = lambda also: world.write(asked, also)  # noqa: E731
        write_guarded(world.services, spending_of_run(asked), name, write)
        granted[name] = usd
    except NotPossibleNow:
        pass
    finally:
        world.table.called = before


@often
@given(st.lists(st.tuples(st.sampled_from(["plan", "budget", "end"]), CENTS, st.integers(0, 9))))
def test_money_of_a_month_is_kept_for_what_is_granted_whatever_comes_in_between(
    acts: list[tuple[str, float, int]],
) -> None:
    world, granted = MoneyWorld(usd_a_month=BUDGET), dict[str, float]()
    while acts:
        play(world, acts, granted)

    bill = month_of(world.services, "", channels={CHANNEL})
    kept = sum(each.usd + each.still for each in bill.spent)
    assert kept <= BUDGET + 0.001
    assert kept == pytest.approx(sum(granted.values()))  # of what has ended nothing


POLL_S, CHECKPOINT_S, MOST_POLLS = 60, 300, 100
# High, so that a budget is used up within some minutes.
PRICES = st.integers(1_000, 40_000).map(float)
RUN = st.tuples(PRICES, st.none() | CENTS, st.integers(1, CHECKPOINT_S))


@often
@given(
    st.lists(RUN, min_size=1, max_size=4),
    st.none() | PRICES,
    st.lists(st.integers(10, POLL_S), min_size=1),
)
def test_no_budget_is_passed_by_more_than_one_poll_and_one_checkpoint(
    runs: list[tuple[float, float | None, int]], kept: float | None, polls: list[int]
) -> None:
    """Runs train until they are stopped, each on its own cluster; a cluster without any is kept."""
    world = MoneyWorld(usd_a_month=BUDGET)
    named = {f"tiny-llama-{number:08}": run for number, run in enumerate(runs)}
    for name, (price, own, _) in named.items():
        world.train(name, usd_per_hour=price, budget_usd=own)
    if kept is not None:
        world.keep("lab", usd_per_hour=kept, hours=48)
    ends: dict[str, datetime] = {}
    said: list[int] = []
    gone: set[str] = set()
    for turn, poll in enumerate(itertools.cycle(polls)):
        assert turn < MOST_POLLS
        next_at = world.at + timedelta(seconds=poll)
        reached = look_at_months(world.services)
        said += [percent_reached(each.usd, each.budget_usd) for each in reached]
        for name, (_, _, checkpoint_s) in named.items():
            look_at_budget(world.services, world.services.runs.load(RunId(name)))
            if world.services.runs.load(RunId(name)).is_stopping:
                ends.setdefault(name, world.at + timedelta(seconds=checkpoint_s))
        if kept is not None and world.is_over("lab") and "lab" not in gone:
            world.tell_cluster("lab", cl.ResourceDeleted, **NODES)
            gone.add("lab")
        for name in sorted({*ends} - gone, key=ends.__getitem__):
            if ends[name] <= next_at:
                world.at = ends[name]
                world.end(name)
                gone.add(name)
        if gone == {*named, *(["lab"] if kept is not None else ())}:
            break
        world.at = next_at

    def bound(price: float) -> float:
        return price * (POLL_S + CHECKPOINT_S) / 3600 + 0.001

    for name, (price, own, _) in named.items():
        assert world.cost(name) <= (BUDGET if own is None else min(own, BUDGET)) + bound(price)
    bill = month_of(world.services, "", channels={CHANNEL})
    most = sum(bound(price) for price, _, _ in runs) + (kept or 0.0) * POLL_S / 3600
    assert sum(each.usd for each in bill.spent) <= BUDGET + most
    assert said == sorted(said)


OWN, WHO = "tiny-llama-11111111", Actor(user_id="U1", channel_id=CHANNEL)
# Of two nodes, for the 200 h that the run below takes.
ADDED = 200 * node_group_price(CATALOGUE["m5.2xlarge"], nodes=2)


def train_own(world: MoneyWorld, **request: object) -> None:
    """A run on 4 nodes of its own, of a range up to 6; a step takes 2 h, and 100 are left."""
    world.train(OWN, usd_per_hour=2.0, nodes=6, min_nodes=1, **request)
    for step in range(1, 13):
        line = {"seq": step, "step": step, "total_steps": 112, "step_time_s": 7_200.0}
        world.tell(OWN, ev.ProgressReported, **line, loss_nats=2.0)


@pytest.mark.parametrize(
    ("room", "budget", "nodes"), [(ADDED + 0.01, None, 6), (ADDED - 0.01, None, 4), (0.0, 0.5, 6)]
)
def test_scale_keeps_the_money_of_the_added_nodes_where_the_month_has_it(room, budget, nodes):
    world = MoneyWorld(usd_a_month=0.5 + room)
    train_own(world, budget_usd=budget)
    is_refused = pytest.raises(NotPossibleNow, match=r"a month; .* would add about")
    with nullcontext() if nodes == 6 else is_refused:
        scale_run(world.services, OWN, WHO, nodes=6)

    def kept() -> float:
        return sum(
            each.usd + each.still for each in month_of(world.services, "", channels={CHANNEL}).spent
        )

    assert world.services.cluster_states.load(ClusterId(OWN)).spec.nodes == nodes
    assert kept() == pytest.approx(0.5 + ADDED * (nodes == 6 and budget is None))
    if nodes == 6:
        world.tell_cluster(OWN, cl.PassFailed, nodes=4, reason="r")
    assert kept() == pytest.approx(0.5)


LEADS = [Actor(user_id=f"U0{name}", channel_id=CHANNEL) for name in ("LEAD", "OTHER")]
ASKER = Actor(user_id="U0ASKER", channel_id=CHANNEL)
IAM = Actor(user_id="arn:aws:iam::123456789012:user/a", channel_id=CHANNEL, via=BY_IAM)


class BudgetDesk(MoneyWorld):
    """A run with a budget of $200, for which somebody else wants $300."""

    def __init__(self, **limits: float) -> None:
        super().__init__()
        approvers = [each.user_id for each in (*LEADS, ASKER)]
        its = {"together": {"usd_a_month": 1_000}, "approvers": approvers}
        its["approval"] = {"usd": 250, "instance_types": ["m5.2xlarge"]} | limits
        self.services.rules = Rules.model_validate({"channels": {CHANNEL: its}})
        self.train(OWN, usd_per_hour=200.0, budget_usd=200.0)
        self.run = change_budget(self.services, OWN, ASKER, usd=300.0)
        self.shown = self.run.open_approval.wish.fingerprint

    def approve(self, who: Actor) -> None:
        self.run = approve(self.services, OWN, who, shown=self.shown)

    @property
    def budgets(self) -> tuple[float, list[float]]:
        """Its budget, and those that it was given."""
        events = self.services.runs.events(RunId(OWN))
        given = [each.usd for each in events if isinstance(each, ev.BudgetChanged)]
        return self.services.runs.load(RunId(OWN)).request.budget_usd, given


@pytest.mark.parametrize("approvals", [1, 2])
def test_larger_budget_is_given_once_by_as_many_others_as_have_to_agree(approvals):
    desk = BudgetDesk(approvals=approvals)
    with pytest.raises(NotPermitted, match="about a budget that you have asked for"):
        desk.approve(ASKER)

    asked = desk.run.open_approval
    assert asked.reasons == ("about $300.00 in all, and $250.00 may be spent",)
    for who in LEADS[:approvals]:
        assert desk.budgets == (200.0, [])
        change_budget(desk.services, OWN, ASKER, usd=300.0)  # delivered twice
        desk.approve(who)
    assert desk.budgets == (300.0, [300.0])

    record_decision(desk.services, desk.run, "given", asked, "ULATE")  # in the same moment
    with pytest.raises(NotPossibleNow, match="waits for no approval any more: it is running"):
        desk.approve(LEADS[1])
    assert desk.budgets == (300.0, [300.0])


@pytest.mark.parametrize("how", ["rejected", "expired", "replaced", "ended", "month", "iam"])
def test_budget_that_is_not_given_leaves_the_old_one(how):
    desk = BudgetDesk(iam_above_usd=280 * (how == "iam"))
    error, why, budget = NotPossibleNow, "waits for no approval any more", 200.0
    match how:
        case "rejected":
            reject(desk.services, OWN, LEADS[0])
        case "expired":
            for said in ("reminded", "refused"):
                desk.at += REMINDED_AFTER
                assert look_at_approval(desk.services, desk.services.runs.load(RunId(OWN))), said
        case "replaced":
            change_budget(desk.services, OWN, ASKER, usd=150.0)
            budget = 150.0
        case "ended":  # at the old budget, which holds meanwhile
            desk.at += timedelta(hours=1)
            look_at_budget(desk.services, desk.run)
            stopped = desk.services.runs.load(RunId(OWN))
            assert "its budget of $200.00 is used up" in stopped.stop_why
        case "month":
            desk.train("tiny-llama-22222222", usd_per_hour=1.0, budget_usd=750.0)
            why = "this channel spends at most"
        case "iam":
            error, why = NotPermitted, f"stationmaster approve {OWN}"

    with pytest.raises(error, match=why):
        desk.approve(LEADS[0])

    assert desk.budgets[0] == budget
    if how == "iam":
        desk.services.rules = Rules()  # a terminal has none
        desk.approve(IAM)
        assert desk.budgets == (300.0, [300.0])


def test_month_of_runs_with_failures_a_budget_resizes_and_a_scale_adds_up_to_the_cent() -> None:
    """30 days on half of a kept cluster that is resized twice; another run gets two nodes more."""
    world, name = MoneyWorld(usd_a_month=1e6), "tiny-llama-00000000"
    world.keep("lab", usd_per_hour=32.5, hours=30 * 24)
    world.write(world.requested(name, 1.0, cluster_id=ClusterId("lab"), budget_usd=5_000.0))
    world.tell_cluster("lab", cl.LeaseGranted, run_id=RunId(name), nodes=2)
    world.run_on(name, "lab")
    train_own(world)
    step = 0
    for hour in range(2, 30 * 24, 2):
        world.at += timedelta(hours=2)
        if hour % 58 == 0:  # 12 failures, each found after half an hour
            world.at += timedelta(minutes=30)
            world.tell(name, ev.ProcessFailed, pod="w-0", process="process 0 was killed by SIGKILL")
            world.tell(
                name, ev.JobConditionChanged, condition="Restarting", reason="r", message="m"
            )
            world.at += timedelta(minutes=10, seconds=hour)
            step -= 7
            world.tell(name, ev.TrainingResumed, step=step)
        if hour in (200, 500):
            nodes, price = (6, 47.77) if hour == 200 else (7, 55.51)
            world.resize("lab", nodes=nodes, usd_per_hour=price)
        if hour == 120:
            scale_run(world.services, OWN, WHO, nodes=6)
            world.at += timedelta(minutes=9)
            world.come(OWN, usd_per_hour=2.93)
        if hour == 240:
            world.end(OWN)
        if hour == 300:
            world.tell(name, ev.BudgetChanged, usd=20_000.0, user_id="U1")
        step += 1
        world.tell(name, ev.ProgressReported, seq=hour, step=step, total_steps=9_999, loss_nats=2.0)
        look_at_budget(world.services, world.services.runs.load(RunId(name)))
    world.tell(name, ev.PhaseChanged, phase=ev.RunPhase.SAVING)
    world.at += timedelta(minutes=7)
    run = world.tell(name, ev.PhaseChanged, phase=ev.RunPhase.SUCCEEDED)
    world.tell_cluster("lab", cl.LeaseReleased, run_id=RunId(name))
    world.at += timedelta(hours=3)
    world.tell_cluster("lab", cl.ResourceDeleted, **NODES)

    cluster = world.services.cluster_states.load(ClusterId("lab"))
    bill = month_of(world.services, "2026-11", channels={CHANNEL})
    rounded = sum(round(each.usd, 2) for each in bill.spent)
    own = world.services.cluster_states.load(ClusterId(OWN)).cost_usd(world.at)
    assert rounded == pytest.approx(cluster.cost_usd(world.at) + own, abs=0.01)
    assert world.cost(name) == pytest.approx(shares(cluster, world.at).runs[run.run_id])
    found = goodput(RunView(run, cluster), world.at)
    assert found is not None
    lost = [found.spent[each] for each in (Cause.STALLS, Cause.RESTARTS, Cause.REPEATS)]
    assert sum(lost, timedelta()).total_seconds() == pytest.approx(run.setbacks.lost_s)
    leased = run.ended_at - cluster.leases[run.run_id].granted_at  # type: ignore[operator]
    assert (found.paid, run.setbacks.number) == (leased, 12)
    said = [e.percent for e in world.services.runs.events(run.run_id) if e.type == "budget.reached"]
    assert said == [50, 80, 95, 50]

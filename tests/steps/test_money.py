"""Money of a channel's month: kept when a run is granted, and not passed by more than a poll."""

from __future__ import annotations

import itertools
from datetime import datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stationmaster.commands.guarding import spending_of_run, write_guarded
from stationmaster.domain.cluster import events as cl
from stationmaster.domain.errors import NotPossibleNow
from stationmaster.domain.ids import RunId
from stationmaster.domain.reactions.budgets import percent_reached
from stationmaster.domain.run import events as ev
from stationmaster.spending import month_of
from stationmaster.steps.parts.budgets import look_at_budget, look_at_months
from tests.support.money_world import CHANNEL, NODES, MoneyWorld

BUDGET = 100.0
often = settings(max_examples=40, deadline=None)
CENTS = st.integers(1, 8_000).map(lambda cents: cents / 100)


class Starts:
    """Starts, ends and deletions, each of which comes while the ones before it are under way."""

    def __init__(self, world: MoneyWorld, acts: list[tuple[str, float, int]]) -> None:
        self._world, self._acts = world, acts
        self.granted: list[str] = []

    def happen(self) -> None:
        while self._acts:
            self._begin()

    def _begin(self) -> None:
        act, usd, after = self._acts.pop(0)
        if act == "end" and self.granted:
            name = self.granted.pop()
            self._world.tell(name, ev.PhaseChanged, phase=ev.RunPhase.FAILED)
        elif act != "end":
            self._start(act, usd, after)

    def _start(self, act: str, usd: float, after: int) -> None:
        """Another act comes after so many calls of the table; a killed one goes no further."""
        world, name = self._world, f"tiny-llama-{len(self._acts):08}"
        more = {"budget_usd": usd} if act == "budget" else {}
        asked = world.requested(name, 0.01 if more else usd, **more)
        before, left = world.table.called, [after]

        def called(_: str) -> None:
            left[0] -= 1
            if left[0] == 0 and self._acts:
                world.table.called = lambda _: None
                self._begin()
                world.table.called = called

        world.table.called = called
        try:
            spending = spending_of_run(asked)
            write = lambda also: world.write(asked, also)  # noqa: E731
            write_guarded(world.services, spending, name, write)
            self.granted.append(name)
        except NotPossibleNow:
            pass
        finally:
            world.table.called = before


@often
@given(st.lists(st.tuples(st.sampled_from(["plan", "budget", "end"]), CENTS, st.integers(0, 9))))
def test_money_of_a_month_is_kept_for_what_is_granted_whatever_comes_in_between(
    acts: list[tuple[str, float, int]],
) -> None:
    world = MoneyWorld(usd_a_month=BUDGET)
    asked = {f"tiny-llama-{place:08}": usd for place, (_, usd, _) in enumerate(acts[::-1])}
    starts = Starts(world, [*acts])

    starts.happen()

    bill = month_of(world.services, "", channels={CHANNEL})
    kept = sum(each.usd + each.still for each in bill.spent)
    assert kept <= BUDGET + 0.001
    # What has ended keeps nothing, and nothing else goes missing.
    assert kept == pytest.approx(sum(asked[name] for name in starts.granted))


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

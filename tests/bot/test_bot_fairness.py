"""Hundreds of noisy runs and a quiet one in a channel, by a virtual clock and Slack's limits."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from bot_world import CHANNEL, Clock, Story, new_notifier
from recording_slack import Call, RecordingSlack

from bot.stream import read_batch
from bot.subjects import RunSubject
from lambdas.registry import STREAM_BATCH_SIZE
from stationmaster.aws.cluster_store import ClusterStore
from stationmaster.aws.delivery_store import Delivery, DeliveryStore, of_run
from stationmaster.aws.run_store import RunStore
from stationmaster.commands import view_run
from stationmaster.domain.cluster import events as cl
from stationmaster.domain.run import events as ev
from stationmaster.local.slack.limits import RateLimiter
from stationmaster.services import Services
from tests.support.memory_table import MemoryTable

# An end takes an edit and two posts, of which a minute has 50 and a channel 60.
END_EVERY_S = 2.5
# What calls take a function with half a GiB, its own work included.
SLACK_CALL_S = 0.2
TABLE_CALLS_S = {"query": 0.1, "batch_get_item": 0.15}
OTHER_CALL_S = 0.008


class World(Clock):
    """A clock by which things happen while others work."""

    def __init__(self) -> None:
        super().__init__()
        self.due: list[tuple[float, int, Callable[[], Any]]] = []
        self.is_happening = False
        self._number = itertools.count()

    def plan(self, after_s: float, action: Callable[[], Any]) -> None:
        heapq.heappush(self.due, (self.monotonic() + after_s, next(self._number), action))

    def advance(self, seconds: float) -> None:
        if self.is_happening:  # others have machines of their own
            return
        end = self.at + timedelta(seconds=seconds)
        self.is_happening = True
        while self.due and self.due[0][0] <= end.timestamp():
            then, _, action = heapq.heappop(self.due)
            self.at += timedelta(seconds=then - self.monotonic())
            action()
        self.at = end
        self.is_happening = False


class LimitedSlack(RecordingSlack):
    """Takes what Slack takes, and remembers when."""

    def __init__(self, clock: World) -> None:
        super().__init__()
        self.clock = clock
        self.limiter = RateLimiter(clock=clock.monotonic)
        self.taken_at: dict[int, float] = {}

    def answer(self, path: str, arguments: dict[str, Any], *more: Any) -> tuple[int, dict, Any]:
        self.clock.advance(SLACK_CALL_S)
        channel = arguments.get("channel", "")
        wait_s = self.limiter.retry_after_s(path.removeprefix("/api/"), channel=channel)
        if wait_s:
            return 429, {"Retry-After": str(wait_s)}, {"ok": False, "error": "ratelimited"}
        answer = super().answer(path, arguments, *more)
        self.taken_at[len(self.calls)] = self.clock.monotonic()
        return answer

    def seen_at(self, ts: str, text: str, *, since: float) -> float:
        """When the message, or one in its thread, first said so."""

        def is_it(call: Call) -> bool:
            about = {call.ts, call.arguments.get("ts"), call.arguments.get("thread_ts")}
            return text in call.seen and (ts in about or ts in call.seen)

        found = [self.taken_at[n] for n, call in enumerate(self.calls, 1) if is_it(call)]
        return min((at for at in found if at >= since), default=float("inf"))


@pytest.fixture
def clock() -> World:
    return World()


@pytest.fixture
def slack(clock: World) -> Iterator[LimitedSlack]:
    server = LimitedSlack(clock)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def memory(services: Services, clock: World) -> MemoryTable:
    table: Any = MemoryTable(clock.now)
    services.runs = RunStore("runs", table)
    services.cluster_states = ClusterStore("runs", table)
    services.deliveries = DeliveryStore("runs", table)
    return table


def train(story: Story, services: Services, *, ts: str) -> None:
    """It has trained for a quarter of an hour, and its card says so."""
    story.reach_running()
    subject = RunSubject(view_run(services, services.runs.load(story.run_id)))
    card = {"channel_id": CHANNEL, "card_ts": ts, "card_milestone": subject.milestone}
    services.deliveries.save(Delivery(owner=of_run(story.run_id), **card), now=story.clock.now())


def make_noise(story: Story, clock: World, every_s: float, count: int = 0) -> None:
    """Once in so long its log reports another failure, and the run restarts."""
    if story.services.runs.load(story.run_id).phase.is_terminal:
        return
    line = f"error {'x' * count}"  # figures alone would fold into one line
    story.happen(ev.ProcessFailed, pod="w-0", line=line)
    phase = ev.RunPhase.RUNNING if count % 2 else ev.RunPhase.RECOVERING
    story.phases(phase, reason=line)
    clock.plan(every_s, lambda: make_noise(story, clock, every_s, count + 1))


@pytest.mark.parametrize(
    ("runs", "noise_every_s", "quiet_s", "ends"), [(100, 15, 5, 0), (200, 40, 60, 200)]
)
def test_of_many_noisy_runs_ends_take_a_minute_and_a_quiet_run_seconds_at_most(
    services, memory, slack, clock, runs, noise_every_s, quiet_s, ends
):
    *noisy, quiet, new = [Story(services, clock, f"tiny-llama-{n:08x}") for n in range(runs + 2)]
    for number, story in enumerate([*noisy, quiet]):
        train(story, services, ts=f"1.{number}")
    card = f"1.{runs}"
    clock.advance(900)
    memory.stream.clear()
    for number, story in enumerate(noisy):
        begins = number * noise_every_s / runs
        clock.plan(begins, lambda story=story: make_noise(story, clock, noise_every_s))
    happened: dict[tuple[str, str], float] = {}

    def happen(ts: str, text: str, *actions: Callable[[], Any]) -> None:
        happened[ts, text] = clock.monotonic()
        for action in actions:
            action()

    recover = lambda: quiet.phases(ev.RunPhase.RECOVERING, reason="a lost peer")  # noqa: E731
    succeed = lambda: quiet.phases(ev.RunPhase.SUCCEEDED)  # noqa: E731
    tear_down = lambda: quiet.happen(cl.TeardownCompleted, cost_usd=0.42)  # noqa: E731
    clock.plan(40, lambda: happen(card, "a lost peer", recover))
    clock.plan(50, lambda: happen(new.run_id, "requested", new.begin))
    clock.plan(60, lambda: happen(card, "succeeded", succeed, quiet.tear_down))
    clock.plan(66, lambda: happen(card, "receipt", tear_down))
    for number, story in enumerate(noisy[:ends]):
        succeed_too = lambda story=story: story.phases(ev.RunPhase.SUCCEEDED)  # noqa: E731
        place = (70 + number * END_EVERY_S, f"1.{number}", succeed_too)
        clock.plan(place[0], lambda place=place: happen(place[1], "succeeded", place[2]))
    notifier, began, batches = new_notifier(services, slack, clock), clock.monotonic(), 0
    memory.called = lambda name: clock.advance(TABLE_CALLS_S.get(name, OTHER_CALL_S))

    while clock.monotonic() < began + 72 + ends * END_EVERY_S + 60 * bool(ends):
        clock.advance(0.03)
        size = min(STREAM_BATCH_SIZE, len(memory.stream))
        batch = read_batch({"Records": [memory.stream.popleft() for _ in range(size)]})
        batches += 1
        for _ in range(2 if batches % 5 == 0 else 1):  # some are delivered again
            if any(vars(batch).values()):
                notifier.notify(batch)

    late = {key: slack.seen_at(*key, since=at) - at for key, at in happened.items()}
    ended = [(ts, text) for ts, text in late if text == "succeeded" and ts != card]
    finals = {ts: late.pop((ts, text)) for ts, text in ended}
    assert {text: round(s, 1) for (_, text), s in late.items() if s > quiet_s} == {}
    assert {ts: round(s, 1) for ts, s in finals.items() if s > 60} == {}
    assert (len(late), len(finals)) == (4, ends)

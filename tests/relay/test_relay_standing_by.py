"""What a relay keeps while another one leads, and what it sends when it takes over."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from time import monotonic
from types import SimpleNamespace

import pytest
from recording_bus import KEY, RecordingBus

from stationmaster.domain.run.events import ClusterWarning, PodChanged
from stationmaster.relay.batching import KEPT_EVENTS, Batcher
from stationmaster.relay.bus import BusSender
from stationmaster.relay.leases import Sent
from stationmaster.relay.pending import MAX_LOGS, LogPlace

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def stamp(second):
    return f"2026-01-02T03:{second // 60:02}:{second % 60:02}.500000000Z"


def warning(name):
    return ClusterWarning(
        event_id=name, run_id="run-1", at=NOW, object_name="o", reason="r", message=""
    )


def pod_change(name, phase, **more):
    return PodChanged(event_id=name, run_id="run-1", at=NOW, pod="pod-0", phase=phase, **more)


@pytest.fixture
def lead():
    """Whether the relay's lease still holds."""
    return SimpleNamespace(holds=True)


@pytest.fixture
def bus():
    return RecordingBus()


@pytest.fixture
def batcher(bus, lead):
    sender = BusSender(bus, bus_name="bus", key=KEY, may_send=lambda: lead.holds)
    batcher = Batcher(run_id="run-1", sender=sender, now=lambda: NOW)
    batcher.start()
    yield batcher
    batcher.close(timeout_s=1)


def put_line(batcher, second, *, uid="uid-1"):
    place = LogPlace(uid, stamp(second))
    return batcher.put([warning(f"{uid} {second}")], place=place)


def seconds(bus):
    return [int(event_id.split()[1]) for event_id in bus.events]


def test_relay_that_stands_by_sends_nothing_and_what_it_kept_when_it_leads(batcher, bus):
    batcher.put([warning("1")])
    batcher.keep_line("pod-0", "a line", NOW)
    batcher.learn(Sent(), written_after=None)
    batcher.put([warning("2")], urgent=True)
    assert bus.calls == []

    batcher.lead(Sent())

    bus.wait_for(lambda: len(bus.events) == 2)
    assert bus.events == ["1", "2"]
    assert bus.batches[0].heartbeat
    assert [tail.lines for tail in bus.batches[0].log_tails] == [["a line"]]


def test_lines_that_the_leader_has_sent_are_dropped_but_for_the_last_moments(batcher, bus):
    for second in range(0, 100, 10):
        put_line(batcher, second)
    put_line(batcher, 3, uid="uid-2")

    batcher.learn(Sent(logs={"uid-1": stamp(50)}), written_after=None)
    put_line(batcher, 44)  # read late: it is on the bus
    batcher.lead(Sent(logs={"uid-1": stamp(65)}))

    bus.wait_for(lambda: bus.events)
    assert seconds(bus) == [60, 70, 80, 90, 3]  # 60: lines within 5 s may be out of order


def test_relay_that_starts_late_passes_over_a_long_history(batcher, bus):
    batcher.learn(Sent(logs={"uid-1": stamp(3000)}), written_after=None)

    for second in range(3000):
        assert put_line(batcher, second)
    batcher.lead(Sent(logs={"uid-1": stamp(3000)}))

    bus.wait_for(lambda: bus.batches)
    bus.wait_for(lambda: len(bus.events) >= 5)
    assert seconds(bus) == [2995, 2996, 2997, 2998, 2999]


@pytest.mark.parametrize(
    ("behind_s", "written_in_s", "is_kept"),
    [(0.0, 3600, False), (7200.0, 3600, True), (None, 3600, True), (0.0, 0, True)],
)
def test_what_was_seen_of_objects_is_kept_until_the_leader_has_surely_sent_it(
    batcher, bus, behind_s, written_in_s, is_kept
):
    batcher.put([warning("node lost")])

    batcher.learn(Sent(behind_s=behind_s), written_after=monotonic() + written_in_s)
    batcher.lead(Sent())

    bus.wait_for(lambda: bus.batches)
    batcher.put([warning("later")])
    bus.wait_for(lambda: "later" in bus.events)
    assert bus.events == [*(["node lost"] if is_kept else []), "later"]


def test_state_of_a_pod_that_a_newer_one_followed_is_not_told_after_it(batcher, bus):
    batcher.put(
        [
            pod_change("waits", "Pending"),
            pod_change("killed", "Running", exit_code=137),
            pod_change("waits again", "Pending", restarts=1),
            pod_change("runs", "Running", restarts=1),
        ]
    )

    batcher.lead(Sent())

    bus.wait_for(lambda: bus.events)
    assert bus.events == ["killed", "runs"]


def test_lead_that_is_lost_sends_nothing_more_and_goes_on_where_it_was(batcher, bus, lead):
    batcher.lead(None)
    bus.wait_for(lambda: bus.batches)
    lead.holds = False
    batcher.put([warning("1"), warning("2")], urgent=True)
    batcher.put([warning("3")], urgent=True)
    batcher.learn(Sent(), written_after=None)
    assert bus.events == []

    lead.holds = True
    batcher.lead(Sent())

    bus.wait_for(lambda: len(bus.events) == 3)
    assert bus.events == ["1", "2", "3"]


def test_lead_that_is_lost_while_the_bus_is_away_ends_the_tries(lead):
    throttled = [["ThrottlingException"] * 10] * 3

    class LosesLead(RecordingBus):
        def put_events(self, *, Entries):  # noqa: N803
            lead.holds = len(self.calls) < 2
            return super().put_events(Entries=Entries)

    bus = LosesLead(*[codes[:1] for codes in throttled])
    batcher = Batcher(
        run_id="run-1",
        sender=BusSender(bus, bus_name="bus", key=KEY, may_send=lambda: lead.holds),
        now=lambda: NOW,
    )
    batcher.start(job_may_exist=lambda: False)
    batcher.put([warning("1")])
    batcher.lead(None)

    bus.wait_for(lambda: len(bus.calls) == 3)
    assert batcher.close(timeout_s=10) is False  # one event is left, and not this relay's to send
    assert len(bus.calls) == 3


def test_what_is_under_way_does_not_count_as_sent(batcher, bus):
    bus.open.clear()
    batcher.lead(None)
    put_line(batcher, 1)
    batcher.put([warning("object")])
    assert batcher.sent().logs == {}
    assert batcher.sent().behind_s > 0

    bus.open.set()
    bus.wait_for(lambda: len(bus.events) == 2)
    put_line(batcher, 2)
    bus.wait_for(lambda: len(bus.events) == 3)
    batcher.close(timeout_s=1800)

    assert batcher.sent() == Sent(behind_s=0.0, logs={"uid-1": stamp(2)})


def test_new_leader_counts_what_the_one_before_sent_as_sent_and_keeps_it_small(batcher):
    put_line(batcher, 20)

    batcher.lead(Sent(logs={"uid-1": stamp(30), "uid-2": stamp(8)}))

    assert batcher.sent().logs == {"uid-1": stamp(30), "uid-2": stamp(8)}
    batcher.lead(Sent(logs={f"uid-{n}": stamp(1) for n in range(2 * MAX_LOGS)}))
    assert len(batcher.sent().logs) == MAX_LOGS


def test_relay_whose_watch_is_cut_or_that_stands_by_says_and_sends_less(bus):
    batcher = Batcher(run_id="run-1", sender=BusSender(bus, bus_name="bus", key=KEY))
    batcher.start(blind_s=lambda: 40.0)
    batcher.put([warning("1")])

    assert batcher.sent().behind_s >= 40.0
    assert batcher.close(timeout_s=1800)
    assert bus.calls == []


def test_relay_that_stands_by_holds_its_readers_back_when_it_is_full(batcher, bus):
    for second in range(KEPT_EVENTS // 1000):
        batcher.put([warning(f"uid-1 {second}")] * 1000, place=LogPlace("uid-1", stamp(second)))
    writer = threading.Thread(target=put_line, args=(batcher, 1000))
    writer.start()
    writer.join(0.2)
    assert writer.is_alive()

    batcher.learn(Sent(logs={"uid-1": stamp(1000)}), written_after=None)
    writer.join(1800)

    assert not writer.is_alive()

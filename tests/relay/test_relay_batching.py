"""Events and tails in, EventBridge entries out; what a relay keeps while another leads; figures."""

from __future__ import annotations

import json
import math
import socket
import threading
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from itertools import pairwise
from time import monotonic
from types import SimpleNamespace

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError
from prometheus_client import generate_latest
from recording_bus import KEY, RecordingBus, figures_of

from stationmaster.domain.bus import RelayBatch, is_signed
from stationmaster.domain.progress_lines import FinishedLine, Sample, read_line
from stationmaster.domain.run.events import ClusterWarning, PodChanged, ProgressReported
from stationmaster.relay import batching, metrics
from stationmaster.relay.batching import KEPT_EVENTS, Batcher
from stationmaster.relay.bus import BusSender
from stationmaster.relay.leases import Sent
from stationmaster.relay.pending import MAX_LOGS, LogPlace
from tests.support.cluster_fixtures import eventually

NOW = datetime(2026, 1, 2, tzinfo=UTC)


@pytest.fixture
def bus():
    return RecordingBus()


@pytest.fixture
def batcher(batcher_on, bus):
    return batcher_on(bus)


@pytest.fixture
def batcher_on():
    batchers = []

    def build(bus, **start):
        batcher = Batcher(
            run_id="run-1", sender=BusSender(bus, bus_name="bus", key=KEY), now=lambda: NOW
        )
        batchers.append(batcher)
        batcher.start(**start)
        batcher.lead(None)
        return batcher

    yield build
    for batcher in batchers:
        batcher.close(timeout_s=1)


def tails(bus):
    return [tail for batch in bus.batches for tail in batch.log_tails]


def events(count, *, size=0, first=0):
    return [
        ClusterWarning(
            event_id=str(n),
            run_id="run-1",
            at=NOW,
            object_name="o",
            reason="r",
            message="\u00e9" * (size // 2),
        )
        for n in range(first, first + count)
    ]


def test_start_sends_a_heartbeat(batcher, bus):
    bus.wait_for(lambda: bus.entries)
    assert bus.batches[0].heartbeat
    assert is_signed(json.loads(bus.entries[0]["Detail"]), KEY)
    assert {k: bus.entries[0][k] for k in ("Source", "DetailType", "EventBusName")} == {
        "Source": "stationmaster",
        "DetailType": "Relay Batch",
        "EventBusName": "bus",
    }


def test_start_job_gone_sends_no_heartbeat(batcher_on, bus):
    batcher = batcher_on(bus, job_may_exist=lambda: False)
    batcher.put(events(1))

    bus.wait_for(lambda: bus.events)
    assert not any(batch.heartbeat for batch in bus.batches)


def test_put_many_and_large_events_keeps_order_and_the_limits_of_the_bus(batcher, bus):
    for start in range(0, 1000, 50):
        batcher.put(events(50, first=start))
    batcher.put(events(60, size=30_000, first=1000))

    bus.wait_for(lambda: len(bus.events) == 1060)
    assert bus.events == [str(n) for n in range(1060)]
    assert max(len(batch.events) for batch in bus.batches) <= 200
    assert max(len(e["Detail"].encode()) for e in bus.entries) < 256_000
    assert max(sum(len(e["Detail"].encode()) for e in call) for call in bus.calls) < 256_000
    assert max(len(call) for call in bus.calls) <= 10


def test_send_outage_and_throttle_are_retried_until_taken(batcher_on):
    throttled = ClientError({"Error": {"Code": "ThrottlingException"}}, "PutEvents")
    bus = RecordingBus(EndpointConnectionError(endpoint_url="http://x"), throttled)
    batcher = batcher_on(bus)

    batcher.put(events(3))

    bus.wait_for(lambda: len(bus.events) == 3)
    assert bus.events == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("answer", "calls", "taken"),
    [
        ([None, "InternalFailure", "ThrottlingException"], [3, 2], ["0", "1", "2"]),
        (["MalformedDetail", None, None], [3], ["1", "2"]),  # no retry helps it
    ],
)
def test_send_partial_failure_resends_only_what_may_be_taken(answer, calls, taken):
    bus = RecordingBus(answer)
    sender = BusSender(bus, bus_name="bus", key=KEY)

    assert sender.send([RelayBatch(run_id="run-1", batch_id=str(n), at=NOW) for n in range(3)])

    assert [len(call) for call in bus.calls] == calls
    assert [batch.batch_id for batch in bus.batches] == taken


def test_put_bus_away_holds_the_writer_back_and_loses_nothing(batcher_on, bus):
    bus.open.clear()
    batcher = batcher_on(bus)
    written = []

    def write():
        for start in range(0, 12_000, 100):
            batcher.put(events(100, first=start))
            written.append(start)

    writer = threading.Thread(target=write)
    writer.start()
    writer.join(1.0)
    held_at = len(written) * 100
    bus.open.set()
    writer.join(600)

    bus.wait_for(lambda: len(bus.events) == 12_000)
    assert held_at < 8_000
    assert bus.events == [str(n) for n in range(12_000)]


def test_keep_line_tail_has_the_newest_lines_capped(batcher, bus):
    for n in range(100):
        batcher.keep_line("pod-0", f"{n} " + "x" * 600, NOW)

    bus.wait_for(lambda: tails(bus))
    tail = tails(bus)[0]
    assert [line.split()[0] for line in tail.lines] == [str(n) for n in range(40, 100)]
    assert max(len(line) for line in tail.lines) == 500


def test_keep_line_of_the_trainer_stays_readable(batcher, bus):
    line = FinishedLine(step=60, samples=(Sample(prompt="a" * 300, text="b" * 400),)).text()

    batcher.keep_line("worker-0", line, NOW)

    bus.wait_for(lambda: tails(bus))
    assert read_line(tails(bus)[0].lines[0]) is not None


def test_keep_line_unprintable_tail_fits_an_entry(batcher, bus):
    for pod in range(30):
        for _ in range(60):
            batcher.keep_line(f"pod-{pod}", "\x01" * 500, NOW)

    bus.wait_for(lambda: len({tail.pod for tail in tails(bus)}) == 30)
    assert max(len(entry["Detail"].encode()) for entry in bus.entries) < 256_000


def test_end_of_log_sends_the_tail_before_its_interval(batcher, bus):
    batcher.keep_line("pod-0", "first", NOW)
    bus.wait_for(lambda: tails(bus))

    began = monotonic()
    batcher.keep_line("pod-0", "last", NOW)
    batcher.end_of_log("pod-0")

    bus.wait_for(lambda: any(tail.lines[-1] == "last" for tail in tails(bus)))
    assert monotonic() - began < 1.5


def test_close_sends_everything_that_waits(batcher, bus):
    batcher.put(events(3000))
    batcher.keep_line("pod-0", "last", NOW)

    assert batcher.close(timeout_s=600)

    assert len(bus.events) == 3000
    assert tails(bus)[-1].lines == ["last"]
    assert not batcher.put(events(1))


def test_close_bus_away_gives_up_in_time(batcher_on):
    bus = RecordingBus(*[EndpointConnectionError(endpoint_url="http://x")] * 1000)
    batcher = batcher_on(bus)
    batcher.put(events(1))

    began = monotonic()

    assert not batcher.close(timeout_s=0.5)
    assert monotonic() - began < 900


def test_batch_id_follows_from_the_events():
    ids = []
    for _ in range(2):
        bus = RecordingBus()
        batcher = Batcher(run_id="run-1", sender=BusSender(bus, bus_name="bus", key=KEY))
        batcher.put(events(3))
        batcher.start(job_may_exist=lambda: False)
        batcher.lead(None)
        batcher.close(timeout_s=600)
        ids.append(bus.batches[0].batch_id)

    assert ids[0] == ids[1]


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
def standby(bus, lead):
    """A batcher that has not begun to lead."""
    sender = BusSender(bus, bus_name="bus", key=KEY, may_send=lambda: lead.holds)
    batcher = Batcher(run_id="run-1", sender=sender, now=lambda: NOW)
    batcher.start()
    yield batcher
    batcher.close(timeout_s=1)


def put_line(standby, second, *, uid="uid-1"):
    place = LogPlace(uid, stamp(second))
    return standby.put([warning(f"{uid} {second}")], place=place)


def seconds(bus):
    return [int(event_id.split()[1]) for event_id in bus.events]


def test_relay_that_stands_by_sends_nothing_and_what_it_kept_when_it_leads(standby, bus):
    standby.put([warning("1")])
    standby.keep_line("pod-0", "a line", NOW)
    standby.keep_line("pod-0", "another", NOW + timedelta(seconds=7))
    standby.learn(Sent(), written_after=None)
    standby.put([warning("2")], urgent=True)
    assert bus.calls == []

    standby.lead(Sent())

    bus.wait_for(lambda: len(bus.events) == 2)
    assert bus.events == ["1", "2"]
    assert bus.batches[0].heartbeat
    (tail,) = bus.batches[0].log_tails
    assert (tail.lines, tail.ages_s) == (["a line", "another"], [7, 0])


def test_lines_that_the_leader_has_sent_are_dropped_but_for_the_last_moments(standby, bus):
    for second in range(0, 100, 10):
        put_line(standby, second)
    put_line(standby, 3, uid="uid-2")

    standby.learn(Sent(logs={"uid-1": stamp(50)}), written_after=None)
    put_line(standby, 44)  # read late: it is on the bus
    standby.lead(Sent(logs={"uid-1": stamp(65)}))

    bus.wait_for(lambda: bus.events)
    assert seconds(bus) == [60, 70, 80, 90, 3]  # 60: lines within 5 s may be out of order


def test_relay_that_starts_late_passes_over_a_long_history(standby, bus):
    standby.learn(Sent(logs={"uid-1": stamp(3000)}), written_after=None)

    for second in range(3000):
        assert put_line(standby, second)
    standby.lead(Sent(logs={"uid-1": stamp(3000)}))

    bus.wait_for(lambda: bus.batches)
    bus.wait_for(lambda: len(bus.events) >= 5)
    assert seconds(bus) == [2995, 2996, 2997, 2998, 2999]


@pytest.mark.parametrize(
    ("behind_s", "written_in_s", "is_kept"),
    [(0.0, 3600, False), (7200.0, 3600, True), (None, 3600, True), (0.0, 0, True)],
)
def test_what_was_seen_of_objects_is_kept_until_the_leader_has_surely_sent_it(
    standby, bus, behind_s, written_in_s, is_kept
):
    standby.put([warning("node lost")])

    standby.learn(Sent(behind_s=behind_s), written_after=monotonic() + written_in_s)
    standby.lead(Sent())

    bus.wait_for(lambda: bus.batches)
    standby.put([warning("later")])
    bus.wait_for(lambda: "later" in bus.events)
    assert bus.events == [*(["node lost"] if is_kept else []), "later"]


def test_state_of_a_pod_that_a_newer_one_followed_is_not_told_after_it(standby, bus):
    standby.put(
        [
            pod_change("waits", "Pending"),
            pod_change("killed", "Running", exit_code=137),
            pod_change("waits again", "Pending", restarts=1),
            pod_change("runs", "Running", restarts=1),
        ]
    )

    standby.lead(Sent())

    bus.wait_for(lambda: bus.events)
    assert bus.events == ["killed", "runs"]


def test_lead_that_is_lost_sends_nothing_more_and_goes_on_where_it_was(standby, bus, lead):
    standby.lead(None)
    bus.wait_for(lambda: bus.batches)
    lead.holds = False
    standby.put([warning("1"), warning("2")], urgent=True)
    standby.put([warning("3")], urgent=True)
    standby.learn(Sent(), written_after=None)
    assert bus.events == []

    lead.holds = True
    standby.lead(Sent())

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


def test_what_is_under_way_does_not_count_as_sent(standby, bus):
    bus.open.clear()
    standby.lead(None)
    put_line(standby, 1)
    standby.put([warning("object")])
    assert standby.sent().logs == {}
    assert standby.sent().behind_s > 0

    bus.open.set()
    bus.wait_for(lambda: len(bus.events) == 2)
    put_line(standby, 2)
    bus.wait_for(lambda: len(bus.events) == 3)
    standby.close(timeout_s=600)

    assert standby.sent() == Sent(behind_s=0.0, logs={"uid-1": stamp(2)})


def test_new_leader_counts_what_the_one_before_sent_as_sent_and_keeps_it_small(standby):
    put_line(standby, 20)

    standby.lead(Sent(logs={"uid-1": stamp(30), "uid-2": stamp(8)}))

    assert standby.sent().logs == {"uid-1": stamp(30), "uid-2": stamp(8)}
    standby.lead(Sent(logs={f"uid-{n}": stamp(1) for n in range(2 * MAX_LOGS)}))
    assert len(standby.sent().logs) == MAX_LOGS


def test_relay_whose_watch_is_cut_or_that_stands_by_says_and_sends_less(bus):
    batcher = Batcher(run_id="run-1", sender=BusSender(bus, bus_name="bus", key=KEY))
    batcher.start(blind_s=lambda: 40.0)
    batcher.put([warning("1")])

    assert batcher.sent().behind_s >= 40.0
    assert batcher.close(timeout_s=600)
    assert bus.calls == []


def test_relay_that_stands_by_holds_its_readers_back_when_it_is_full(standby, bus):
    for second in range(KEPT_EVENTS // 1000):
        standby.put([warning(f"uid-1 {second}")] * 1000, place=LogPlace("uid-1", stamp(second)))
    writer = threading.Thread(target=put_line, args=(standby, 1000))
    writer.start()
    writer.join(0.2)
    assert writer.is_alive()

    standby.learn(Sent(logs={"uid-1": stamp(1000)}), written_after=None)
    writer.join(600)

    assert not writer.is_alive()


def test_a_run_that_trains_for_hours_sends_few_batches(bus, monkeypatch):
    """The clock is set; every pod prints a line a second, and one of them a step."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(batching, "monotonic", lambda: clock.now)
    batcher = Batcher(run_id="run-1", sender=BusSender(bus, bus_name="bus", key=KEY))
    batcher.lead(None)
    sent = []
    for quarter in range(2 * 3600 * 4):
        clock.now = quarter / 4
        if quarter % 4 == 0:
            batcher.put([progress(quarter)])
            for pod in range(16):
                batcher.keep_line(f"worker-{pod}", f"step {quarter}", NOW)
        while batcher._due_in_s(clock.now) <= 0:
            sent += [(clock.now, batch) for batch in batcher._take_batches()]

    first_minute = [batch for at, batch in sent if at <= 60]
    last_hour = [at for at, _ in sent if at > 3600]
    beats = [at for at, batch in sent if batch.heartbeat]
    assert len(first_minute) > 30
    assert len(last_hour) <= 300
    assert max(after - before for before, after in pairwise(beats)) <= 20
    assert [event.seq for _, batch in sent for event in batch.events][:7000] == [
        4 * second for second in range(7000)
    ]


def progress(seq):
    return ProgressReported(
        event_id=str(seq), run_id="run-1", at=NOW, seq=seq, step=1, total_steps=9, loss_nats=1.0
    )


@pytest.fixture
def figures():
    """Of a relay whose bus fails once, and then refuses its second batch for good."""
    bus = RecordingBus(["InternalFailure"], None, ["MalformedDetail"], None)
    sender = BusSender(bus, bus_name="bus", key=KEY)
    batcher = Batcher(run_id="run-1", sender=sender)
    return metrics.RelayFigures("run-1", batcher, sender, lambda: True, lambda: 3)


def read(figures):
    return figures_of(generate_latest(figures).decode(), "run-1")  # one has a registry's `collect`


def test_figures_count_failures_refusals_and_what_waits_apart(figures):
    batcher, bus = figures.batcher, figures.sender._client
    batcher.start(blind_s=lambda: 7.5)
    batcher.put(events(1))
    batcher.learn(Sent(behind_s=0.0, logs={}), written_after=None)
    assert read(figures)["relay_events_waiting"] == 0, "another one leads"
    batcher.lead(None)
    bus.wait_for(lambda: bus.events == ["0"])
    batcher.put(events(1), urgent=True)
    bus.wait_for(lambda: len(bus.calls) == 3)
    bus.open.clear()
    said = {"event_id": "e", "run_id": "run-1", "at": NOW, "total_steps": 9, "loss_nats": None}
    batcher.put([*events(1), ProgressReported(**said, seq=2, step=2)])
    batcher.put([ProgressReported(**said | {"at": NOW.replace(year=2025)}, seq=1, step=1)])
    eventually(lambda: read(figures)["relay_events_waiting"] == 3, "three wait")
    bus.open.set()
    assert batcher.close(timeout_s=10)

    names = ("batches_sent_total", "put_failures_total", "batches_refused_total", "behind_seconds")
    found = read(figures)
    assert [found[f"relay_{name}"] for name in names] == [2, 1, 1, 7.5]  # a watch is cut
    assert (found["run_step"], math.isnan(found["run_loss_nats"])) == (2, True)


def test_figures_whose_port_is_taken_are_one_line_of_the_log(figures, monkeypatch, caplog):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setattr(metrics, "METRICS_PORT", taken.getsockname()[1])
        metrics.serve_metrics(figures, ip_address("10.0.0.7"))

    assert [record.message for record in caplog.records] == ["no metrics are served"]

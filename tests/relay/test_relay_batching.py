"""Events and tails in, EventBridge entries out."""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime
from time import monotonic

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError
from recording_bus import KEY, RecordingBus

from stationmaster.domain.bus import RelayBatch, is_signed
from stationmaster.domain.progress_lines import FinishedLine, Sample, read_line
from stationmaster.domain.run.events import ClusterWarning
from stationmaster.relay.batching import Batcher
from stationmaster.relay.bus import BusSender

NOW = datetime(2026, 1, 2, tzinfo=UTC)


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


def test_start_sends_a_heartbeat(batcher_on):
    bus = RecordingBus()

    batcher_on(bus)

    bus.wait_for(lambda: bus.entries)
    assert bus.batches[0].heartbeat
    assert is_signed(json.loads(bus.entries[0]["Detail"]), KEY)
    assert {k: bus.entries[0][k] for k in ("Source", "DetailType", "EventBusName")} == {
        "Source": "stationmaster",
        "DetailType": "Relay Batch",
        "EventBusName": "bus",
    }


def test_start_job_gone_sends_no_heartbeat(batcher_on):
    bus = RecordingBus()

    batcher = batcher_on(bus, job_may_exist=lambda: False)
    batcher.put(events(1))

    bus.wait_for(lambda: bus.events)
    assert not any(batch.heartbeat for batch in bus.batches)


def test_put_many_events_keeps_order_within_batch_limits(batcher_on):
    bus = RecordingBus()
    batcher = batcher_on(bus)

    for start in range(0, 1000, 50):
        batcher.put(events(50, first=start))

    bus.wait_for(lambda: len(bus.events) == 1000)
    assert bus.events == [str(n) for n in range(1000)]
    assert max(len(batch.events) for batch in bus.batches) <= 200


def test_put_large_events_stays_under_entry_and_call_limits(batcher_on):
    bus = RecordingBus()
    batcher = batcher_on(bus)

    batcher.put(events(60, size=30_000))

    bus.wait_for(lambda: len(bus.events) == 60)
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


def test_send_partial_failure_resends_only_what_failed():
    bus = RecordingBus([None, "InternalFailure", "ThrottlingException"])
    sender = BusSender(bus, bus_name="bus", key=KEY)
    batches = [RelayBatch(run_id="run-1", batch_id=str(n), at=NOW) for n in range(3)]

    assert sender.send(batches)

    assert [len(call) for call in bus.calls] == [3, 2]
    assert [batch.batch_id for batch in bus.batches] == ["0", "1", "2"]


def test_send_entry_refused_for_good_does_not_stop_the_others():
    bus = RecordingBus(["MalformedDetail", None])
    sender = BusSender(bus, bus_name="bus", key=KEY)
    batches = [RelayBatch(run_id="run-1", batch_id=str(n), at=NOW) for n in range(2)]

    assert sender.send(batches)

    assert [batch.batch_id for batch in bus.batches] == ["1"]


def test_put_bus_away_holds_the_writer_back_and_loses_nothing(batcher_on):
    bus = RecordingBus()
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
    writer.join(1800)

    bus.wait_for(lambda: len(bus.events) == 12_000)
    assert held_at < 8_000
    assert bus.events == [str(n) for n in range(12_000)]


def test_keep_line_tail_has_the_newest_lines_capped(batcher_on):
    bus = RecordingBus()
    batcher = batcher_on(bus)

    for n in range(100):
        batcher.keep_line("pod-0", f"{n} " + "x" * 600, NOW)

    bus.wait_for(lambda: any(batch.log_tails for batch in bus.batches))
    tail = next(tail for batch in bus.batches for tail in batch.log_tails)
    assert [line.split()[0] for line in tail.lines] == [str(n) for n in range(40, 100)]
    assert max(len(line) for line in tail.lines) == 500


def test_keep_line_of_the_trainer_stays_readable(batcher_on):
    bus = RecordingBus()
    batcher = batcher_on(bus)
    line = FinishedLine(step=60, samples=(Sample(prompt="a" * 300, text="b" * 400),)).text()

    batcher.keep_line("worker-0", line, NOW)

    bus.wait_for(lambda: any(batch.log_tails for batch in bus.batches))
    assert read_line(bus.batches[0].log_tails[0].lines[0]) is not None


def test_keep_line_unprintable_tail_fits_an_entry(batcher_on):
    bus = RecordingBus()
    batcher = batcher_on(bus)

    for pod in range(30):
        for _ in range(60):
            batcher.keep_line(f"pod-{pod}", "\x01" * 500, NOW)

    bus.wait_for(lambda: len({t.pod for b in bus.batches for t in b.log_tails}) == 30)
    assert max(len(entry["Detail"].encode()) for entry in bus.entries) < 256_000


def test_end_of_log_sends_the_tail_before_its_interval(batcher_on):
    bus = RecordingBus()
    batcher = batcher_on(bus)
    batcher.keep_line("pod-0", "first", NOW)
    bus.wait_for(lambda: any(batch.log_tails for batch in bus.batches))

    began = monotonic()
    batcher.keep_line("pod-0", "last", NOW)
    batcher.end_of_log("pod-0")

    bus.wait_for(lambda: any(t.lines[-1] == "last" for b in bus.batches for t in b.log_tails))
    assert monotonic() - began < 1.5


def test_close_sends_everything_that_waits(batcher_on):
    bus = RecordingBus()
    batcher = batcher_on(bus)
    batcher.put(events(3000))
    batcher.keep_line("pod-0", "last", NOW)

    assert batcher.close(timeout_s=1800)

    assert len(bus.events) == 3000
    assert [t.lines for b in bus.batches for t in b.log_tails][-1] == ["last"]
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
        batcher.close(timeout_s=1800)
        ids.append(bus.batches[0].batch_id)

    assert ids[0] == ids[1]

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
    writer.join(1800)

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

    assert batcher.close(timeout_s=1800)

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
        batcher.close(timeout_s=1800)
        ids.append(bus.batches[0].batch_id)

    assert ids[0] == ids[1]

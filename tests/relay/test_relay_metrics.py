"""What a relay says of itself at GET /metrics, where the bus is not well, and without a port.

The process answers in test_relay_process.py.
"""

from __future__ import annotations

import math
import socket
from datetime import UTC, datetime
from ipaddress import ip_address

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from recording_bus import KEY, RecordingBus

from stationmaster.domain.run.events import JobDisappeared, ProgressReported
from stationmaster.relay import metrics
from stationmaster.relay.batching import Batcher
from stationmaster.relay.bus import BusSender
from stationmaster.relay.leases import Sent
from tests.support.cluster_fixtures import eventually

NOW = datetime(2026, 1, 2, tzinfo=UTC)


class Relay:
    """As much of a relay as its figures are of."""

    def __init__(self, *answers):
        self.bus, self.leads = RecordingBus(*answers), True
        sender = BusSender(self.bus, bus_name="bus", key=KEY)
        self.batcher = Batcher(run_id="run-1", sender=sender)
        self.figures = metrics.RelayFigures(
            "run-1",
            batcher=self.batcher,
            sender=sender,
            leads=lambda: self.leads,
            num_pods=lambda: 3,
        )

    def read(self):
        registry = CollectorRegistry()
        registry.register(self.figures)
        families = text_string_to_metric_families(generate_latest(registry).decode())
        samples = [sample for family in families for sample in family.samples]
        assert {sample.labels["run_id"] for sample in samples} == {"run-1"}
        return {each.name.removeprefix("stationmaster_"): each.value for each in samples}


def gone(number):
    return JobDisappeared(event_id=f"e{number}", run_id="run-1", at=NOW, job="job-1")


def test_failures_refusals_and_what_waits_are_counted_apart():
    relay = Relay(["InternalFailure"], None, ["MalformedDetail"], None)
    relay.batcher.start(blind_s=lambda: 7.5)
    try:
        relay.batcher.put([gone(1)])
        relay.batcher.learn(Sent(behind_s=0.0, logs={}), written_after=None)
        assert relay.read()["relay_events_waiting"] == 0, "another one leads"
        relay.batcher.lead(None)  # the first call fails, and is repeated
        relay.bus.wait_for(lambda: relay.bus.events == ["e1"])
        relay.batcher.put([gone(2)], urgent=True)  # is refused for good
        relay.bus.wait_for(lambda: len(relay.bus.calls) == 3)
        relay.bus.open.clear()
        relay.batcher.put([gone(3), gone(4)])
        eventually(lambda: relay.read()["relay_events_waiting"] == 2, "two wait")
        relay.bus.open.set()
        relay.bus.wait_for(lambda: relay.bus.events == ["e1", "e3", "e4"])
    finally:
        assert relay.batcher.close(timeout_s=10)

    after = relay.read()
    assert after["relay_behind_seconds"] == 7.5, "a watch that is cut counts"
    names = ("batches_sent_total", "put_failures_total", "batches_refused_total", "pods", "leads")
    assert [after[f"relay_{name}"] for name in names] == [2, 1, 1, 3, 1]
    assert after["relay_events_waiting"] == 0


def test_newest_step_counts_whose_loss_may_not_be_finite_or_unknown():
    relay = Relay()
    assert not [name for name in relay.read() if name.startswith("run_")]
    step = ProgressReported(
        event_id="e2", run_id="run-1", at=NOW, seq=2, step=2, total_steps=9, loss_nats=None
    )
    earlier = {"at": NOW.replace(year=2025), "step": 1, "loss_nats": 4.0, "tokens_per_s": 10.0}
    relay.batcher.put([step, step.model_copy(update=earlier)])

    read = relay.read()
    assert read["run_step"] == 2
    assert math.isnan(read["run_loss_nats"])
    assert "run_tokens_per_second" not in read
    later = {"at": NOW.replace(year=2027), "has_loss": False}
    relay.batcher.put([step.model_copy(update=later)])
    assert "run_loss_nats" not in relay.read()


def test_taken_port_is_one_line_of_the_log(monkeypatch, caplog):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setattr(metrics, "METRICS_PORT", taken.getsockname()[1])
        metrics.serve_metrics(Relay().figures, ip_address("10.0.0.7"))

    assert [record.message for record in caplog.records] == ["no metrics are served"]

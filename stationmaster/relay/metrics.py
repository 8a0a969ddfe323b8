"""The relay's figures for Prometheus, read from what the relay has when asked: GET /metrics.

Each relay of a run answers. Where the port is taken, the relay works on without.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import ThreadingHTTPServer
from threading import Thread

from prometheus_client import CollectorRegistry, MetricsHandler
from prometheus_client.core import CounterMetricFamily as Count
from prometheus_client.core import GaugeMetricFamily as Gauge
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from pydantic import IPvAnyAddress

from stationmaster.domain.ids import RunId
from stationmaster.relay.batching import Batcher
from stationmaster.relay.bus import BusSender
from stationmaster.rendering.relay import METRICS_PORT

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class RelayFigures(Collector):
    """What an operator may alarm on."""

    run_id: RunId
    batcher: Batcher
    sender: BusSender
    leads: Callable[[], bool]
    num_pods: Callable[[], int]

    def collect(self) -> Iterator[Metric]:
        traffic, sender = self.batcher.traffic(), self.sender
        rows: list[tuple[type[Count | Gauge], str, str, float]] = [
            (Gauge, "relay_leads", "1 of the relay that sends", self.leads()),
            (Gauge, "relay_pods", "pods whose logs are followed", self.num_pods()),
            (Count, "relay_lines", "lines of logs that were read", traffic.num_lines),
            (Count, "relay_events_sent", "events on the bus", traffic.num_sent),
            (Gauge, "relay_events_waiting", "events not on the bus yet", traffic.num_waiting),
            (Gauge, "relay_behind_seconds", "the oldest one's wait", traffic.behind_s),
            (Count, "relay_batches_sent", "batches on the bus", sender.num_sent),
            (Count, "relay_put_failures", "batches to be sent again", sender.num_failures),
            (Count, "relay_batches_refused", "batches that are lost", sender.num_refused),
        ]
        if (newest := traffic.newest) is not None:
            rows.append((Gauge, "run_step", "the newest step", newest.step))
            if newest.has_loss:  # None is one that is not finite
                loss = float("nan") if newest.loss_nats is None else newest.loss_nats
                rows.append((Gauge, "run_loss_nats", "its loss", loss))
            if newest.tokens_per_s is not None:
                rows.append((Gauge, "run_tokens_per_second", "its speed", newest.tokens_per_s))
        for kind, name, text, value in rows:
            family = kind(f"stationmaster_{name}", text, labels=["run_id"])
            family.add_metric([self.run_id], value)
            yield family


def serve_metrics(figures: RelayFigures, address: IPvAnyAddress) -> None:
    """Serve them on every address of a pod; where its own is the loopback, on a free port there."""
    registry = CollectorRegistry()
    registry.register(figures)

    class Handler(MetricsHandler):
        timeout = 10

        def do_GET(self) -> None:  # noqa: N802  # the name of the base class
            # A web page may make its own name resolve to the loopback.
            host = (self.headers["Host"] or "").partition(":")[0]
            if host in ("127.0.0.1", "localhost") or not address.is_loopback:
                super().do_GET()
            else:
                self.send_error(403, "this is for programs of this machine")

    Handler.registry = registry
    host, port = (str(address), 0) if address.is_loopback else ("0.0.0.0", METRICS_PORT)
    try:
        server = ThreadingHTTPServer((host, port), Handler)
    except OSError as error:
        logger.warning("no metrics are served", extra={"port": port, "error": str(error)})
        return
    Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    logger.info("metrics are served", extra={"url": f"http://{host}:{server.server_port}/metrics"})

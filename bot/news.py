"""What there is to post: runs with their clusters, what the channel knows of them, what is new.

The notifier makes a reader for each batch and for each refresh. It reads a cluster once, however
many of its runs are asked for.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from bot.blocks.card import card_milestone
from bot.blocks.thread import ThreadEvent, in_time_order
from bot.stream import StreamBatch
from stationmaster.aws.delivery_store import Delivery
from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.ids import ClusterId, RunId
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.view import RunView
from stationmaster.services import Services

logger = logging.getLogger(__name__)

# Runs that are over are looked at too, no more than this many at each refresh.
_RECENT_RUNS: Final = 10


@dataclass(frozen=True)
class News:
    """One run: its state and its cluster's, what the channel knows, what is new."""

    view: RunView
    delivery: Delivery
    events: Sequence[ThreadEvent]

    @property
    def run(self) -> Run:
        """The run itself."""
        return self.view.run

    @property
    def is_urgent(self) -> bool:
        """Something that a person waits for is not on the card yet."""
        return self.delivery.card_milestone != card_milestone(self.view)


class NewsReader:
    """Reads runs, clusters and deliveries for one batch or one refresh."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._clusters: dict[ClusterId, Cluster | None] = {}

    def of_batch(self, batch: StreamBatch, *, also: Collection[RunId] = ()) -> list[News]:
        """The runs that a batch is about, and those of `also`, of which it brings nothing.

        A run's events are its own and those of the cluster that it leases.
        """
        events: dict[RunId, list[ThreadEvent]] = {
            run_id: [*own] for run_id, own in batch.runs.items()
        }
        for cluster_id, of_cluster in batch.clusters.items():
            cluster = self._cluster(cluster_id)
            for run_id in cluster.leases if cluster is not None else ():
                events[run_id] = in_time_order(events.get(run_id, []), of_cluster)
        for run_id in sorted(also):
            events.setdefault(run_id, [])
        return self._read_all(events.items())

    def live_and_recent(self, *, settled: Collection[RunId]) -> list[News]:
        """The runs under way, those of clusters that exist, and the newest, without `settled`."""
        recent = self._services.runs.list_recent(limit=_RECENT_RUNS)
        run_ids = dict.fromkeys(
            [
                *(run.run_id for run in self._services.runs.list_open()),
                *(
                    run_id
                    for cluster in self._services.cluster_states.list_open()
                    for run_id in cluster.leases
                ),
                *(run.run_id for run in recent if run.run_id not in settled),
            ]
        )
        return self._read_all((run_id, ()) for run_id in run_ids)

    def _read_all(self, wanted: Iterable[tuple[RunId, Sequence[ThreadEvent]]]) -> list[News]:
        found = [self._read(run_id, events) for run_id, events in wanted]
        return [one for one in found if one is not None]

    def _read(self, run_id: RunId, events: Sequence[ThreadEvent]) -> News | None:
        run = self._services.runs.find(run_id)
        if run is None:
            logger.warning("run of the stream is gone", extra={"run_id": run_id})
            return None
        cluster = self._cluster(run.cluster_id) if run.cluster_id is not None else None
        return News(RunView(run, cluster), self._services.deliveries.load(run_id), events)

    def _cluster(self, cluster_id: ClusterId) -> Cluster | None:
        if cluster_id not in self._clusters:
            self._clusters[cluster_id] = self._services.cluster_states.find(cluster_id)
        return self._clusters[cluster_id]

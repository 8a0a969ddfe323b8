"""What there is to post: runs and kept clusters, what the channel knows of them, what is new.

The notifier makes a reader for each batch and for each refresh. It reads a cluster once, however
many of its runs are asked for.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Final

from bot.blocks.thread import in_time_order
from bot.blocks.thread_lines import ThreadEvent
from bot.stream import StreamBatch
from bot.subjects import ClusterSubject, RunSubject, Subject
from stationmaster.aws.delivery_store import Delivery, Owner, of_cluster, of_run
from stationmaster.commands import view_cluster, view_run
from stationmaster.domain.aggregates import CLUSTER, RUN
from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.cluster.events import ClusterEvent, LeaseReleased
from stationmaster.domain.errors import Unreadable
from stationmaster.domain.ids import ClusterId, RunId
from stationmaster.domain.run.view import RunView
from stationmaster.services import Services

logger = logging.getLogger(f"stationmaster.{__name__}")

# Runs and clusters that are over are looked at too, no more than this many at each refresh.
_RECENT: Final = 10
# So many changes of phase in an interval are more than a card's share of the edits.
_OFTEN: Final = 3


@dataclass(frozen=True)
class News:
    """One run or cluster: its state, what the channel knows, and what is new."""

    subject: Subject
    delivery: Delivery
    events: Sequence[ThreadEvent]

    @property
    def is_urgent(self) -> bool:
        """Whether something that a person waits for is not on the card yet."""
        return self.delivery.card_milestone != self.subject.milestone

    @property
    def is_end(self) -> bool:
        """The card does not show the end yet."""
        return self.is_urgent and self.subject.has_ended

    @property
    def can_wait(self) -> bool:
        """Whether it is no end, no start, and no line that is posted at once."""
        is_pressing = any(map(self.subject.is_pressing, self.events))
        return not (self.is_end or self.delivery.card_ts is None or is_pressing)

    def comes_first(self, *, since: datetime) -> bool:
        """Say whether its edit comes first: an end, or a change of what seldom changes.

        So what changes all the time waits for its turn, and not everybody for it.
        """
        times = self.subject.phase_times
        is_calm = len(times) < _OFTEN or times[-_OFTEN] < since
        return self.is_urgent and (self.subject.has_ended or is_calm)

    def order(self, *, since: datetime) -> tuple[bool, bool, bool, bool, datetime]:
        """Ends first, then starts, then what comes first, then urgent news; of these, the card
        that was drawn longest ago."""
        return (
            not self.is_end,
            self.delivery.card_ts is not None,
            not self.comes_first(since=since),
            not self.is_urgent,
            self.delivery.card_updated_at or self.subject.requested_at,
        )


class NewsReader:
    """Reads runs, clusters and deliveries for one batch or one refresh."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._clusters: dict[ClusterId, Cluster | None] = {}
        self.unreadable: dict[str, str] = {}
        """The runs (by RUN#id) and clusters (CLUSTER#id) that were left out, and why."""

    def of_batch(self, batch: StreamBatch, *, also: Iterable[Subject] = ()) -> list[News]:
        """Read the runs and clusters that a batch is about, and those of `also`.

        A run's events are its own and those of its cluster that happened while it waited for it.
        """
        own: dict[RunId, Sequence[ThreadEvent]] = {**batch.runs}
        clusters: dict[ClusterId, Sequence[ThreadEvent]] = {**batch.clusters}
        of_clusters: dict[RunId, Sequence[ThreadEvent]] = {}
        self._read_clusters(clusters)
        for cluster_id, events in batch.clusters.items():
            cluster = self._cluster(cluster_id)
            for run_id in _concerned(cluster, events) if cluster is not None else ():
                of_clusters[run_id] = events
        for subject in also:
            match subject:
                case RunSubject(view=run_view):
                    own.setdefault(run_view.run.run_id, ())
                case ClusterSubject(view=cluster_view):
                    clusters.setdefault(cluster_view.cluster.cluster_id, ())
        run_ids = dict.fromkeys([*own, *of_clusters])
        return [
            *self._of_runs(
                (run_id, own.get(run_id, ()), of_clusters.get(run_id, ())) for run_id in run_ids
            ),
            *self._of_clusters(clusters.items()),
        ]

    def live_and_recent(self, *, settled: Collection[Owner]) -> list[News]:
        """Read what is live, and the newest of what is over, without `settled`."""
        store = self._services.cluster_states
        open_clusters = store.list_open()
        runs = dict.fromkeys(
            [
                *(run.run_id for run in self._services.runs.list_open()),
                *(
                    run_id
                    for cluster in open_clusters
                    for run_id in cluster.leases
                    if not cluster.is_kept or of_run(run_id) not in settled
                ),
                *(
                    run.run_id
                    for run in self._services.runs.list_recent(limit=_RECENT)
                    if of_run(run.run_id) not in settled
                ),
            ]
        )
        clusters = dict.fromkeys(
            cluster.cluster_id
            for cluster in (*open_clusters, *islice(store.list_newest(), _RECENT))
            if cluster.is_kept
            and (cluster.is_open or of_cluster(cluster.cluster_id) not in settled)
        )
        of_runs = self._of_runs((run_id, (), ()) for run_id in runs)
        return [*of_runs, *self._of_clusters((cluster_id, ()) for cluster_id in clusters)]

    def _of_runs(
        self, wanted: Iterable[tuple[RunId, Sequence[ThreadEvent], Sequence[ThreadEvent]]]
    ) -> list[News]:
        """Read each run with its own events and those of its cluster."""
        news = []
        wanted = [*wanted]
        runs = self._services.runs.find_each(run_id for run_id, _, _ in wanted)
        clusters = {run.cluster_id for run in runs.values() if run.cluster_id is not None}
        self._read_clusters(clusters)
        deliveries = self._services.deliveries.load_each(map(of_run, runs))
        for run_id, own, of_its_cluster in wanted:
            try:
                # What could not be read with the others says why when it is read alone.
                run = runs.get(run_id) or self._services.runs.find(run_id)
                if run is None:
                    logger.warning("run of the stream is gone", extra={"run_id": run_id})
                    continue
                owner = of_run(run_id)
                delivery = deliveries.get(owner) or self._services.deliveries.load(owner)
            except Unreadable as exc:
                self.unreadable[f"{RUN.key_prefix}#{run_id}"] = str(exc)
                continue
            cluster = self._cluster(run.cluster_id) if run.cluster_id is not None else None
            view = RunView(run, cluster, self._services.settings.dashboard_url)
            events = in_time_order(own, _of_its_wait(view, of_its_cluster))
            news.append(News(RunSubject(view), delivery, events))
        return news

    def _of_clusters(self, wanted: Iterable[tuple[ClusterId, Sequence[ThreadEvent]]]) -> list[News]:
        """Read the kept clusters; the others have no card."""
        news = []
        for cluster_id, events in wanted:
            cluster = self._cluster(cluster_id)
            if cluster is None or not cluster.is_kept:
                continue
            try:
                subject = ClusterSubject(view_cluster(self._services, cluster))
                news.append(News(subject, self._services.deliveries.load(subject.owner), events))
            except Unreadable as exc:
                self.unreadable[f"{CLUSTER.key_prefix}#{cluster_id}"] = str(exc)
        return news

    def _read_clusters(self, cluster_ids: Iterable[ClusterId]) -> None:
        unread = {*cluster_ids} - self._clusters.keys()
        self._clusters |= self._services.cluster_states.find_each(unread)

    def _cluster(self, cluster_id: ClusterId) -> Cluster | None:
        """Read the cluster; None where it is gone or unreadable: its runs are posted without it."""
        if cluster_id not in self._clusters:
            try:
                self._clusters[cluster_id] = self._services.cluster_states.find(cluster_id)
            except Unreadable as exc:
                self._clusters[cluster_id] = None
                self.unreadable[f"{CLUSTER.key_prefix}#{cluster_id}"] = str(exc)
        return self._clusters[cluster_id]


def earlier_events(
    services: Services, subject: Subject, *, since: datetime
) -> Sequence[ThreadEvent]:
    """Read what is recorded of it since then, as the batches brought it."""
    match subject:
        case RunSubject(view=view):
            own = _since(services.runs.rare_events(view.run.run_id), since)
            if view.cluster is None:
                return own
            recorded = services.cluster_states.rare_events(view.cluster.cluster_id)
            return in_time_order(own, _of_its_wait(view, _since(recorded, since)))
        case ClusterSubject(view=view_):
            return _since(services.cluster_states.rare_events(view_.cluster.cluster_id), since)


def _since(recorded: Iterable[ThreadEvent], since: datetime) -> Sequence[ThreadEvent]:
    return sorted((each for each in recorded if each.at >= since), key=lambda event: event.at)


def _of_its_wait(view: RunView, events: Sequence[ThreadEvent]) -> Sequence[ThreadEvent]:
    """Choose the events of a run's cluster that are posted in the run's thread."""
    if view.cluster is None or not view.cluster.is_kept:
        return events
    # The rest is posted in the cluster's own thread.
    return [event for event in events if view.waited_for_cluster(event.at)]


def reread(services: Services, subject: Subject) -> Subject:
    """Read it again."""
    match subject:
        case RunSubject(view=view):
            return RunSubject(view_run(services, services.runs.load(view.run.run_id)))
        case ClusterSubject(view=view_):
            cluster = services.cluster_states.load(view_.cluster.cluster_id)
            return ClusterSubject(view_cluster(services, cluster))


def _concerned(cluster: Cluster, events: Sequence[ClusterEvent]) -> list[RunId]:
    """List the runs whose cards or threads change with a cluster's events.

    On a kept cluster, these are the runs that use it or wait for it, and those that leave it.
    """
    if not cluster.is_kept:
        return [*cluster.leases]
    left = [event.run_id for event in events if isinstance(event, LeaseReleased)]
    return [*dict.fromkeys([*cluster.waiting_runs, *left])]

"""Kubernetes objects turned into events: the job's conditions, its pods, warnings and nodes.

Pure but for what each observer remembers of the objects it saw. An event's id comes from what
Kubernetes itself uses to identify the fact, so that a relay that starts again and sees the same
objects reports the same events. Objects are the API's JSON.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from stationmaster.domain.cluster.spec import CapacityType
from stationmaster.domain.ids import RunId
from stationmaster.domain.names import LABEL_CAPACITY_TYPE
from stationmaster.domain.run.events import (
    ClusterWarning,
    JobConditionChanged,
    JobDisappeared,
    NodeLost,
    NodeRecovered,
    NodeTakenBack,
    PodChanged,
    RelayEvent,
    run_event_id,
)
from stationmaster.relay.pods import (
    JsonObject,
    PodView,
    missed_exit,
    name_of,
    parse_time,
    pod_view,
    uid_of,
)
from stationmaster.rendering.job_backends import JobBackend

Clock = Callable[[], datetime]


class JobObserver:
    """Reports each condition of the job when it turns true, and its deletion."""

    def __init__(self, run_id: RunId, *, job: str, backend: JobBackend, now: Clock) -> None:
        self._run_id = run_id
        self._job = job
        self._backend = backend
        self._now = now
        self._reported: set[str] = set()
        self._uid = ""
        self.exists: bool | None = None  # None: not asked for yet
        self.ended = False

    def observe(self, job: JsonObject) -> list[RelayEvent]:
        """Return the events of conditions that were not reported yet, oldest first."""
        self.exists = True
        self._uid = uid_of(job)
        events: list[RelayEvent] = []
        conditions = self._backend.conditions(job)
        for condition in conditions:
            name, since = condition.name, condition.since
            event_id = run_event_id(self._run_id, "condition", uid_of(job), name, since)
            if event_id in self._reported:
                continue
            self._reported.add(event_id)
            events.append(
                JobConditionChanged(
                    event_id=event_id,
                    run_id=self._run_id,
                    at=parse_time(since) or self._now(),
                    condition=name,
                    reason=condition.reason,
                    message=condition.message,
                )
            )
        self.ended = any(condition.ends for condition in conditions)
        return sorted(events, key=lambda event: event.at)

    def absent(self) -> None:
        """Note that the job is missing: not submitted yet, or nothing knows its type now."""
        self.exists = False

    def deleted(self) -> list[RelayEvent]:
        """Return the event of a job that was there, had not ended and is gone."""
        was_there, self.exists = self._uid, False
        self._uid = ""
        if not was_there or self.ended:
            return []
        return [
            JobDisappeared(
                event_id=run_event_id(self._run_id, "job disappeared", was_there),
                run_id=self._run_id,
                at=self._now(),
                job=self._job,
                uid=was_there,
            )
        ]


class PodObserver:
    """Reports what changes about the pods of the job."""

    def __init__(self, run_id: RunId, *, backend: JobBackend, now: Clock) -> None:
        self._run_id = run_id
        self._backend = backend
        self._now = now
        self._last: dict[str, PodView] = {}  # by uid
        self._names: dict[str, str] = {}
        # By uid: the newest container run whose end was reported.
        self._exits_reported: dict[str, int] = {}
        self.nodes: set[str] = set()  # every node that had a pod of the job

    @property
    def known(self) -> dict[str, str]:
        """The places in the job of the present pods, by uid."""
        return dict(self._names)

    def observe(self, pod: JsonObject) -> list[RelayEvent]:
        """Return the events of what changed since this pod was last seen."""
        uid = uid_of(pod)
        self._names[uid] = self._backend.replica_of(pod)
        view, at = pod_view(pod)
        if view.node:
            self.nodes.add(view.node)
        events: list[RelayEvent] = []
        # A container that ended and runs again: the end was not seen, and the status still has it.
        missed = missed_exit(pod, view)
        if missed is not None and self._exits_reported.get(uid, -1) < missed[0].restarts:
            self._exits_reported[uid] = missed[0].restarts
            events.append(self._event(uid, *missed))
        if self._last.get(uid) != view:
            self._last[uid] = view
            events.append(self._event(uid, view, at))
        if view.exit_code is not None:
            self._exits_reported[uid] = max(view.restarts, self._exits_reported.get(uid, -1))
        return events

    def deleted(self, uid: str) -> list[RelayEvent]:
        """Return the event of a pod that is gone."""
        view = self._last.pop(uid, None)
        if view is None:
            return []
        gone = PodView(phase="Deleted", node=view.node, restarts=view.restarts)
        event = self._event(uid, gone, self._now())
        self._exits_reported.pop(uid, None)
        del self._names[uid]
        return [event]

    def _event(self, uid: str, view: PodView, at: datetime | None) -> PodChanged:
        reported = [view.phase, view.node, view.reason, view.message, view.exit_code, view.restarts]
        return PodChanged.model_validate(
            {
                "event_id": run_event_id(self._run_id, "pod", uid, *reported),
                "run_id": self._run_id,
                "at": at or self._now(),
                "pod": self._names[uid],
                **vars(view),
            }
        )


class WarningObserver:
    """Reports Warning events about the job and its pods.

    A repeated event is reported when its count reaches a power of two: a pod that cannot be
    scheduled for an hour would otherwise fill the thread.
    """

    def __init__(self, run_id: RunId, *, job: str, backend: JobBackend, now: Clock) -> None:
        self._run_id = run_id
        self._job = job
        self._backend = backend
        self._now = now
        self._reported: dict[str, int] = {}

    def observe(self, event: JsonObject) -> list[RelayEvent]:
        """Return the event's news, if it has any."""
        involved = event.get("involvedObject") or {}
        kind, name = str(involved.get("kind", "")), str(involved.get("name", ""))
        is_ours = self._backend.is_of_job(kind, name, job=self._job)
        if event.get("type") != "Warning" or not is_ours:
            return []
        series = event.get("series") or {}
        count = max(1, int(event.get("count") or series.get("count") or 1))
        reported_count = 1 << (count.bit_length() - 1)
        uid = uid_of(event)
        if self._reported.get(uid, 0) >= reported_count:
            return []
        self._reported[uid] = reported_count
        moment = event.get("lastTimestamp") or series.get("lastObservedTime")
        return [
            ClusterWarning(
                event_id=run_event_id(self._run_id, "warning", uid, reported_count),
                run_id=self._run_id,
                at=parse_time(moment or event.get("eventTime")) or self._now(),
                object_name=str(involved.get("name", "")),
                reason=str(event.get("reason", "")),
                message=str(event.get("message", "")),
                count=reported_count,
            )
        ]

    def forget(self, uid: str) -> None:
        """Forget an event that expired."""
        self._reported.pop(uid, None)


class NodeObserver:
    """Reports when a node under the job goes away, stops being ready, or is ready again.

    Of a spot node it also reports that it is drained. EKS does that on EC2's two-minute notice and
    on a rebalance recommendation once a replacement is there; nothing else in the API says so.
    Source: EKS user guide, "Managed node group capacity types".
    """

    def __init__(self, run_id: RunId, *, now: Clock) -> None:
        self._run_id = run_id
        self._now = now
        self._uids: dict[str, str] = {}  # of the nodes that are there, by name
        self._lost: set[str] = set()  # uids, until they are ready again
        self._taken_back: set[str] = set()  # uids

    @property
    def known(self) -> set[str]:
        """The names of the present nodes."""
        return set(self._uids)

    def observe(self, node: JsonObject, *, matters: bool) -> list[RelayEvent]:
        """Return the event of a node that is not ready; `matters` when the job uses it."""
        name, uid = name_of(node), uid_of(node)
        self._uids[name] = uid
        return [
            *self._observe_notice(name, uid, node, matters=matters),
            *self._observe_readiness(name, uid, node, matters=matters),
        ]

    def _observe_notice(
        self, name: str, uid: str, node: JsonObject, *, matters: bool
    ) -> list[RelayEvent]:
        labels = (node.get("metadata") or {}).get("labels") or {}
        is_drained = bool((node.get("spec") or {}).get("unschedulable"))
        is_spot = labels.get(LABEL_CAPACITY_TYPE) == CapacityType.SPOT
        if not (is_spot and is_drained and matters) or uid in self._taken_back:
            return []
        self._taken_back.add(uid)
        return [
            NodeTakenBack(
                event_id=run_event_id(self._run_id, "node taken back", uid),
                run_id=self._run_id,
                at=self._now(),
                node=name,
            )
        ]

    def _observe_readiness(
        self, name: str, uid: str, node: JsonObject, *, matters: bool
    ) -> list[RelayEvent]:
        for condition in (node.get("status") or {}).get("conditions") or []:
            if condition.get("type") != "Ready":
                continue
            since = condition.get("lastTransitionTime")
            if condition.get("status") == "True":
                return self._report_recovered(name, uid, str(since), parse_time(since))
            reason = str(condition.get("reason") or "NotReady")
            return self._report(name, uid, str(since), reason, parse_time(since), matters=matters)
        return []

    def deleted(self, name: str, *, matters: bool) -> list[RelayEvent]:
        """Return the event of a node that is gone, unless it was reported lost already."""
        uid = self._uids.pop(name, None)
        if uid is None:
            return []
        events = self._report(name, uid, "deleted", "the node was deleted", None, matters=matters)
        self._lost.discard(uid)
        return events

    def _report_recovered(
        self, name: str, uid: str, since: str, at: datetime | None
    ) -> list[RelayEvent]:
        if uid not in self._lost:
            return []
        self._lost.discard(uid)
        return [
            NodeRecovered(
                event_id=run_event_id(self._run_id, "node recovered", uid, since),
                run_id=self._run_id,
                at=at or self._now(),
                node=name,
            )
        ]

    def _report(
        self, name: str, uid: str, what: str, reason: str, at: datetime | None, *, matters: bool
    ) -> list[RelayEvent]:
        if not matters or uid in self._lost:
            return []
        self._lost.add(uid)
        return [
            NodeLost(
                event_id=run_event_id(self._run_id, "node lost", uid, what),
                run_id=self._run_id,
                at=at or self._now(),
                node=name,
                reason=reason,
            )
        ]

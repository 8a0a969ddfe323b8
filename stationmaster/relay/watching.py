"""Lists and watches what the run has in the cluster, and starts a follower for each pod's log.

Four threads sleep in a read: the job, its pods, Warning events of the namespace, the nodes. Each
survives an API server that goes away, a resource version that expired, and a type that is not
installed yet.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from time import monotonic
from typing import Final

from stationmaster.relay.batching import Batcher
from stationmaster.relay.cluster import (
    ClusterApi,
    ClusterUnreachable,
    ObjectMissing,
    RequestRefused,
    WatchExpired,
)
from stationmaster.relay.config import RelayConfig
from stationmaster.relay.following import LogFollower
from stationmaster.relay.kept_logs import KeptLogs
from stationmaster.relay.observations import JobObserver, NodeObserver, PodObserver, WarningObserver
from stationmaster.relay.pods import (
    JsonObject,
    container_state,
    is_finished,
    name_of,
    pod_facts,
    uid_of,
)
from stationmaster.relay.together import Together
from stationmaster.rendering.job_backends import backend_of

logger = logging.getLogger(__name__)

FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 10.0
LONGEST_PAUSE_FOR_MISSING_S: Final = 2.0  # the operator's types come while we wait
WATCH_TIMEOUT_S: Final = (240, 360)  # so that the watches of many relays do not end together
# A watch that the server ends sooner than this is asked for again only after a pause.
SHORT_WATCH_S: Final = 1.0
# How long the end of the job may wait for the last log lines, so that it is reported after them.
LAST_LINES_WITHIN_S: Final = 1.0
PODS_CATCH_UP_S: Final = 0.1
# A relay comes with its job, which may fail before the pods have been listed for the first time.
PODS_LISTED_WITHIN_S: Final = 15.0


@dataclass(frozen=True)
class Watch:
    """A list-and-watch: where, and what to do with what comes."""

    path: str
    query: Mapping[str, str]
    listed: Callable[[Sequence[JsonObject]], None]
    changed: Callable[[str, JsonObject], None]
    unknown: Callable[[], None] = lambda: None  # the API server does not know the type (yet)


class Sight:
    """The watches that are cut, and since when. Threads may share it."""

    def __init__(self) -> None:
        self._cut_at: dict[str, float] = {}

    def lost(self, path: str) -> None:
        """Note that changes of these objects are not seen from now on."""
        self._cut_at.setdefault(path, monotonic())

    def regained(self, path: str) -> None:
        """Note that what changed since `lost` has been seen."""
        self._cut_at.pop(path, None)

    def blind_s(self) -> float:
        """Return for how long the first of them has been cut; 0 when none is. Takes no lock."""
        cut_at = min(tuple(self._cut_at.values()), default=None)
        return 0.0 if cut_at is None else monotonic() - cut_at


def keep_watching(api: ClusterApi, watch: Watch, stop: threading.Event, sight: Sight) -> None:
    """List, then watch on from there, for as long as the relay runs."""
    sight.lost(watch.path)
    pause_s = FIRST_PAUSE_S
    version: str | None = None  # None: list first
    while not stop.is_set():
        began = monotonic()
        longest_s = LONGEST_PAUSE_S
        try:
            if version is None:
                items, version = api.list(watch.path, watch.query)
                watch.listed(items)
                sight.regained(watch.path)
            version = _watch_once(api, watch, version, stop, sight)
        except ObjectMissing:
            longest_s, version = LONGEST_PAUSE_FOR_MISSING_S, None
            watch.unknown()
            sight.regained(watch.path)
        except (WatchExpired, RequestRefused) as error:
            logger.info("listing again", extra={"path": watch.path, "error": str(error)})
            version = None
            sight.lost(watch.path)
        except ClusterUnreachable as error:
            sight.lost(watch.path)
            logger.warning("cluster away", extra={"path": watch.path, "error": str(error)})
        if monotonic() - began >= SHORT_WATCH_S:
            pause_s = FIRST_PAUSE_S
        else:
            stop.wait(pause_s * random.uniform(1.0, 1.3))
            pause_s = min(2 * pause_s, longest_s)


def _watch_once(
    api: ClusterApi, watch: Watch, version: str, stop: threading.Event, sight: Sight
) -> str:
    timeout_s = random.randint(*WATCH_TIMEOUT_S)
    seen = version
    try:
        changes = api.watch(watch.path, watch.query, resource_version=version, timeout_s=timeout_s)
        for kind, thing in changes:
            if stop.is_set():
                break
            if kind != "BOOKMARK":
                watch.changed(kind, thing)
            sight.regained(watch.path)
            seen = str((thing.get("metadata") or {}).get("resourceVersion") or seen)
    except ClusterUnreachable as error:
        if seen == version:
            raise
        logger.info("watch was cut", extra={"path": watch.path, "error": str(error)})
        sight.lost(watch.path)
        return seen
    sight.regained(watch.path)
    return seen


class RunWatcher:
    """Everything of one run that is watched in its cluster."""

    def __init__(
        self,
        *,
        api: ClusterApi,
        config: RelayConfig,
        batcher: Batcher,
        kept: KeptLogs,
        stop: threading.Event,
    ) -> None:
        self._api = api
        self._config = config
        self._batcher = batcher
        self._kept = kept
        self._stop = stop
        self._lock = threading.RLock()  # the four threads share the observers
        run_id, job = config.run_id, config.job
        self._backend = backend = backend_of(config.job_kind)
        self._job = JobObserver(run_id, job=job, backend=backend, now=_now)
        self._pods = PodObserver(run_id, backend=backend, now=_now)
        self._warnings = WarningObserver(run_id, job=job, backend=backend, now=_now)
        self._nodes = NodeObserver(config.run_id, now=_now)
        self._together = Together()
        self._followers: dict[str, LogFollower] = {}  # by the pod's uid
        self._were_listed = threading.Event()  # the pods, at least once
        self._sight = Sight()

    def job_may_exist(self) -> bool:
        """Say whether the job is there, or was not looked for yet. Takes no lock."""
        return self._job.exists is not False

    def blind_s(self) -> float:
        """Return for how long a watch has been cut; changes may be missing. Takes no lock."""
        return self._sight.blind_s()

    def num_followed(self) -> int:
        """Return how many pods' logs are followed. Takes no lock."""
        return len(self._followers)

    def start(self) -> None:
        """Start the watches; each runs until the process ends."""
        namespace, job = self._config.namespace, self._config.job
        core = f"/api/v1/namespaces/{namespace}"
        _, plural = self._backend.TYPES[0]
        watches = [
            Watch(
                f"/apis/{self._backend.API_VERSION}/namespaces/{namespace}/{plural}",
                {"fieldSelector": f"metadata.name={job}"},
                self._jobs_listed,
                self._job_changed,
                # An API server that starts does not know custom types for a moment.
                unknown=self._job.absent,
            ),
            Watch(
                f"{core}/pods",
                {"labelSelector": f"{self._backend.LABEL_JOB_NAME}={job}"},
                self._pods_listed,
                self._pod_changed,
            ),
            Watch(
                f"{core}/events",
                {"fieldSelector": "type=Warning"},
                self._warnings_listed,
                self._warning_changed,
            ),
            Watch("/api/v1/nodes", {}, self._nodes_listed, self._node_changed),
        ]
        for watch in watches:
            threading.Thread(
                target=keep_watching,
                args=(self._api, watch, self._stop, self._sight),
                name=f"watch {watch.path.rpartition('/')[2]}",
                daemon=True,
            ).start()

    def _jobs_listed(self, jobs: Sequence[JsonObject]) -> None:
        if not any(name_of(job) == self._config.job for job in jobs):
            with self._lock:
                self._batcher.put(self._job.deleted(), urgent=True)
        for job in jobs:
            self._job_changed("ADDED", job)

    def _job_changed(self, kind: str, job: JsonObject) -> None:
        has_ended = any(condition.ends for condition in self._backend.conditions(job))
        if has_ended and not self._job.ended:
            self._let_logs_finish()
        with self._lock:
            if name_of(job) != self._config.job:
                return
            # The last state of a deleted job may be news: it ended, and was deleted at once.
            self._batcher.put(self._job.observe(job), urgent=self._job.ended)
            if kind == "DELETED":
                self._batcher.put(self._job.deleted(), urgent=True)

    def _let_logs_finish(self) -> None:
        """Wait for the last lines of the pods: the end of the job is reported after them."""
        # The pods' ends are on another watch, which may be a moment behind this one.
        self._were_listed.wait(PODS_LISTED_WITHIN_S)
        self._stop.wait(PODS_CATCH_UP_S)
        with self._lock:
            followers = list(self._followers.values())
        deadline = monotonic() + LAST_LINES_WITHIN_S
        for follower in followers:
            if not follower.wait_until_read(timeout_s=max(0.0, deadline - monotonic())):
                logger.info("job ended before its logs were read")
                return

    def _pods_listed(self, pods: Sequence[JsonObject]) -> None:
        with self._lock:
            here = {uid_of(pod) for pod in pods}
            for uid in set(self._pods.known) - here:
                self._pod_deleted(uid)
            for pod in pods:
                self._pod_changed("ADDED", pod)
        self._were_listed.set()

    def _pod_changed(self, kind: str, pod: JsonObject) -> None:
        with self._lock:
            uid = uid_of(pod)
            if kind == "DELETED":
                self._pod_deleted(uid)
                return
            self._batcher.put(self._pods.observe(pod), urgent=is_finished(pod))
            follower = self._followers.get(uid)
            if follower is None:
                follower = self._followers[uid] = self._new_follower(pod)
                follower.start()
            follower.update(container_state(pod))

    def _pod_deleted(self, uid: str) -> None:
        name = self._pods.known.get(uid)
        self._batcher.put(self._pods.deleted(uid))
        follower = self._followers.pop(uid, None)
        if follower is not None:
            follower.pod_gone()
        if name is not None:
            self._batcher.forget_pod(name)

    def _new_follower(self, pod: JsonObject) -> LogFollower:
        path = f"/api/v1/namespaces/{self._config.namespace}/pods/{name_of(pod)}"
        return LogFollower(
            api=self._api,
            batcher=self._batcher,
            kept=self._kept,
            pod=pod_facts(self._config.run_id, self._config.job, self._backend, pod),
            path=path,
            together=self._together,
            stop=self._stop,
        )

    def _warnings_listed(self, warnings: Sequence[JsonObject]) -> None:
        for warning in warnings:
            self._warning_changed("ADDED", warning)

    def _warning_changed(self, kind: str, warning: JsonObject) -> None:
        with self._lock:
            if kind == "DELETED":
                self._warnings.forget(uid_of(warning))
                return
            self._batcher.put(self._warnings.observe(warning))

    def _nodes_listed(self, nodes: Sequence[JsonObject]) -> None:
        with self._lock:
            for name in self._nodes.known - {name_of(node) for node in nodes}:
                self._batcher.put(self._nodes.deleted(name, matters=self._node_matters(name)))
            for node in nodes:
                self._node_changed("ADDED", node)

    def _node_changed(self, kind: str, node: JsonObject) -> None:
        with self._lock:
            name = name_of(node)
            matters = self._node_matters(name)
            if kind == "DELETED":
                self._batcher.put(self._nodes.deleted(name, matters=matters))
            else:
                self._batcher.put(self._nodes.observe(node, matters=matters))

    def _node_matters(self, name: str) -> bool:
        """Say whether the job is unfinished and has or had a pod on the node."""
        return name in self._pods.nodes and self._job.exists is True and not self._job.ended


def _now() -> datetime:
    return datetime.now(UTC)

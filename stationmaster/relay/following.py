"""Follows the log of one pod's training container, over cut connections and container restarts.

Each pod has a thread, which sleeps in a read or until the pod's status changes. The container's
last run but one is read as well, so that what it printed between two reads is not missed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Final

from stationmaster.domain.results import log_name
from stationmaster.domain.run.events import RelayEvent
from stationmaster.relay.batching import Batcher
from stationmaster.relay.cluster import (
    ClusterApi,
    ClusterUnreachable,
    ObjectMissing,
    RequestRefused,
)
from stationmaster.relay.kept_logs import KeptLogs
from stationmaster.relay.lines import LogLine, PodFacts
from stationmaster.relay.logs import LogPipeline
from stationmaster.relay.parsing import LineInterpreter
from stationmaster.relay.pending import LogPlace
from stationmaster.relay.pods import ContainerState, JsonObject, container_state, uid_of
from stationmaster.relay.together import Together

logger = logging.getLogger(__name__)

FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 5.0
# A log that is not there may come at once or never: an evicted pod's is gone, its pod stays.
LONGEST_PAUSE_FOR_MISSING_S: Final = 30.0
# Half a minute and more: then this run's log counts for more than the one before.
PREVIOUS_LOG_TRIES: Final = 12


class PodGone(Exception):
    """The pod was deleted, and its log with it; never raised out of this module."""


class LogFollower:
    """Turns everything that a pod's training container prints into events, each once."""

    def __init__(
        self,
        *,
        api: ClusterApi,
        batcher: Batcher,
        kept: KeptLogs,
        pod: PodFacts,
        path: str,
        together: Together,
        stop: threading.Event,
    ) -> None:
        self._api = api
        self._batcher = batcher
        self._kept = kept
        self._pod = pod
        self._path = path
        self._stop = stop
        self._pipeline = LogPipeline(LineInterpreter(pod, together), keep_line=self._keep_line)
        self._changed = threading.Condition()
        self._state = ContainerState()
        self._gone = False
        self._previous_tries = 0
        self._read_through = -1  # newest container run that was read to its end
        self._thread = threading.Thread(target=self._run, name=f"log {pod.name}", daemon=True)

    def start(self) -> None:
        """Begin to follow; an `update` says that there is something to read."""
        self._thread.start()

    def update(self, state: ContainerState) -> None:
        """Take in a change of the pod's status."""
        with self._changed:
            self._state = state
            self._changed.notify_all()

    def pod_gone(self) -> None:
        """Note that the pod was deleted: what the stream still brings is the last of it."""
        with self._changed:
            self._gone = True
            self._changed.notify_all()

    def wait_until_read(self, *, timeout_s: float) -> bool:
        """Wait until the log of a container that has ended is handed over in full."""
        with self._changed:
            return self._changed.wait_for(
                lambda: (
                    self._gone
                    or not self._state.terminated
                    or self._read_through >= self._state.restarts
                ),
                timeout_s,
            )

    def _keep_line(self, line: LogLine) -> None:
        self._batcher.keep_line(self._pod.name, line.text, line.at)
        self._kept.keep(self._own_name, line)

    @property
    def _own_name(self) -> str:
        """What a result calls its log: by the pod's own name, not its place in the job."""
        return log_name(self._path.rpartition("/")[2], self._pod.attempt)

    def _end_log(self) -> None:
        self._batcher.end_of_log(self._pod.name)
        self._kept.pod_ended(self._own_name)

    def _run(self) -> None:
        pause_s = FIRST_PAUSE_S
        while self._wait_for_unread():
            before = self._pipeline.since
            done, longest_s = False, LONGEST_PAUSE_S
            try:
                done = self._read()
            except PodGone:
                self._put(self._pipeline.finish())
                ended = self._state.terminated
                self._put(self._pipeline.container_ended(self._state.exit_code if ended else None))
                break
            except ObjectMissing as error:
                # A kubelet answers so until it has synced its list of pods.
                longest_s = LONGEST_PAUSE_FOR_MISSING_S
                self._log("pod's log is not there yet", error)
            except (ClusterUnreachable, RequestRefused) as error:
                self._log("log stream ended", error)
            progressed = done or self._pipeline.since != before
            pause_s = FIRST_PAUSE_S if progressed else min(2 * pause_s, longest_s)
            if not done:
                with self._changed:
                    self._changed.wait(pause_s)
        self._end_log()

    def _wait_for_unread(self) -> bool:
        """Sleep until the container has output that was not read; False when there is no more."""
        with self._changed:
            while not self._gone and not self._stop.is_set():
                if self._state.has_log and self._read_through < self._state.restarts:
                    return True
                self._changed.wait()
            return False

    def _read(self) -> bool:
        """Read what is there and follow it; True when a container run was read to its end."""
        state = self._look()
        if state.restarts > 0 and self._read_through < state.restarts - 1:
            self._read_previous(state.restarts - 1, exit_code=state.previous_exit_code)
        if not (state.running or state.terminated):
            # Between two runs: the status will change, and that wakes us.
            return False
        since = self._pipeline.since
        with self._api.log(
            self._path, container=self._pod.container, since=since, follow=True
        ) as chunks:
            # Which run is this the log of? That of the status, if it is the same before and after.
            if self._look().restarts != state.restarts:
                return False
            self._pipeline.begin_stream(container_run=state.restarts)
            if not self._take_in(chunks):
                return False
        state_after = self._look()
        if not (state_after.restarts == state.restarts and state_after.terminated):
            return False
        # A stream may end early without an error: once more, whole, now that nothing is added.
        self._read_ended(state.restarts, previous=False, exit_code=state_after.exit_code)
        return True

    def _read_previous(self, container_run: int, *, exit_code: int | None) -> None:
        try:
            self._read_ended(container_run, previous=True, exit_code=exit_code)
        except RequestRefused as error:
            # Kubernetes keeps one earlier log, and not always; what is gone cannot be read.
            self._give_up_previous(container_run, error)
        except (ClusterUnreachable, ObjectMissing) as error:
            self._previous_tries += 1
            if self._previous_tries < PREVIOUS_LOG_TRIES:
                raise
            self._give_up_previous(container_run, error)

    def _give_up_previous(self, container_run: int, error: Exception) -> None:
        self._log("earlier log is not there", error)
        self._set_read_through(container_run)

    def _log(self, message: str, error: Exception) -> None:
        logger.info(message, extra={"pod": self._pod.name, "error": str(error)})

    def _set_read_through(self, container_run: int) -> None:
        self._previous_tries = 0
        with self._changed:
            self._read_through = container_run
            self._changed.notify_all()

    def _read_ended(self, container_run: int, *, previous: bool, exit_code: int | None) -> None:
        since = self._pipeline.since
        with self._api.log(
            self._path, container=self._pod.container, since=since, previous=previous
        ) as chunks:
            self._pipeline.begin_stream(container_run=container_run)
            if not self._take_in(chunks):
                return
        self._put(self._pipeline.finish())
        self._put(self._pipeline.container_ended(exit_code))
        self._set_read_through(container_run)
        self._end_log()

    def _take_in(self, chunks: Iterator[bytes]) -> bool:
        return all(self._put(self._pipeline.feed(chunk)) for chunk in chunks)

    def _put(self, events: list[RelayEvent]) -> bool:
        if not events:
            return not self._stop.is_set()
        return self._batcher.put(events, place=LogPlace(self._pod.uid, self._pipeline.newest))

    def _look(self) -> ContainerState:
        try:
            pod: JsonObject = self._api.get(self._path)
        except ObjectMissing as exc:
            raise PodGone(f"pod {self._pod.name} was deleted") from exc
        if uid_of(pod) != self._pod.uid:
            raise PodGone(f"pod {self._pod.name} was replaced by another of its name")
        return container_state(pod)

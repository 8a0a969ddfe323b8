"""Watches and followed logs over an API server that goes away, forgets, or cuts streams.

The API here is a real object that plays a script: what a server that misbehaves at a chosen moment
does cannot be had from a healthy one.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from functools import partial
from time import monotonic

import pytest
import watched
from containers import facts
from watched import Reported, terminated
from watched import log_line as line

from stationmaster.relay.cluster import (
    ClusterUnreachable,
    ObjectMissing,
    RequestRefused,
    WatchExpired,
)
from stationmaster.relay.following import PREVIOUS_LOG_TRIES, LogFollower
from stationmaster.relay.pods import container_state
from stationmaster.relay.together import Together
from stationmaster.relay.watching import Sight, Watch, keep_watching


class ScriptedWatches:
    """Answers lists and watches as its script says, then stops the watcher."""

    def __init__(self, *, lists, watches):
        self.lists = list(lists)
        self.watches = list(watches)
        self.watched_from = []
        self.stop = threading.Event()

    def list(self, path, query):
        answer = self.lists.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def watch(self, path, query, *, resource_version, timeout_s):
        self.watched_from.append(resource_version)
        for step in self.watches.pop(0):
            if isinstance(step, Exception):
                raise step
            yield step
        if not self.watches:
            self.stop.set()


def thing(name, version):
    return {"metadata": {"name": name, "resourceVersion": version}}


def follow_script(api):
    seen = []
    watch = Watch(
        "/things",
        {},
        listed=lambda items: seen.append([item["metadata"]["name"] for item in items]),
        changed=lambda kind, item: seen.append((kind, item["metadata"]["name"])),
        unknown=lambda: seen.append("unknown type"),
    )
    keep_watching(api, watch, api.stop, Sight())
    return seen


def test_keep_watching_cut_watch_goes_on_from_the_last_version():
    api = ScriptedWatches(
        lists=[([thing("a", "1")], "5")],
        watches=[
            [("MODIFIED", thing("a", "6")), ClusterUnreachable("cut")],
            [ClusterUnreachable("refused")],
            [("BOOKMARK", thing("", "9"))],
            [("DELETED", thing("a", "10"))],
        ],
    )

    seen = follow_script(api)

    assert seen == [["a"], ("MODIFIED", "a"), ("DELETED", "a")]
    assert api.watched_from == ["5", "6", "6", "9"]


def test_keep_watching_expired_version_lists_again():
    api = ScriptedWatches(
        lists=[([thing("a", "1")], "5"), ([thing("b", "50")], "50")],
        watches=[[WatchExpired("too old")], [("ADDED", thing("c", "51"))]],
    )

    seen = follow_script(api)

    assert seen == [["a"], ["b"], ("ADDED", "c")]
    assert api.watched_from == ["5", "50"]


def test_keep_watching_list_that_fails_is_asked_for_again():
    api = ScriptedWatches(
        lists=[
            ObjectMissing("no such type"),
            ClusterUnreachable("refused"),
            WatchExpired("the next page is too old"),
            ([], "5"),
        ],
        watches=[[("ADDED", thing("a", "6"))]],
    )

    seen = follow_script(api)

    assert seen == ["unknown type", [], ("ADDED", "a")]


ENDED = terminated(0)
pod = partial(watched.pod, uid="uid-0")
ENDED_POD = pod(state=ENDED)


class ScriptedLogs:
    """A pod whose status and log streams follow a script; a stream is a list of chunks."""

    def __init__(self, *, statuses, streams):
        self.statuses = list(statuses)
        self.streams = list(streams)
        self.asked = []

    def get(self, path):
        status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
        if isinstance(status, Exception):
            raise status
        return status

    @contextmanager
    def log(self, path, *, container, since, follow=False, previous=False):
        self.asked.append("previous" if previous else "follow" if follow else "read")
        stream = self.streams.pop(0)
        if isinstance(stream, Exception):
            raise stream
        yield self._chunks(stream)

    def _chunks(self, stream):
        for chunk in stream:
            if isinstance(chunk, Exception):
                raise chunk
            yield chunk


def new_follower(api, reported, stop=None):
    return LogFollower(
        api=api,
        batcher=reported,
        kept=reported,
        pod=facts(attempt=3),
        path="/api/v1/namespaces/n/pods/run-1-worker-0",
        together=Together(),
        stop=stop or threading.Event(),
    )


def join_followers():
    for thread in threading.enumerate():
        if thread.name == "log run-1-worker-0":
            thread.join(60)


@pytest.fixture
def follow():
    stop = threading.Event()
    started = []

    def start(api, first_seen):
        reported = Reported()
        follower = new_follower(api, reported, stop)
        start.update = follower.update
        follower.start()
        follower.update(container_state(first_seen))
        started.append(follower)
        return reported

    yield start
    stop.set()
    for each in started:
        each.pod_gone()


AGAIN = pod(restarts=1, last=ENDED)
OVER = pod(restarts=1, state=ENDED)
CUT, MISSING = ClusterUnreachable("cut"), ObjectMissing("pods/log p")
NO_EARLIER = RequestRefused("previous terminated container not found")
FOLLOWED = {
    # The server knows nothing of sinceTime.
    "stream that is cut": (
        [pod()] * 4 + [ENDED_POD],
        [[line(1), line(2), line(3)[:30], CUT], [line(1), line(2), line(3)], [line(4)]],
        ["follow", "follow", "read"],
    ),
    "stream that ended early": (
        [pod(), pod(), ENDED_POD],
        [[line(1)], [line(1), line(2), line(3).rstrip(b"\n")]],
        ["follow", "read"],
    ),
    "container that restarted before it was seen": (
        [AGAIN, AGAIN, OVER],
        [[line(1), line(2)], [line(3)], [line(3), line(4)]],
        ["previous", "follow", "read"],
    ),
    "container that restarted while its log was opened": (
        [pod(), AGAIN, AGAIN, AGAIN, OVER],
        [[line(3)], [line(1), line(2)], [line(3)], [line(3), line(4)]],
        ["follow", "previous", "follow", "read"],
    ),
    "earlier log that is gone": (
        [AGAIN, AGAIN, OVER],
        [NO_EARLIER, [line(1)], [line(1), line(2)]],
        ["previous", "follow", "read"],
    ),
    "earlier log that is not there yet": (
        [AGAIN, AGAIN, AGAIN, OVER],
        [MISSING, [line(1)], [line(2)], [line(2), line(3)]],
        ["previous", "previous", "follow", "read"],
    ),
    "pod that is deleted": (
        [pod(), pod(), ObjectMissing("gone")],
        [[line(1), line(2).rstrip(b"\n")]],
        ["follow"],
    ),
    "pod that is deleted while its log is missing": (
        [pod(), ObjectMissing('pods "p" not found')],
        [MISSING, [line(9)]],
        ["follow"],
    ),
    "pod that is replaced by another of its name": (
        [pod(), pod(), pod(uid="uid-1")],
        [[line(1)], [line(9)]],
        ["follow"],
    ),
}
STEPS = [4, 3, 4, 4, 2, 3, 2, 0, 1]


@pytest.mark.parametrize(
    ("statuses", "streams", "asked", "steps"),
    [(*script, steps) for script, steps in zip(FOLLOWED.values(), STEPS, strict=True)],
    ids=FOLLOWED,
)
def test_follower_reports_every_line_once_over(follow, statuses, streams, asked, steps):
    api = ScriptedLogs(statuses=statuses, streams=streams)

    reported = follow(api, statuses[0])

    reported.wait_for_steps(*range(1, steps + 1))
    if statuses[-1] not in (ENDED_POD, OVER):
        join_followers()  # which end by themselves
    assert api.asked == asked


def test_follower_wait_until_read_returns_after_the_last_line():
    class SlowLog(ScriptedLogs):
        def _chunks(self, stream):
            reading.wait(600)
            yield from super()._chunks(stream)

    reading = threading.Event()
    api = SlowLog(statuses=[ENDED_POD], streams=[[line(1)], [line(1)]])
    reported = Reported()
    follower = new_follower(api, reported)
    follower.update(container_state(ENDED_POD))
    follower.start()

    early = follower.wait_until_read(timeout_s=0.05)
    reading.set()
    late = follower.wait_until_read(timeout_s=600)
    follower.pod_gone()

    assert (early, late) == (False, True)
    reported.wait_for_steps(1)
    assert reported.kept == {"run-1-worker-0.attempt-3"}


def test_follower_kubelet_that_does_not_know_the_pod_yet_is_asked_again(follow, caplog):
    caplog.set_level("INFO")
    not_synced = ObjectMissing("the server could not find the requested resource ( pods/log p)")
    api = ScriptedLogs(
        statuses=[pod()] * 4 + [ENDED_POD],
        streams=[not_synced, not_synced, [line(1)], [line(1), line(2)]],
    )

    sink = follow(api, pod())

    sink.wait_for_steps(1, 2)
    assert api.asked == ["follow", "follow", "follow", "read"]
    assert [r.getMessage() for r in caplog.records].count("pod's log is not there yet") == 2


def test_follower_earlier_log_that_never_comes_does_not_keep_this_one_back(follow):
    restarted = pod(restarts=1, last=ENDED)
    broken = ClusterUnreachable("HTTP 500: failed to open log file")
    tries = PREVIOUS_LOG_TRIES
    api = ScriptedLogs(
        statuses=[restarted] * (tries + 1) + [pod(restarts=1, state=ENDED)],
        streams=[*[broken] * tries, [line(1)], [line(1), line(2)]],
    )

    sink = follow(api, restarted)
    deadline = monotonic() + 60
    while "follow" not in api.asked and monotonic() < deadline:
        follow.update(container_state(restarted))  # ends its pause

    sink.wait_for_steps(1, 2)
    assert api.asked == ["previous"] * tries + ["follow", "read"]

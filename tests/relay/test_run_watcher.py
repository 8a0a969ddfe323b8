"""A run's whole watch: from what the API server lists and sends to what goes on the bus."""

from __future__ import annotations

import queue
import threading
from contextlib import contextmanager

import pytest
from watched import LIMIT_S, Reported, job, log_line, node, pod, terminated, warning

from stationmaster.domain.job_kinds import JobKind
from stationmaster.relay import watching
from stationmaster.relay.cluster import ObjectMissing, WatchExpired
from stationmaster.relay.config import RelayConfig
from stationmaster.relay.watching import RunWatcher

JOBS, PODS, WARNINGS, NODES = "pytorchjobs", "pods", "events", "nodes"
ENDED = pod(phase="Succeeded", state=terminated(0))


class Api:
    """An API server whose lists and changes a test writes."""

    def __init__(self):
        self.lists = {JOBS: [], PODS: [], WARNINGS: [], NODES: []}
        self.missing = set()
        self.num_handled = dict.fromkeys(self.lists, 0)
        self.log_lines = []
        self.log_opened = threading.Event()
        self.pods_may_be_listed = threading.Event()
        self.pods_may_be_listed.set()
        self.log_may_be_read = threading.Event()
        self.log_may_be_read.set()
        self._changes = {kind: queue.Queue() for kind in self.lists}
        self._closed = False

    def send(self, kind, change, thing):
        self._changes[kind].put((change, thing))

    def list_again(self, kind, *things):
        """Let the watch expire, and list `things` from then on."""
        self.lists[kind] = list(things)
        self._changes[kind].put(WatchExpired("too old"))

    def close(self):
        self._closed = True
        self.log_may_be_read.set()
        for changes in self._changes.values():
            changes.put(None)

    def list(self, path, query):
        kind = path.rpartition("/")[2]
        if kind in self.missing:
            raise ObjectMissing(path)
        if kind == PODS:
            self.pods_may_be_listed.wait(LIMIT_S)
        return list(self.lists[kind]), "1"

    def watch(self, path, query, *, resource_version, timeout_s):
        changes = self._changes[path.rpartition("/")[2]]
        while not self._closed:
            change = changes.get()
            if isinstance(change, Exception):
                raise change
            if change is None:
                return
            yield change
            self.num_handled[path.rpartition("/")[2]] += 1

    def get(self, path):
        name = path.rpartition("/")[2]
        for found in self.lists[PODS]:
            if found["metadata"]["name"] == name:
                return found
        raise ObjectMissing(path)

    @contextmanager
    def log(self, path, *, container, since, follow=False, previous=False):
        self.log_opened.set()
        yield self._lines()

    def _lines(self):
        self.log_may_be_read.wait(LIMIT_S)
        yield from self.log_lines


class Stop(threading.Event):
    """Notices the pause in which the watcher lets the logs of an ended job catch up."""

    def __init__(self):
        super().__init__()
        self.catching_up = threading.Event()

    def wait(self, timeout=None):
        if timeout == watching.PODS_CATCH_UP_S:
            self.catching_up.set()
            return self.is_set()
        return super().wait(timeout)


class World:
    def __init__(self):
        self._before = set(threading.enumerate())
        self.api, self.reported, self.stop = Api(), Reported(), Stop()
        config = RelayConfig.model_construct(
            run_id="run-1", job="run-1", job_kind=JobKind.PYTORCH_JOB, namespace="stationmaster"
        )
        self.watcher = RunWatcher(
            api=self.api,
            config=config,
            batcher=self.reported,
            kept=self.reported,
            stop=self.stop,
        )

    def start(self, **lists):
        self.api.lists |= {kind: list(things) for kind, things in lists.items()}
        self.watcher.start()
        return self

    @property
    def followers(self):
        started = set(threading.enumerate()) - self._before
        return {thread.name for thread in started if thread.name.startswith("log ")}

    def close(self):
        self.api.log_may_be_read.set()
        for left in self.api.lists[PODS]:
            self.api.send(PODS, "DELETED", left)
        self.wait_until(lambda: not self.followers)
        self.stop.set()
        self.api.close()

    def wait_until(self, condition):
        pause = threading.Event()
        for _ in range(LIMIT_S * 100):
            if condition():
                return
            pause.wait(0.01)
        raise AssertionError("not in time")


@pytest.fixture
def world():
    world = World()
    yield world
    world.close()


@pytest.mark.parametrize("is_installed", [True, False])
def test_job_may_exist_until_it_or_its_type_was_looked_for_in_vain(world, is_installed):
    world.api.missing |= set() if is_installed else {JOBS}
    assert world.watcher.job_may_exist()

    world.start()
    world.wait_until(lambda: not world.watcher.job_may_exist())
    assert world.reported.events == []
    if is_installed:
        world.api.send(JOBS, "ADDED", job("Created"))
        world.reported.wait_for("job.condition_changed")
        assert world.watcher.job_may_exist()


def test_job_of_another_name_is_not_reported(world):
    world.start(pytorchjobs=[job("Failed", name="run-2", uid="job-9")])

    world.api.send(JOBS, "MODIFIED", job("Failed", "Restarting", name="run-2", uid="job-9"))
    world.api.send(JOBS, "ADDED", job("Created"))

    (reported,) = world.reported.wait_for("job.condition_changed")
    assert reported.condition == "Created"


def test_job_that_a_new_list_lacks_has_disappeared_and_is_reported_at_once(world):
    world.start(pytorchjobs=[job("Created")])
    world.reported.wait_for("job.condition_changed")

    world.api.list_again(JOBS, job("Created", name="run-2", uid="job-9"))

    (gone,) = world.reported.wait_for("job.disappeared")
    assert gone.event_id in world.reported.urgent
    assert not world.watcher.job_may_exist()


def test_job_that_is_deleted_after_its_end_has_ended_and_not_disappeared(world):
    world.start(pytorchjobs=[job("Created")])

    world.api.send(JOBS, "DELETED", job("Created", "Succeeded"))
    world.api.send(JOBS, "ADDED", job("Created", uid="job-1"))
    world.api.send(JOBS, "DELETED", job("Created", uid="job-1"))

    world.reported.wait_for("job.disappeared")
    assert world.reported.types == ["job.condition_changed"] * 3 + ["job.disappeared"]
    ended = world.reported.of("job.condition_changed")[1]
    assert (ended.condition, ended.event_id in world.reported.urgent) == ("Succeeded", True)


def test_end_of_the_job_is_reported_after_the_last_lines_of_its_pods(world, monkeypatch):
    monkeypatch.setattr(watching, "LAST_LINES_WITHIN_S", LIMIT_S)
    world.api.log_lines = [log_line(1), log_line(2)]
    world.api.log_may_be_read.clear()
    world.start(pytorchjobs=[job("Running")], pods=[ENDED])
    assert world.api.log_opened.wait(LIMIT_S)

    world.api.send(JOBS, "MODIFIED", job("Running", "Succeeded"))
    assert world.stop.catching_up.wait(60), "the end of the job waits for the logs"
    world.api.log_may_be_read.set()

    world.reported.wait_for("job.condition_changed", times=2)
    assert world.reported.types[-3:] == [
        "progress.reported",
        "progress.reported",
        "job.condition_changed",
    ]


def test_pod_is_followed_from_the_first_sight_of_it(world):
    world.api.log_lines = [log_line(1)]

    world.start(pods=[pod()])

    (reported,) = world.reported.wait_for("progress.reported")
    assert (reported.run_id, reported.step) == ("run-1", 1)
    assert world.reported.of("pod.changed")[0].pod == "run-1-worker-0"


@pytest.mark.parametrize("by", ["change", "list"])
def test_pod_that_goes_is_reported_and_forgotten(world, by):
    world.start(pods=[pod(), pod(uid="pod-1", name="run-1-worker-1")])
    world.reported.wait_for("pod.changed", times=2)

    if by == "change":
        world.api.send(PODS, "DELETED", pod())
    else:
        world.api.list_again(PODS, pod(uid="pod-1", name="run-1-worker-1"))

    *_, gone = world.reported.wait_for("pod.changed", times=3)
    assert (gone.pod, gone.phase) == ("run-1-worker-0", "Deleted")
    world.wait_until(lambda: world.reported.forgotten == ["run-1-worker-0"])
    world.wait_until(lambda: world.followers == {"log run-1-worker-1"})


def test_pod_that_has_ended_is_reported_at_once(world):
    world.start(pods=[pod()])
    world.reported.wait_for("pod.changed")

    world.api.send(PODS, "MODIFIED", ENDED)

    running, ended = world.reported.wait_for("pod.changed", times=2)
    assert world.reported.urgent == {ended.event_id} != {running.event_id}


def test_warning_is_reported_once_until_its_event_expires(world):
    world.start(events=[warning()])
    world.reported.wait_for("cluster.warning")

    for change in ("MODIFIED", "DELETED", "ADDED"):
        world.api.send(WARNINGS, change, warning())
    world.api.send(WARNINGS, "ADDED", warning(uid="other", name="run-1-worker-1"))

    reported = world.reported.wait_for("cluster.warning", times=3)
    assert [event.object_name[-1] for event in reported] == ["0", "0", "1"]


def started_on_two_nodes(world):
    world.start(
        pytorchjobs=[job("Running")],
        pods=[pod(), pod(uid="pod-1", name="run-1-worker-1", node="node-b")],
    )
    world.reported.wait_for("job.condition_changed")
    world.reported.wait_for("pod.changed", times=2)
    for name in ("node-a", "node-b", "system"):
        world.api.send(NODES, "ADDED", node(name))


def test_node_is_lost_only_where_the_job_has_a_pod(world):
    started_on_two_nodes(world)

    world.api.send(NODES, "MODIFIED", node("system", ready="False"))
    world.api.send(NODES, "DELETED", node("node-a"))
    world.api.send(NODES, "MODIFIED", node("node-b", ready="Unknown"))

    reported = world.reported.wait_for("node.lost", times=2)
    assert [(event.node, event.reason) for event in reported] == [
        ("node-a", "the node was deleted"),
        ("node-b", "NodeStatusUnknown"),
    ]


def test_node_that_a_new_list_lacks_is_lost(world):
    started_on_two_nodes(world)

    world.api.list_again(NODES, node("node-b"))

    (lost,) = world.reported.wait_for("node.lost")
    assert lost.node == "node-a"


@pytest.mark.parametrize(
    ("change", "conditions", "reported"),
    [
        ("MODIFIED", ["Running", "Failed"], "job.condition_changed"),
        ("DELETED", ["Running"], "job.disappeared"),
    ],
)
def test_node_that_goes_after_the_job_is_no_loss(world, change, conditions, reported):
    started_on_two_nodes(world)
    before = len(world.reported.of(reported))
    world.api.send(JOBS, change, job(*conditions))
    world.reported.wait_for(reported, times=before + 1)
    conditions_reported = len(world.reported.of("job.condition_changed"))

    world.api.send(NODES, "DELETED", node("node-a"))
    world.wait_until(lambda: world.api.num_handled[NODES] == 4)
    world.api.send(JOBS, "ADDED", job("Running", uid="job-1"))
    world.reported.wait_for("job.condition_changed", times=conditions_reported + 1)
    world.api.send(NODES, "DELETED", node("node-b"))

    lost = world.reported.wait_for("node.lost")
    assert [event.node for event in lost] == ["node-b"]


def test_end_of_a_job_that_failed_before_its_relay_came_is_reported_after_its_pods(world):
    failed = pod(phase="Failed", state=terminated(3))
    world.api.pods_may_be_listed.clear()
    world.start(**{JOBS: [job("Failed")], PODS: [failed], NODES: [node("node-a")]})

    assert world.reported.of("job.condition_changed") == []
    world.api.pods_may_be_listed.set()
    world.reported.wait_for("job.condition_changed")

    assert world.reported.types.index("pod.changed") < world.reported.types.index(
        "job.condition_changed"
    )

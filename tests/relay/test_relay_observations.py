"""Kubernetes objects turned into events, and what a restarted relay reports again."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from stationmaster.domain.errors import PermanentError
from stationmaster.relay.config import RelayConfig
from stationmaster.relay.observations import JobObserver, NodeObserver, PodObserver, WarningObserver
from stationmaster.relay.pods import container_state, pod_facts
from stationmaster.rendering import pytorch_job, train_job

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
EARLIER = "2026-01-02T03:00:00Z"


def now():
    return NOW


def job(*conditions):
    return {
        "metadata": {"name": "run-1", "uid": "job-uid"},
        "status": {
            "conditions": [
                {
                    "type": kind,
                    "status": status,
                    "reason": f"PyTorchJob{kind}",
                    "message": f"job is {kind}",
                    "lastTransitionTime": at,
                }
                for kind, status, at in conditions
            ]
        },
    }


def pod(*, phase="Running", state=None, last=None, restarts=0, uid="pod-uid", **status):
    container = {
        "name": "pytorch",
        "restartCount": restarts,
        "state": state or {},
        "lastState": last or {},
    }
    return {
        "metadata": {"name": "run-1-worker-0", "uid": uid},
        "spec": {"nodeName": "node-a", "containers": [{"name": "pytorch"}]},
        "status": {"phase": phase, "containerStatuses": [container], **status},
    }


def running(at=EARLIER):
    return {"running": {"startedAt": at}}


def terminated(code, *, reason="Error"):
    return {"terminated": {"exitCode": code, "reason": reason, "finishedAt": EARLIER}}


def waiting(reason, message=""):
    return {"waiting": {"reason": reason, "message": message}}


def warning(*, name="run-1-worker-0", kind="Pod", type_="Warning", count=1, uid="event-uid"):
    return {
        "metadata": {"uid": uid},
        "type": type_,
        "involvedObject": {"kind": kind, "name": name},
        "reason": "BackOff",
        "message": "back-off",
        "count": count,
        "lastTimestamp": EARLIER,
    }


def node(*, ready="True", since=EARLIER, capacity="ON_DEMAND", drained=False):
    condition = {
        "type": "Ready",
        "status": ready,
        "reason": "NodeStatusUnknown",
        "lastTransitionTime": since,
    }
    return {
        "metadata": {
            "name": "node-a",
            "uid": "node-uid",
            "labels": {"eks.amazonaws.com/capacityType": capacity},
        },
        "spec": {"unschedulable": True} if drained else {},
        "status": {"conditions": [condition]},
    }


def test_job_conditions_are_reported_once_when_they_turn_true():
    observer = JobObserver("run-1", job="run-1", backend=pytorch_job, now=now)
    created = ("Created", "True", EARLIER)

    first = observer.observe(job(created))
    second = observer.observe(job(created, ("Running", "True", "2026-01-02T03:00:01Z")))
    third = observer.observe(
        job(
            created,
            ("Running", "False", "2026-01-02T03:00:09Z"),
            ("Succeeded", "True", "2026-01-02T03:00:09Z"),
        )
    )

    reported = [(e.condition, e.reason, e.at.second) for e in first + second + third]
    assert reported == [
        ("Created", "PyTorchJobCreated", 0),
        ("Running", "PyTorchJobRunning", 1),
        ("Succeeded", "PyTorchJobSucceeded", 9),
    ]
    assert observer.ended


def test_job_running_again_is_another_fact():
    observer = JobObserver("run-1", job="run-1", backend=pytorch_job, now=now)

    events = observer.observe(job(("Running", "True", EARLIER)))
    events += observer.observe(job(("Running", "True", "2026-01-02T03:00:09Z")))

    assert len({event.event_id for event in events}) == 2


def test_job_not_looked_for_may_exist_and_absent_one_does_not():
    observer = JobObserver("run-1", job="run-1", backend=pytorch_job, now=now)

    unseen = observer.exists
    observer.absent()
    news = observer.deleted()

    assert unseen is None
    assert observer.exists is False
    assert news == []


def test_job_deleted_before_its_end_has_disappeared_once():
    observer = JobObserver("run-1", job="run-1", backend=pytorch_job, now=now)
    observer.observe(job(("Running", "True", EARLIER)))

    reported = observer.deleted() + observer.deleted()

    assert [(event.type, event.job) for event in reported] == [("job.disappeared", "run-1")]
    assert observer.exists is False


def test_job_deleted_after_its_end_is_no_news():
    observer = JobObserver("run-1", job="run-1", backend=pytorch_job, now=now)
    observer.observe(job(("Failed", "True", EARLIER)))

    assert observer.deleted() == []


def test_pod_is_reported_only_when_the_reported_fields_change():
    observer = PodObserver("run-1", backend=pytorch_job, now=now)
    scheduled = {"conditions": [{"type": "PodScheduled", "status": "True"}]}

    first = observer.observe(pod(state=running()))
    same = observer.observe(pod(state=running(), podIP="10.0.0.1", **scheduled))
    ended = observer.observe(pod(phase="Failed", state=terminated(1)))

    assert [(e.phase, e.node, e.exit_code) for e in first] == [("Running", "node-a", None)]
    assert same == []
    assert [(e.phase, e.reason, e.exit_code) for e in ended] == [("Failed", "Error", 1)]


def test_pod_exit_that_was_not_seen_is_reported_from_the_last_state():
    seen, missed = (
        PodObserver("run-1", backend=pytorch_job, now=now),
        PodObserver("run-1", backend=pytorch_job, now=now),
    )
    steps = [
        pod(state=running()),
        pod(state=terminated(137)),
        pod(state=waiting("CrashLoopBackOff", "back-off 1s"), last=terminated(137)),
        pod(state=running(), last=terminated(137), restarts=1),
    ]

    reported = [event for step in steps for event in seen.observe(step)]
    later = missed.observe(steps[-1])

    assert [(e.reason, e.exit_code, e.restarts) for e in reported] == [
        ("", None, 0),
        ("Error", 137, 0),
        ("CrashLoopBackOff", None, 0),
        ("", None, 1),
    ]
    assert [e.event_id for e in later] == [reported[1].event_id, reported[3].event_id]


def test_pod_first_seen_after_its_end_tells_both_exits():
    observer = PodObserver("run-1", backend=pytorch_job, now=now)

    reported = observer.observe(
        pod(
            phase="Succeeded",
            state=terminated(0, reason="Completed"),
            last=terminated(9),
            restarts=1,
        )
    )

    assert [(e.phase, e.exit_code, e.restarts) for e in reported] == [
        ("Running", 9, 0),
        ("Succeeded", 0, 1),
    ]


@pytest.mark.parametrize(
    ("status", "reason", "message"),
    [
        (
            {
                "conditions": [
                    {
                        "type": "PodScheduled",
                        "status": "False",
                        "reason": "Unschedulable",
                        "message": "0/2 nodes are available",
                    }
                ]
            },
            "Unschedulable",
            "0/2 nodes are available",
        ),
        (
            {"state": waiting("ImagePullBackOff", "Back-off pulling image")},
            "ImagePullBackOff",
            "Back-off pulling image",
        ),
        ({"reason": "Evicted", "message": "disk pressure"}, "Evicted", "disk pressure"),
        (
            {"reason": "Evicted", "message": "disk pressure", "state": terminated(137)},
            "Evicted",
            "disk pressure",
        ),
        (
            {"initContainerStatuses": [{"name": "init-pytorch", "state": waiting("ErrImagePull")}]},
            "ErrImagePull",
            "",
        ),
    ],
)
def test_pod_that_does_not_run_says_why(status, reason, message):
    (event,) = PodObserver("run-1", backend=pytorch_job, now=now).observe(
        pod(phase="Pending", **status)
    )

    assert (event.phase, event.reason, event.message) == ("Pending", reason, message)


def test_pod_deleted_is_reported_once():
    observer = PodObserver("run-1", backend=pytorch_job, now=now)
    observer.observe(pod(state=running()))

    events = observer.deleted("pod-uid") + observer.deleted("pod-uid")

    assert [(e.pod, e.phase) for e in events] == [("run-1-worker-0", "Deleted")]


@pytest.mark.parametrize(
    ("states", "running_", "terminated_"),
    [
        ({"state": running()}, True, False),
        ({"state": terminated(0)}, False, True),
        ({"state": waiting("CrashLoopBackOff"), "last": terminated(1)}, False, True),
        ({"state": waiting("ContainerCreating")}, False, False),
    ],
)
def test_container_state_follows_the_status(states, running_, terminated_):
    state = container_state(pod(**states))

    assert (state.running, state.terminated) == (running_, terminated_)


@pytest.mark.parametrize(
    ("states", "codes"),
    [
        ({"state": running()}, (None, None)),
        ({"state": terminated(3)}, (3, None)),
        ({"state": waiting("CrashLoopBackOff"), "last": terminated(3)}, (3, None)),
        ({"state": running(), "last": terminated(3)}, (None, 3)),
        ({"state": terminated(0), "last": terminated(3)}, (0, 3)),
    ],
)
def test_container_state_has_the_exit_codes_of_this_run_and_the_one_before(states, codes):
    state = container_state(pod(**states))

    assert (state.exit_code, state.previous_exit_code) == codes


def test_warning_of_job_and_pods_only():
    observer = WarningObserver("run-1", job="run-1", backend=pytorch_job, now=now)
    others = [
        warning(name="run-1-check-0"),
        warning(name="other-worker-0"),
        warning(name="run-1", kind="Deployment"),
        warning(type_="Normal"),
    ]

    reported = observer.observe(warning()) + observer.observe(
        warning(name="run-1", kind="PyTorchJob", uid="2")
    )

    assert [event.object_name for event in reported] == ["run-1-worker-0", "run-1"]
    assert [observer.observe(other) for other in others] == [[], [], [], []]


def test_warning_repeated_is_reported_at_powers_of_two_whenever_it_is_seen():
    steady = WarningObserver("run-1", job="run-1", backend=pytorch_job, now=now)
    late = WarningObserver("run-1", job="run-1", backend=pytorch_job, now=now)

    reported = [e for count in range(1, 12) for e in steady.observe(warning(count=count))]
    (seen_late,) = late.observe(warning(count=11))

    assert [event.count for event in reported] == [1, 2, 4, 8]
    assert seen_late.event_id == reported[-1].event_id


def test_node_not_ready_then_deleted_is_lost_once():
    observer = NodeObserver("run-1", now=now)
    observer.observe(node(), matters=True)

    reported = observer.observe(node(ready="Unknown"), matters=True)
    reported += observer.observe(node(ready="Unknown"), matters=True)
    reported += observer.deleted("node-a", matters=True)

    assert [(event.node, event.reason) for event in reported] == [("node-a", "NodeStatusUnknown")]


def test_node_ready_again_is_recovered_once_and_can_be_lost_again():
    observer = NodeObserver("run-1", now=now)
    observer.observe(node(), matters=True)

    reported = []
    for ready in ("Unknown", "True", "True", "False"):
        reported += observer.observe(node(ready=ready), matters=True)

    assert [event.type for event in reported] == ["node.lost", "node.recovered", "node.lost"]


def test_node_deleted_under_the_job_is_lost():
    observer = NodeObserver("run-1", now=now)
    observer.observe(node(), matters=True)

    (event,) = observer.deleted("node-a", matters=True)

    assert event.reason == "the node was deleted"


def test_spot_node_that_is_drained_is_taken_back_and_then_lost():
    observer = NodeObserver("run-1", now=now)
    observer.observe(node(capacity="SPOT"), matters=True)

    reported = observer.observe(node(capacity="SPOT", drained=True), matters=True)
    reported += observer.observe(node(capacity="SPOT", drained=True), matters=True)
    reported += observer.deleted("node-a", matters=True)

    assert [event.type for event in reported] == ["node.taken_back", "node.lost"]


@pytest.mark.parametrize(("capacity", "matters"), [("ON_DEMAND", True), ("SPOT", False)])
def test_drained_node_that_is_no_spot_node_of_the_job_is_not_taken_back(capacity, matters):
    observer = NodeObserver("run-1", now=now)

    assert observer.observe(node(capacity=capacity, drained=True), matters=matters) == []


def test_node_that_does_not_matter_is_no_loss():
    observer = NodeObserver("run-1", now=now)
    observer.observe(node(), matters=False)

    assert observer.observe(node(ready="False"), matters=False) == []
    assert observer.deleted("node-a", matters=False) == []


@pytest.mark.parametrize(
    ("container", "max_restarts", "total_steps"),
    [
        ({"env": [{"name": "PET_MAX_RESTARTS", "value": "3"}]}, 3, None),
        ({"command": ["torchrun", "--max-restarts=2", "--max_steps", "100"]}, 2, 100),
        ({"args": ["--train-iters=500"], "env": [{"name": "X", "valueFrom": {}}]}, None, 500),
        ({"args": ["--max_steps=$(STEPS)"]}, None, None),
    ],
)
def test_pod_facts_come_from_the_specification(container, max_restarts, total_steps):
    facts = pod_facts(
        "run-1",
        "run-1-2",
        pytorch_job,
        {
            "metadata": {"name": "p", "uid": "u"},
            "spec": {"containers": [{"name": "pytorch", **container}]},
        },
    )

    assert (facts.run_id, facts.job) == ("run-1", "run-1-2")
    assert (facts.max_restarts, facts.total_steps) == (max_restarts, total_steps)


VARIABLES = {
    "STATIONMASTER_RUN_ID": "run-1",
    "STATIONMASTER_JOB": "run-1-2",
    "STATIONMASTER_BUS_NAME": "bus",
    "STATIONMASTER_POD": "run-1-relay-0",
    "STATIONMASTER_RELAY_KEY": "secret",
    "STATIONMASTER_ARTIFACTS_BUCKET": "results",
    "AWS_REGION": "eu-west-1",
}


@pytest.mark.parametrize("missing", [*VARIABLES])
def test_config_missing_variable_is_named(missing):
    with pytest.raises(PermanentError, match=f"{missing} is missing"):
        RelayConfig.from_variables({k: v for k, v in VARIABLES.items() if k != missing})


def test_config_reads_its_variables():
    config = RelayConfig.from_variables(VARIABLES)
    told = RelayConfig.from_variables(VARIABLES | {"STATIONMASTER_NAMESPACE": "theirs"})

    assert (config.run_id, config.job) == ("run-1", "run-1-2")
    assert (config.bus_name, config.region) == ("bus", "eu-west-1")
    assert (config.namespace, told.namespace) == ("stationmaster", "theirs")
    assert "secret" not in str(config.model_dump())  # which is logged


def train_pod(letters: str, **status: object) -> dict[str, object]:
    """A pod of a TrainJob: the next one in its place has other letters at the end of its name."""
    name = f"run-1-node-0-1-{letters}"
    return {
        "metadata": {"name": name, "uid": f"uid-{letters}"},
        "spec": {"hostname": "run-1-node-0-1", "containers": [{"name": "node"}]},
        "status": status,
    }


def test_pods_of_a_trainjob_are_reported_by_their_place():
    observer = PodObserver("run-1", backend=train_job, now=now)

    first = observer.observe(train_pod("aaaaa", phase="Running"))
    gone = observer.deleted("uid-aaaaa")
    second = observer.observe(train_pod("bbbbb", phase="Pending"))

    reported = [(event.pod, event.phase) for event in (*first, *gone, *second)]
    place = "run-1-node-0-1"
    assert reported == [(place, "Running"), (place, "Deleted"), (place, "Pending")]
    assert len({event.event_id for event in (*first, *gone, *second)}) == 3


def test_trainjob_that_is_admitted_runs_and_completes_is_reported_once_each():
    observer = JobObserver("run-1", job="run-1", backend=train_job, now=now)
    moment = "2026-01-02T03:04:05Z"

    def job(*conditions: tuple[str, str], ready: int = 0) -> dict[str, object]:
        listed = [
            {"type": kind, "status": value, "lastTransitionTime": moment}
            for kind, value in conditions
        ]
        status = {"conditions": listed, "jobsStatus": [{"name": "node", "ready": ready}]}
        about = {"name": "run-1", "uid": "u", "creationTimestamp": moment}
        return {"metadata": about, "status": status}

    seen = [
        job(("Suspended", "True")),
        job(("Suspended", "False")),
        job(("Suspended", "False"), ready=1),
        job(("Suspended", "False"), ready=1),
        job(("Suspended", "False"), ("Complete", "True")),
    ]
    reported = [event.condition for each in seen for event in observer.observe(each)]

    assert reported == ["Suspended", "Running", "Succeeded"]
    assert observer.ended


def test_warnings_of_the_parts_of_a_trainjob_are_reported():
    observer = WarningObserver("run-1", job="run-1", backend=train_job, now=now)

    def warning(kind: str, name: str) -> dict[str, object]:
        involved = {"kind": kind, "name": name}
        about = {"name": "w", "uid": f"{kind} {name}"}
        return {"metadata": about, "type": "Warning", "reason": "R", "involvedObject": involved}

    ours = [("TrainJob", "run-1"), ("JobSet", "run-1"), ("Pod", "run-1-node-0-0-abcde")]
    others = [("TrainJob", "run-2"), ("Pod", "run-1-worker-0"), ("Job", "run-1-save")]

    reported = [bool(observer.observe(warning(*each))) for each in (*ours, *others)]
    assert reported == [True, True, True, False, False, False]

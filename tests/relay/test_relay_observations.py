"""Kubernetes objects turned into events, and what a restarted relay reports again."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from watched import job, node, pod, running, terminated, waiting, warning

from stationmaster.domain.errors import PermanentError
from stationmaster.relay.config import RelayConfig
from stationmaster.relay.observations import JobObserver, NodeObserver, PodObserver, WarningObserver
from stationmaster.relay.pods import container_state, pod_facts
from stationmaster.rendering import pytorch_job, train_job

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def now():
    return NOW


def at(second):
    return f"2026-01-02T03:00:{second:02}Z"


def job_observer():
    return JobObserver("run-1", job="run-1", backend=pytorch_job, now=now)


def pod_observer(backend=pytorch_job):
    return PodObserver("run-1", backend=backend, now=now)


def warning_observer():
    return WarningObserver("run-1", job="run-1", backend=pytorch_job, now=now)


def test_job_conditions_are_reported_once_each_time_that_they_turn_true():
    observer = job_observer()
    assert observer.exists is None

    seen = [
        job("Created"),
        job("Created", ("Running", "True", at(1))),
        job("Created", ("Running", "True", at(5))),
        job("Created", ("Running", "False", at(9)), ("Succeeded", "True", at(9))),
    ]
    reported = [event for each in seen for event in observer.observe(each)]

    assert [(e.condition, e.reason, e.at.second) for e in reported] == [
        ("Created", "PyTorchJobCreated", 0),
        ("Running", "PyTorchJobRunning", 1),
        ("Running", "PyTorchJobRunning", 5),
        ("Succeeded", "PyTorchJobSucceeded", 9),
    ]
    assert len({event.event_id for event in reported}) == 4
    assert observer.ended


def test_job_deleted_before_its_end_has_disappeared_once():
    unseen, observer, failed = job_observer(), job_observer(), job_observer()
    observer.observe(job("Running"))
    failed.observe(job("Failed"))
    unseen.absent()

    reported = observer.deleted() + observer.deleted()

    (gone,) = reported
    assert (gone.type, gone.job, gone.uid) == (
        "job.disappeared",
        "run-1",
        job("Running")["metadata"]["uid"],
    )
    assert (observer.exists, unseen.exists) == (False, False)
    assert (unseen.deleted(), failed.deleted()) == ([], [])


def test_pod_is_reported_only_when_the_reported_fields_change_and_once_it_is_gone():
    observer = pod_observer()
    scheduled = {"conditions": [{"type": "PodScheduled", "status": "True"}]}

    first = observer.observe(pod())
    same = observer.observe(pod(podIP="10.0.0.1", **scheduled))
    ended = observer.observe(pod(phase="Failed", state=terminated(1)))
    gone = observer.deleted("pod-uid") + observer.deleted("pod-uid")

    assert [(e.phase, e.node, e.exit_code) for e in first] == [("Running", "node-a", None)]
    assert same == []
    assert [(e.phase, e.reason, e.exit_code) for e in ended] == [("Failed", "Error", 1)]
    assert [(e.pod, e.phase) for e in gone] == [("run-1-worker-0", "Deleted")]


def test_pod_exit_that_was_not_seen_is_reported_from_the_last_state():
    seen, missed = pod_observer(), pod_observer()
    steps = [
        pod(),
        pod(state=terminated(137)),
        pod(state=waiting("CrashLoopBackOff", "back-off 1s"), last=terminated(137)),
        pod(last=terminated(137), restarts=1),
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
    observer = pod_observer()

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
    (event,) = pod_observer().observe(pod(phase="Pending", **status))

    assert (event.phase, event.reason, event.message) == ("Pending", reason, message)


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ({"state": running()}, (True, False, None, None)),
        ({"state": terminated(3)}, (False, True, 3, None)),
        ({"state": waiting("ContainerCreating")}, (False, False, None, None)),
        ({"state": waiting("CrashLoopBackOff"), "last": terminated(3)}, (False, True, 3, None)),
        ({"state": running(), "last": terminated(3)}, (True, False, None, 3)),
        ({"state": terminated(0), "last": terminated(3)}, (False, True, 0, 3)),
    ],
)
def test_container_state_has_the_exit_codes_of_this_run_and_the_one_before(states, expected):
    state = container_state(pod(**states))

    codes = (state.exit_code, state.previous_exit_code)
    assert (state.running, state.terminated, *codes) == expected


def test_warning_of_job_and_pods_only():
    observer = warning_observer()
    others = [
        warning(name="run-1-check-0", uid="3"),
        warning(name="other-worker-0", uid="4"),
        warning(name="run-1", kind="Deployment", uid="5"),
        warning(type_="Normal", uid="6"),
    ]

    reported = observer.observe(warning()) + observer.observe(
        warning(name="run-1", kind="PyTorchJob", uid="2")
    )

    assert [event.object_name for event in reported] == ["run-1-worker-0", "run-1"]
    assert [observer.observe(other) for other in others] == [[], [], [], []]


def test_warning_repeated_is_reported_at_powers_of_two_whenever_it_is_seen():
    steady = warning_observer()
    late = warning_observer()

    reported = [e for count in range(1, 12) for e in steady.observe(warning(count=count))]
    (seen_late,) = late.observe(warning(count=11))

    assert [event.count for event in reported] == [1, 2, 4, 8]
    assert seen_late.event_id == reported[-1].event_id


def observed_of_node(*steps, matters=True):
    """The events of a node that was seen, then not ready or gone; None: it was deleted."""
    observer = NodeObserver("run-1", now=now)
    observer.observe(node(), matters=matters)
    return [
        event
        for step in steps
        for event in (
            observer.deleted("node-a", matters=matters)
            if step is None
            else observer.observe(step, matters=matters)
        )
    ]


def test_node_is_lost_once_however_it_goes():
    unready = node(ready="Unknown")

    (lost,), (gone,) = observed_of_node(unready, unready, None), observed_of_node(None)

    assert (lost.node, lost.reason) == ("node-a", "NodeStatusUnknown")
    assert gone.reason == "the node was deleted"
    assert observed_of_node(unready, None, matters=False) == []


def test_node_ready_again_is_recovered_once_and_can_be_lost_again():
    reported = observed_of_node(
        *(node(ready=each) for each in ("Unknown", "True", "True", "False"))
    )

    assert [event.type for event in reported] == ["node.lost", "node.recovered", "node.lost"]


def test_spot_node_that_is_drained_is_taken_back_and_then_lost():
    drained = node(capacity="SPOT", drained=True)

    reported = observed_of_node(node(capacity="SPOT"), drained, drained, None)

    assert [event.type for event in reported] == ["node.taken_back", "node.lost"]
    assert observed_of_node(node(drained=True)) == observed_of_node(drained, matters=False) == []


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
    observer = pod_observer(train_job)

    first = observer.observe(train_pod("aaaaa", phase="Running"))
    gone = observer.deleted("uid-aaaaa")
    second = observer.observe(train_pod("bbbbb", phase="Pending"))

    reported = [(event.pod, event.phase) for event in (*first, *gone, *second)]
    place = "run-1-node-0-1"
    assert reported == [(place, "Running"), (place, "Deleted"), (place, "Pending")]
    assert len({event.event_id for event in (*first, *gone, *second)}) == 3

"""However long a run or a cluster lives, its item stays small, and its end fits."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from functools import cache
from typing import Any, get_args, get_origin

import pytest
from pydantic import BaseModel

from stationmaster.domain.aggregate import Bound, State
from stationmaster.domain.aggregates import CLUSTER, RUN
from stationmaster.domain.cluster import events as cl
from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.cluster.events import ClusterPhase
from stationmaster.domain.cluster.resources import Resource, resources_after
from stationmaster.domain.cluster.shares import shares
from stationmaster.domain.commands.grammar import MAX_COMMAND_CHARACTERS
from stationmaster.domain.detected import MAX_SAID, Detection, Kind
from stationmaster.domain.errors import IllegalTransition
from stationmaster.domain.resources import ResourceKind
from stationmaster.domain.results import MAX_WHY, Recovery
from stationmaster.domain.run import events as ev
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import RunPhase
from tests.support import factories
from tests.support.factories import CLUSTER_ID, RUN_ID, START

HALF = 200 * 1024  # of what an item of DynamoDB takes
# What the request and the specification of nodes have is as long as one command, and never grows.
WRITTEN_ONCE = {"request", "spec"}
LONG = "\x1b" * 2_000  # six bytes each as JSON
LONG_WORDS = "\U0001f600" * MAX_COMMAND_CHARACTERS
# Of all setbacks together, the sum is a count that every reader of JSON has exactly.
_LARGE = dict.fromkeys(set(Recovery.model_fields) - {"why", "passed_at"}, 2**45)
RECOVERY = Recovery(why="w" * MAX_WHY, passed_at=START, **_LARGE)

FIGURES = dict.fromkeys(
    ("samples_per_s", "mfu", "gpu_use", "step_time_s", "data_wait", "slowest"), 1 / 3
) | {"slowest_node": "n" * 80, "slowest_rank": 2**52}
DETECTION = Detection(
    kind=Kind.STRAGGLER,
    attempt=2**52,
    at=START,
    step=2**52,
    evidence="w" * MAX_SAID,
    remedy="w" * MAX_SAID,
    node="n" * 80,
    rank=2**52,
)


def collections(model: type[BaseModel], path: str = "") -> Iterator[tuple[str, Bound | None]]:
    """Every collection that a state may hold, and its bound."""
    for name, field in model.model_fields.items():
        if name in WRITTEN_ONCE:
            continue
        bound = next((each for each in field.metadata if isinstance(each, Bound)), None)
        yield from _of_type(field.annotation, f"{path}{name}", bound)


def _of_type(kind: Any, path: str, bound: Bound | None) -> Iterator[tuple[str, Bound | None]]:
    origin, arguments = get_origin(kind), get_args(kind)
    is_pair = origin is tuple and ... not in arguments
    if origin in (list, dict, set, frozenset, tuple) and not is_pair:
        yield path, bound
    for argument in arguments:
        yield from _of_type(argument, path, bound if is_pair else None)
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield from collections(kind, f"{path}.")


def size(state: State) -> int:
    return len(state.model_dump_json().encode())


def run_events(number: int) -> list[ev.RunEvent]:
    """The `number`th time that everything which a run remembers happens to it."""

    def event(made: type, /, **values: Any) -> Any:
        at = START + timedelta(minutes=number, seconds=values.pop("after", 0))
        return factories.make_event(made, event_id=f"{number}-".ljust(300, "e"), at=at, **values)

    pod = f"pod-{number}-".ljust(300, "é")
    common = {"pod": pod, "reason": LONG}
    changed = {**common, "phase": "Failed", "node": pod, "message": LONG, "exit_code": 1}
    failed = {"pod": pod, "process": LONG, "line": LONG, "evidence": LONG}
    progress = {"seq": 2 * number, "step": number, "total_steps": 2**52, "loss_nats": 1 / 3}
    return [
        event(ev.ProgressReported, **progress, **FIGURES),
        event(ev.PodChanged, **changed),
        event(ev.ProcessFailed, **failed),
        event(ev.NodeLost, node=f"a{number}-".ljust(300, "é"), reason=LONG),
        event(ev.ProgressReported, **(progress | {"seq": 2 * number + 1, "after": 59})),
        event(ev.NodeLost, node=f"b{number}-".ljust(300, "é"), reason=LONG),
        event(ev.NodeTakenBack, node=pod),
        event(ev.WorkersRestarting, **common),
        event(ev.JobConditionChanged, condition="Restarting", reason=LONG, message=LONG),
        event(ev.TrainingReportedFailure, reason=LONG),
        event(ev.PhaseChanged, phase=RunPhase.RUNNING),
        event(ev.RescaleBegan, nodes=number, job_uid=pod, why=LONG),
        event(
            ev.AttemptStarted,
            attempt_id=f"{RUN_ID}-{number}",
            cluster_id=CLUSTER_ID,
            placement=factories.make_request().wish,
            job=LONG,
            rendezvous_id=LONG,
            job_uid="u" * 36,
        ),
        event(ev.TrainingRecovered, recovery=RECOVERY),
        event(ev.TroubleDetected, detection=DETECTION),
        event(ev.CheckpointSaved, step=number, stall_s=1 / 3, size_bytes=2**52, free_bytes=2**52),
        event(ev.ResultsNotPushed, repository=LONG, reason=LONG),
        event(ev.DataUnlinked, cluster_id=CLUSTER_ID, reason=LONG),
        event(ev.ResultsUnsaved, reason=LONG),
        event(ev.ResultsLost, reason=LONG),
        event(ev.ExportEnded, reason=LONG),
        event(ev.BackupStarted, number=number, step=1),
        event(ev.BackupFailed, number=number, reason=LONG),
        event(
            ev.NetworkObserved,
            job=LONG,
            pod=pod,
            uses_sockets=True,
            provider=LONG,
            plugin_version=LONG,
        ),
        event(ev.PodsApart, job=LONG, pods=(LONG, LONG)),
    ]


def cluster_events(number: int) -> list[cl.ClusterEvent]:
    """The `number`th time that everything which a cluster remembers happens to it."""

    def event(made: type, /, **values: Any) -> Any:
        at = START + timedelta(minutes=number)
        return factories.make_cluster_event(made, event_id=f"{number}", at=at, **values)

    name, node = f"{number}-{LONG}", f"n{number}-".ljust(300, "\u00e9")
    resource = {"kind": ResourceKind.NODE_GROUP, "name": "training"}
    other = {"kind": ResourceKind.SECURITY_GROUP, "name": f"sg-{number}".ljust(64, "x")}
    run_id = f"run-{number}".ljust(45, "x")
    replaced = {"node": node, "instance_id": f"i-{number}", "check": name, "reason": LONG}
    return [
        event(cl.ResourceRequested, **other, price_per_hour_usd=1 / 3),
        event(cl.ResourceCreated, **other, resource_id=f"{number}".ljust(200, "x")),
        event(cl.ResourceRequested, **resource, price_per_hour_usd=number / 3),
        event(cl.ClusterPhaseChanged, phase=ClusterPhase.VALIDATING),
        event(cl.NodeReplacementBegan, **replaced, number=1),
        event(cl.PluginReady, plugin=f"plugin-{number}"),
        event(
            cl.CheckFinished,
            check=f"check-{number}",
            passed=True,
            detail=LONG,
            figures={f"{number}-{each}".ljust(40, "x"): 1 / 3 for each in range(40)},
        ),
        event(cl.ClusterPhaseChanged, phase=ClusterPhase.READY, reason=LONG),
        event(cl.LeaseGranted, run_id=run_id, nodes=1, min_nodes=1, most_nodes=2),
        *(event(cl.LeaseResized, run_id=run_id, nodes=1 + each % 2) for each in range(20)),
        event(cl.LeaseReleased, run_id=run_id),
        event(cl.LeaseGranted, run_id=RUN_ID, nodes=1),
        event(cl.LeaseReleased, run_id=RUN_ID),
        event(cl.PassBegan, nodes=2 + number % 2),
    ]


def take(aggregate: Any, state: Any, event: Any) -> Any:
    """As the store keeps it: what cannot be applied is left out."""
    try:
        state = aggregate.apply(state, event)
    except IllegalTransition:
        return state
    for follower in aggregate.consequences(state, event):
        state = aggregate.apply(state, follower)
    return state


@cache
def large_run() -> Run:
    """Everything a run remembers has happened to it more often than it may remember."""
    half = LONG_WORDS[: len(LONG_WORDS) // 2]  # program and overrides are parts of the command
    request = factories.make_request(
        command=LONG_WORDS, program=(half,), overrides={"dataset": half}
    )
    run = factories.make_run(RunPhase.RUNNING, request=request)
    for number in range(140):
        for event in run_events(number):
            run = take(RUN, run, event)
    for number in range(140, 280):  # and training does not continue, which would forget failures
        for event in run_events(number)[1:4]:
            run = take(RUN, run, event)
    return run


@cache
def large_cluster() -> Cluster:
    """The same of a cluster that somebody keeps."""
    phases = [(ClusterPhase.REQUESTED, START), (ClusterPhase.PROVISIONING, START)]
    kept = {"requester": cl.Requester(team_id="T", channel_id="C", user_id="U")}
    cluster = factories.make_cluster(ClusterPhase.PROVISIONING, leased=False).model_copy(
        update={"phases": phases, "keep_until": START + timedelta(days=99), **kept}
    )

    def event(made: type, number: int, **values: Any) -> Any:
        return factories.make_cluster_event(made, event_id=f"{number}", at=START, **values)

    zone = {"zone": LONG, "left_subnet_id": LONG, "next_zone": LONG, "subnet_id": LONG}
    events = [
        *(event(cl.ZoneGivenUp, n, **zone, instance_type="p5", nodes=2) for n in range(30)),
        *(each for number in range(200) for each in cluster_events(number)),
        *cluster_events(200)[:5],
        *(each for number in range(200, 240) for each in cluster_events(number)[5:7]),
        *(event(cl.LeaseRequested, n, run_id=f"q{n}".ljust(45, "x"), nodes=2) for n in range(140)),
    ]
    for each in events:
        cluster = take(CLUSTER, cluster, each)
    return cluster


LARGE = [pytest.param(RUN, large_run, id="run"), pytest.param(CLUSTER, large_cluster, id="cluster")]


@pytest.mark.parametrize("model", [Run, Cluster])
def test_every_collection_of_an_aggregate_has_a_bound(model):
    assert [path for path, bound in collections(model) if bound is None] == []


@pytest.mark.parametrize(("aggregate", "grow"), LARGE)
def test_item_with_every_collection_at_its_bound_is_below_half(aggregate, grow):
    state = grow()

    counts = {
        name: (len(getattr(state, name)), bound.most)
        for name, bound in collections(type(state))
        if "." not in name and name not in ("folded", "left_behind")
    }
    full = {name for name, (count, most) in counts.items() if count == most}
    assert all(count <= most for count, most in counts.values())
    assert counts.keys() - full <= {"loss_points"}  # thinned, not folded
    assert state.folded["phases"] > 100
    assert size(state) < HALF
    assert aggregate.state.model_validate_json(state.model_dump_json()) == state


def test_run_at_its_bounds_still_ends():
    run = large_run()
    failed = factories.make_event(
        ev.JobConditionChanged, condition="Failed", reason=LONG, message=LONG, at=run.set_back_at
    )
    for event in (
        failed,
        factories.make_event(ev.PhaseChanged, phase=RunPhase.SAVING, reason=LONG),
        factories.make_event(ev.PhaseChanged, phase=RunPhase.FAILED, reason=LONG),
    ):
        run = RUN.apply(run, event)

    assert run.phase is RunPhase.FAILED
    assert run.entered(RunPhase.RECOVERING) is not None
    assert run.phase_names[:2] == ["requested", "recovering"]


def test_cluster_at_its_bounds_still_goes_and_its_shares_are_the_bill():
    cluster = large_cluster()
    began = cluster.pass_began_at
    gone = {"at": START + timedelta(days=3)}
    for event in (
        factories.make_cluster_event(cl.DeletionRequested, user_id="U", **gone),
        *(
            factories.make_cluster_event(kind, **values, **gone)
            for _ in range(60)
            for kind, values in (
                (cl.TeardownStarted, {}),
                (cl.TeardownFailed, {"reason": LONG, "left": [LONG] * 90}),
            )
        ),
    ):
        cluster = take(CLUSTER, cluster, event)

    split = shares(cluster, START + timedelta(days=4))
    assert cluster.phase is ClusterPhase.RELEASING
    assert cluster.entered(ClusterPhase.DRAINING) == gone["at"]
    assert cluster.pass_began_at == began
    assert len(cluster.left_behind) == 50
    assert split.total == pytest.approx(cluster.cost_usd(START + timedelta(days=4)))
    assert size(cluster) < HALF


def test_queue_that_is_full_refuses_one_more_and_loses_nobody():
    cluster = large_cluster()
    one_more = factories.make_cluster_event(cl.LeaseRequested, run_id="late", nodes=2)

    with pytest.raises(IllegalTransition, match=r"the list of queue of .* full with 100 entries"):
        CLUSTER.apply(cluster, one_more)
    assert (len(cluster.queue), cluster.queue[0].run_id[:3]) == (100, "q0x")


def test_price_of_many_resizes_is_what_each_of_them_cost():
    resources: dict[str, Resource] = {}
    for hour in range(40):
        event = factories.make_cluster_event(
            cl.ResourceRequested,
            at=START + timedelta(hours=hour),
            kind=ResourceKind.NODE_GROUP,
            name="training",
            price_per_hour_usd=hour,
        )
        resources = resources_after(resources, event)

    (resource,) = resources.values()
    assert resource.cost_usd(START + timedelta(hours=40)) == pytest.approx(sum(range(1, 40)))

"""Where the paid time of a run went: the parts are what they say, and add up to it."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from histories import after, ended, event, step, take
from hypothesis import example, given
from hypothesis import strategies as st

from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.cluster.events import ClusterPhase, Requester
from stationmaster.domain.cluster.leases import Lease
from stationmaster.domain.cluster.resources import Resource
from stationmaster.domain.resources import ResourceKind
from stationmaster.domain.restoring import ResumePoint
from stationmaster.domain.run import events as ev
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.attempts import first_assignment
from stationmaster.domain.run.events import RunPhase
from stationmaster.domain.run.goodput import Cause, goodput
from stationmaster.domain.run.view import RunView
from tests.support.factories import RUN_ID, make_cluster, make_request, make_run

LATER = after(hours=1)


def sec(at: float | None) -> datetime | None:
    return None if at is None else after(seconds=at)


def acted(act: str, at: float, number: int = 1) -> ev.RunEvent:
    """What happens to a run at a second; the trainer's lines are numbered by time."""
    match act:
        case "step":
            return step(number, at=at, seq=int(at))
        case "kill":
            return ended("process 0 was killed by SIGKILL", at=at)
        case "resume":
            return event(ev.TrainingResumed, at=at, step=max(0, number))
        case "start":
            return event(ev.TrainingStarted, at=at, total_steps=9, world_size=2, num_parameters=1)
    return event(ev.PhaseChanged, at=at, phase=RunPhase(act))


BEGIN = [
    *(("provisioning", 10), ("validating", 110), ("staging", 140), ("submitting", 150)),
    *(("running", 155), ("start", 160)),
]


def run_through(*acts: tuple[Any, ...], **values: Any) -> Run:
    return take(make_run(**values), *(acted(*each) for each in [*BEGIN, *acts]))


def paid(*spans: tuple[float, float | None], **values: Any) -> Cluster:
    """A cluster with a resource for each span, paid for from a second to another."""
    node_group = Resource(
        kind=ResourceKind.NODE_GROUP, name="n", price_per_hour_usd=36.0, requested_at=after()
    )
    resources = {
        str(n): node_group.model_copy(update={"requested_at": sec(a), "deleted_at": sec(b)})
        for n, (a, b) in enumerate(spans)
    }
    return make_cluster(leased=False).model_copy(update={"resources": resources} | values)


def kept(*leases: tuple[float, float | None], ready: float = 0, **values: Any) -> Cluster:
    """A cluster that somebody keeps, and the leases of the run."""
    usual = {
        "requester": Requester(team_id="T1", channel_id="C1", user_id="U1"),
        "phases": [(ClusterPhase.REQUESTED, after()), (ClusterPhase.READY, sec(ready))],
        "run_id": None,
        "past_leases": [
            Lease(run_id=RUN_ID, nodes=2, granted_at=sec(a), released_at=sec(b)) for a, b in leases
        ],
    }
    return paid((0, None), **(usual | values))


def spent(run: Run, cluster: Cluster, *, now: float = 999) -> dict[str, float]:
    found = goodput(RunView(run, cluster), after(seconds=now))
    assert found is not None
    return {cause.value: span.total_seconds() for cause, span in found.spent.items()}


SETBACK = [("step", 200, 60), ("kill", 230), ("resume", 260, 50)]
SETBACK += [("step", 270 + number, 51 + number) for number in range(20)]


WHOLE = [("step", 161), ("step", 360, 1000), ("saving", 365), ("succeeded", 375)]


@pytest.mark.parametrize(
    ("acts", "cluster", "expected"),
    [
        (WHOLE, paid((20, 395), (30, 380)), {"provisioning": 90, "validation": 30, "data": 10}
         | {"starting": 10, "training": 200, "saving": 15, "teardown": 20}),
        (SETBACK, paid((160, None)), {"training": 60, "stalls": 30, "restarts": 30, "repeats": 20}),
        (SETBACK[:2], paid((160, None)), {"training": 40, "stalls": 30, "restarts": 70}),
        ([], paid((155, None)), {"starting": 145}),  # the first step is still computed
        ([("step", 170)], paid((160, None)), {"training": 140}),
        ([("step", 170, 1000)], paid((160, None)), {"training": 10, "saving": 130}),
        ([("step", 170), ("failed", 190)], paid((160, 200)), {"training": 10, "stalls": 20}
         | {"teardown": 10}),
        # A phase with the time of another clock begins once it is entered.
        ([("queued", 120), ("running", 170), ("step", 180)], paid((150, None)), {"starting": 5}
         | {"queue": 15, "training": 130}),
        ([("step", 170)], paid((160, None), phases=[(ClusterPhase.RELEASED, sec(200))]),
         {"training": 40}),
        # A share of a kept cluster is paid while nodes are leased, and by who has caused it before.
        ([("step", 170)], kept((140, 150), (160, 180)), {"data": 10, "training": 20}),
        ([], kept(run_id=RUN_ID, ready=120), {"starting": 10, "provisioning": 100}
         | {"validation": 10}),
    ],
)  # fmt: skip
def test_every_second_that_is_paid_has_its_cause(acts, cluster, expected):
    assert spent(run_through(*acts), cluster, now=300) == expected


def test_lease_that_its_cluster_has_forgotten_is_estimated_as_its_cost_is():
    attempt = event(ev.AttemptStarted, at=15, **dict(first_assignment(RUN_ID, make_request())))
    run = take(run_through(("step", 200)), attempt, acted("failed", 210))

    assert sum(spent(run, kept(folded={"leases": 1})).values()) == 210 - 15


def test_time_between_a_lost_resource_and_the_next_is_not_paid():
    cluster = paid((160, None))
    prices = {"earlier_prices": [(sec(170), 36.0), (sec(200), 0.0)]}
    resources = {"0": cluster.resources["0"].model_copy(update=prices)}

    found = spent(run_through(("step", 165)), cluster.model_copy(update={"resources": resources}))

    assert found == {"training": 999 - 160 - 30}


@pytest.mark.parametrize(("begun", "number"), [(None, 100), (900, 1000)])
def test_tokens_are_paid_from_the_step_that_another_run_had_reached(begun, number):
    point = None if begun is None else ResumePoint(run_id="other-0a1b2c3d", step=begun)
    run = run_through(("step", 200, number), request=make_request(resume_from=point))

    found = goodput(RunView(run, paid((0, None))), LATER)

    assert found.usd_per_million_tokens == pytest.approx(36 * 1e6 / (100 * 16 * 128))


def test_goodput_is_unknown_where_nothing_is_paid_or_reports_steps():
    command = make_request(program=("torchrun", "train.py"))

    assert goodput(RunView(run_through(), paid()), LATER) is None
    assert goodput(RunView(run_through()), LATER) is None
    assert goodput(RunView(run_through(request=command), paid((0, None))), LATER) is None
    forgotten = run_through(("step", 200), request=make_request(recipe="gone"))
    assert goodput(RunView(forgotten, paid((0, None))), LATER).usd_per_million_tokens is None


ACTS = ["step", "step", "kill", "resume", "start", "queued", "running", "saving", "failed"]
SECONDS = st.integers(0, 400)


MANY_SETBACKS = [("step", 9), ("kill", 5), ("resume", 9)] + 7 * [("step", 3)]


@example(MANY_SETBACKS, 15, [(0, None)], 820, False)  # more setbacks than are kept
@example(MANY_SETBACKS, 30, [(0, None)], 1480, False)  # and more phases
@given(
    st.lists(st.tuples(st.sampled_from(ACTS), st.integers(1, 40)), max_size=12),
    st.sampled_from([1, 1, 3, 15]),
    st.lists(st.tuples(SECONDS, st.none() | SECONDS), max_size=3),
    st.integers(0, 2_000),
    st.booleans(),
)
def test_parts_add_up_to_the_paid_time_whatever_happened(history, times, lasted, now, is_kept):
    """What a state with bounds says of a cause is at most what one that keeps all says."""
    run, at, number = run_through(), 160, 1
    phases, recoveries = list(run.phases), []
    for act, later in history * times:
        at, number = at + later, max(1, number + {"step": 5, "resume": -7}.get(act, 0))
        before, run = run, take(run, acted(act, at, number))
        phases += [each for each in run.phases[-2:] if each not in before.phases]
        recoveries += run.recoveries[-1:] if run.recoveries != before.recoveries else []
    spans = [(start, None if length is None else start + length) for start, length in lasted]
    cluster = (kept if is_kept else paid)(*spans)
    whole = run.model_copy(update={"phases": phases, "recoveries": recoveries, "folded": {}})

    found, known = (goodput(RunView(each, cluster), after(seconds=now)) for each in (run, whole))

    ends = [now if end is None else min(now, end) if is_kept else end for _, end in spans]
    inside = {each for (a, _), b in zip(spans, ends, strict=True) for each in range(a, b)}
    assert (found is None) == (not inside)
    if found is not None:
        assert found.paid == known.paid == timedelta(seconds=len(inside))
        assert 0 <= found.fraction <= known.fraction <= 1
        assert Cause.UNKNOWN not in known.spent
        for cause, span in found.spent.items():
            assert cause is Cause.UNKNOWN or span <= known.spent[cause]

"""One attempt at a run: where it runs, as what, and how it ended. Used by `aggregate`. Pure.

A run whose job is made anew after a failure, is placed again, or continues with another number of
nodes, gets a new attempt: the request stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import accumulate, pairwise
from typing import Final

from stationmaster.domain.event import shared
from stationmaster.domain.frozen import Frozen
from stationmaster.domain.ids import AttemptId, ClusterId, RunId
from stationmaster.domain.job_kinds import JobKind
from stationmaster.domain.names import job_name
from stationmaster.domain.outside import clipped
from stationmaster.domain.run.events import AttemptStarted, JobSubmitted, NodesLeased
from stationmaster.domain.run.request import Placement, TrainingRequest

MAX_ATTEMPTS: Final = 8
"""The newest attempts that a run keeps."""
_MAX_WHY: Final = 300


class Assignment(Frozen):
    """Where an attempt runs, and as what; settled before it starts. Jobs are rendered from it."""

    attempt_id: AttemptId
    cluster_id: ClusterId
    """The cluster whose lease it runs on; the cluster keeps the lease itself."""
    placement: Placement
    job: str
    """The name of its job in Kubernetes."""
    rendezvous_id: str
    """The id by which its processes find each other; another attempt has another one."""

    @property
    def number(self) -> int:
        """The attempt's number, from 1."""
        return attempt_number(self.attempt_id)


class Attempt(Assignment):
    """One try at the run's job, on a lease of one cluster."""

    started_at: datetime
    is_rescaled: bool = False
    """Whether it began to have another number of nodes, and not after a failure."""
    bad_node: str = ""
    """The node of the attempt before that another machine has replaced; "" for none."""
    job_kind: JobKind = JobKind.PYTORCH_JOB
    """The kind of its job in Kubernetes, once that is submitted."""
    ended_at: datetime | None = None
    why: str = ""
    """Why it ended, as a sentence; empty while it continues and after success."""
    reached: int = 0
    """The step up to which the run had come when it ended: see `Run.reached`."""


def attempt_id(run_id: RunId, number: int) -> AttemptId:
    """Make the id of a run's attempt; `number` counts from 1."""
    return AttemptId(f"{run_id}-{number}")


def attempt_number(attempt_id: AttemptId) -> int:
    """Return the number that the id was made with."""
    return int(attempt_id.rpartition("-")[2])


def first_assignment(run_id: RunId, request: TrainingRequest) -> Assignment:
    """Assign the first attempt as wished, on the cluster that was named or one of its own.

    A run's own cluster has the run's id.
    """
    return Assignment(
        attempt_id=attempt_id(run_id, 1),
        cluster_id=request.cluster_id or ClusterId(run_id),
        placement=request.wish,
        job=job_name(run_id),
        rendezvous_id=run_id,
    )


def submitted(known: Sequence[Attempt], event: JobSubmitted) -> list[Attempt]:
    """Return the attempts once the cluster has accepted the job of one of them."""
    return [
        attempt.model_copy(update={"job_kind": event.kind}) if attempt.job == event.job else attempt
        for attempt in known
    ]


def next_assignment(
    run_id: RunId, before: Assignment, *, number: int, nodes: int | None = None
) -> Assignment:
    """Assign a further attempt: the same job on the same nodes, or on another number of them.

    What agents left at the old rendezvous must not meet the new ones.
    """
    fresh = attempt_id(run_id, number)
    placement = before.placement.model_copy(update={"nodes": nodes or before.placement.nodes})
    changes = {"attempt_id": fresh, "rendezvous_id": fresh, "placement": placement}
    return Assignment(**dict(before) | changes)


def begun(
    known: Sequence[Attempt], event: AttemptStarted, *, reached: int, is_rescaled: bool
) -> list[Attempt]:
    """Return the attempts with a new one, which ends the one before it.

    `reached` is the step up to which the run has come.
    """
    attempt = Attempt(**shared(event, Attempt), started_at=event.at, is_rescaled=is_rescaled)
    if known and known[-1].job == attempt.job:
        attempt = attempt.model_copy(update={"job_kind": known[-1].job_kind})
    return [*ended(known, at=event.at, why=event.after, reached=reached), attempt]


def placed(known: Sequence[Attempt], event: NodesLeased) -> list[Attempt]:
    """Return the attempts once one of them has as many nodes as it was leased."""
    return [
        attempt.model_copy(
            update={"placement": attempt.placement.model_copy(update={"nodes": event.nodes})}
        )
        if attempt.attempt_id == event.attempt_id
        else attempt
        for attempt in known
    ]


def ended(known: Sequence[Attempt], *, at: datetime, why: str, reached: int) -> list[Attempt]:
    """Return the attempts once the newest has ended; a second end changes nothing."""
    if not known or known[-1].ended_at is not None:
        return list(known)
    end = {"ended_at": at, "why": clipped(why, _MAX_WHY), "reached": reached}
    return [*known[:-1], known[-1].model_copy(update=end)]


def in_vain(known: Sequence[Attempt], *, reached: int) -> int:
    """Count the newest attempts in a row that failed and brought the run no further."""
    failed = [each.reached for each, after in pairwise(known) if not after.is_rescaled]
    ends = [0, *accumulate([*failed, reached], max)]
    return next((n for n, (a, b) in enumerate(pairwise(ends[::-1])) if a > b), len(ends) - 1)

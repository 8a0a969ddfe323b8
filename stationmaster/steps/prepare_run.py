"""First step of the train workflow: does the account have what it takes, and for how long."""

from __future__ import annotations

from datetime import timedelta
from typing import Final, TypedDict

from stationmaster.domain.datasets import NamedData
from stationmaster.domain.ids import RunId
from stationmaster.domain.planning.cost import NodeSource
from stationmaster.domain.planning.plan import LONGEST_COMMAND, plan_recipe
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.request import TrainingRequest
from stationmaster.services import Services
from stationmaster.steps.parts.first_looks import look_before_run
from stationmaster.steps.parts.stops import wanted_run

# How long the workflow waits for its job before it gives the run up: the last guard of all, behind
# the relay, its heartbeat and people. Estimates may be off by two, and recoveries repeat steps.
_TIMES_THE_ESTIMATE: Final = 3
_AT_LEAST: Final = timedelta(days=7)
# An execution lives for a year at most, and that end cannot be caught. Before this wait a run may
# stand in a queue for 60 days; the days after it are for saving and release. Source: Step Functions
# quotas, "Maximum execution time".
MAX_AWAIT: Final = timedelta(days=300)


class Preparation(TypedDict):
    """What the state machine carries along."""

    run_id: RunId
    await_limit_s: int
    """How long it may wait for the job."""
    brings_data: bool
    pushes_model: bool
    leaves_cluster: bool
    """Whether the run is in a cluster that stays, from which it is taken out."""


def prepare_run(services: Services, run_id: RunId) -> Preparation:
    """Say how long the run waits for its job, and which parts of its workflow it needs.

    The wait is limited by its plan; for a command, and where a queue of Kueue may hold the job, it
    is the longest of all.

    Raises:
        RunStopped: someone asked to stop.
        PreflightFailed: the account lacks what the run needs; nothing was made.
    """
    run = wanted_run(services, run_id)
    run = look_before_run(services, run)
    request = run.request
    return {
        "run_id": run_id,
        "await_limit_s": _await_limit_s(run),
        "brings_data": brings_data(request),
        "pushes_model": bool(request.push_to),
        "leaves_cluster": request.cluster_id is not None or request.keep_s > 0,
    }


def brings_data(request: TrainingRequest) -> bool:
    """Whether `stage_data` has anything to do, also of data that only the recipe names."""
    return request.brings_data or not isinstance(request.data, NamedData)


def _await_limit_s(run: Run) -> int:
    request, placement = run.request, run.placement
    if request.job_options.queue:
        # A state's limit cannot pause while Kueue holds the job, so the longest of all applies.
        return int(MAX_AWAIT.total_seconds())
    if request.program:
        return int(LONGEST_COMMAND.total_seconds())
    plan = plan_recipe(
        request.resolved,
        nodes=placement.nodes,
        min_nodes=request.min_nodes,
        instance_type=placement.instance_type,
        source=NodeSource(is_prepaid=request.is_prepaid or bool(request.eks_name)),
    )
    return await_limit_s(plan.longest_duration_s)


def await_limit_s(estimated_duration_s: float) -> int:
    """Return for how many seconds the workflow waits for a job, from its planned duration."""
    wanted = max(_TIMES_THE_ESTIMATE * estimated_duration_s, _AT_LEAST.total_seconds())
    return int(min(wanted, MAX_AWAIT.total_seconds()))

"""First step of the train workflow: does the account have what it takes, and for how long."""

from __future__ import annotations

from datetime import timedelta
from typing import Final, TypedDict

from stationmaster.domain.ids import RunId
from stationmaster.domain.planning.cost import NodeSource
from stationmaster.domain.planning.plan import plan_recipe
from stationmaster.domain.planning.unknown_program import LONGEST_COMMAND
from stationmaster.services import Services
from stationmaster.steps.parts.first_looks import look_before_run
from stationmaster.steps.parts.stops import raise_if_stopped

# How long the workflow waits for its job before it gives the run up: the last guard of all, behind
# the relay, its heartbeat and people. Estimates may be off by two, and recoveries repeat steps.
_TIMES_THE_ESTIMATE: Final = 3
_AT_LEAST: Final = timedelta(days=7)
# An execution lives for a year at most, and that end cannot be caught. Before this wait a run may
# stand in a queue for 60 days; the days after it are for saving and release. Source: Step Functions
# quotas, "Maximum execution time".
MAX_AWAIT: Final = timedelta(days=300)


class Preparation(TypedDict):
    """What the state machine carries along: the id, and how long it may wait for the job."""

    run_id: RunId
    await_limit_s: int


def prepare_run(services: Services, run_id: RunId) -> Preparation:
    """Limit the run's wait for its job by its plan.

    For a command, and where a queue of Kueue may hold the job, it is the longest of all.

    Raises:
        RunStopped: someone asked to stop.
        PreflightFailed: the account lacks what the run needs; nothing was made.
    """
    run = services.runs.load(run_id)
    raise_if_stopped(run)
    run = look_before_run(services, run)
    request = run.request
    if request.job_options.queue:
        # A state's limit cannot pause while Kueue holds the job, so the longest of all applies.
        return {"run_id": run_id, "await_limit_s": int(MAX_AWAIT.total_seconds())}
    if request.program:
        return {"run_id": run_id, "await_limit_s": int(LONGEST_COMMAND.total_seconds())}
    recipe = request.resolved
    placement = run.placement
    plan = plan_recipe(
        recipe,
        nodes=placement.nodes,
        min_nodes=request.min_nodes,
        instance_type=placement.instance_type,
        source=NodeSource(is_prepaid=request.is_prepaid),
    )
    return {"run_id": run_id, "await_limit_s": await_limit_s(plan.longest_duration_s)}


def await_limit_s(estimated_duration_s: float) -> int:
    """Return for how many seconds the workflow waits for a job, from its planned duration."""
    wanted = max(_TIMES_THE_ESTIMATE * estimated_duration_s, _AT_LEAST.total_seconds())
    return int(min(wanted, MAX_AWAIT.total_seconds()))

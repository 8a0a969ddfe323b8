"""First step of the train workflow: what this run needs, and the beginning of provisioning."""

from __future__ import annotations

from datetime import timedelta
from typing import Final, TypedDict

from stationmaster import checks, plugins
from stationmaster.domain.cluster.spec import spec_for
from stationmaster.domain.events import RunPhase
from stationmaster.domain.ids import RunId
from stationmaster.domain.planning.plan import plan_recipe
from stationmaster.domain.planning.recipe_lookup import get_recipe
from stationmaster.services import Services
from stationmaster.steps.recording import enter_phase
from stationmaster.steps.stopping import raise_if_stopped

# How long the workflow waits for its job before it gives the run up: the last guard of all, behind
# the relay, its heartbeat and people. Estimates may be off by two, and recoveries repeat steps.
_TIMES_THE_ESTIMATE: Final = 3
_AT_LEAST: Final = timedelta(days=7)
# An execution lives for a year at most, and that end cannot be caught; the days before the wait and
# after it are for provisioning and release. Source: Step Functions quotas, "Maximum execution
# time".
MAX_AWAIT: Final = timedelta(days=360)


class Preparation(TypedDict):
    """What the state machine carries along: names, and how long it may wait for the job."""

    run_id: RunId
    plugins: list[str]
    checks: list[str]
    await_limit_s: int


def prepare_run(services: Services, run_id: RunId) -> Preparation:
    """Enter provisioning; list the run's plugins and checks, and limit its wait by its plan."""
    run = services.runs.load(run_id)
    raise_if_stopped(run)
    request = run.request
    recipe = get_recipe(request.recipe, request.model).with_overrides(request.overrides)
    spec = spec_for(recipe, nodes=request.nodes, instance_type=request.instance_type)
    plan = plan_recipe(
        recipe,
        nodes=request.nodes,
        instance_type=request.instance_type,
    )
    enter_phase(services, run, RunPhase.PROVISIONING)
    return {
        "run_id": run_id,
        "plugins": plugins.names_for(spec),
        "checks": checks.names_for(spec),
        "await_limit_s": await_limit_s(plan.estimated_duration_s),
    }


def await_limit_s(estimated_duration_s: float) -> int:
    """Seconds that the workflow waits for a job that is planned to take `estimated_duration_s`."""
    wanted = max(_TIMES_THE_ESTIMATE * estimated_duration_s, _AT_LEAST.total_seconds())
    return int(min(wanted, MAX_AWAIT.total_seconds()))

"""First step of the train workflow: what this run needs, and the beginning of provisioning."""

from __future__ import annotations

from typing import TypedDict

from stationmaster.domain.catalogue import get_recipe
from stationmaster.domain.events import RunPhase
from stationmaster.domain.instances import get_instance
from stationmaster.domain.requirements import checks_for, plugins_for
from stationmaster.services import Services
from stationmaster.steps.recording import enter_phase
from stationmaster.steps.stopping import raise_if_stopped


class Preparation(TypedDict):
    """What the state machine carries along: names only."""

    run_id: str
    plugins: list[str]
    checks: list[str]


def prepare_run(services: Services, run_id: str) -> Preparation:
    """Enter provisioning and list the plugins and checks of the run's recipe and instance."""
    run = services.runs.load(run_id)
    raise_if_stopped(run)
    request = run.request
    recipe = get_recipe(request.recipe, request.model).with_overrides(request.overrides)
    instance = get_instance(request.instance_type)
    enter_phase(services, run, RunPhase.PROVISIONING)
    return {
        "run_id": run_id,
        "plugins": plugins_for(recipe, instance),
        "checks": checks_for(recipe, instance),
    }

"""Looks for everything that carries the run's tag, and deletes what a dying workflow left."""

from __future__ import annotations

from stationmaster.domain.errors import LeftBehind, StepTimedOut
from stationmaster.domain.events import ResourceKind
from stationmaster.domain.ids import RunId
from stationmaster.services import Services
from stationmaster.steps import NOT_READY, READY, StepResult
from stationmaster.steps.recording import check_time, resources_deleted


def find_left(services: Services, run_id: RunId) -> list[str]:
    """What still exists of the run, as `kind name`; asked of AWS, not of records."""
    file_systems = [
        f"file system {file_system.file_system_id}"
        for file_system in services.file_systems.list_for_run(run_id)
    ]
    return [
        *services.clusters.list_for_run(run_id),
        *file_systems,
        *services.networks.list_for_run(run_id),
    ]


def verify_released(services: Services, run_id: RunId) -> StepResult:
    """Ready when nothing is left; otherwise request its deletion again.

    A creation that was on its way while the run failed can land after its deletion was done: this
    is the net under that race.

    Raises:
        LeftBehind: something is still there when the teardown's time is over.
    """
    run = services.runs.load(run_id)
    left = find_left(services, run_id)
    if not left:
        resources_deleted(services, run, set(ResourceKind))
        return READY
    _delete_again(services, run_id)
    try:
        check_time(
            services,
            since=run.teardown_started_at,
            limit_s=services.settings.release_timeout_s,
            what=f"still there: {', '.join(left)}",
        )
    except StepTimedOut as exc:
        raise LeftBehind(str(exc)) from exc
    return NOT_READY


def _delete_again(services: Services, run_id: RunId) -> None:
    for file_system in services.file_systems.list_for_run(run_id):
        services.file_systems.delete(file_system.file_system_id)
    if services.clusters.describe(run_id) is not None:
        for node_group in services.clusters.list_node_groups(run_id):
            services.clusters.delete_node_group(run_id, node_group)
        services.clusters.delete(run_id)
    services.networks.delete(run_id)

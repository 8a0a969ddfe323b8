"""How steps write what they do: phases and the life of resources, each fact once.

Event ids are made from what the fact is about, so a step that is repeated records nothing twice.
"""

from __future__ import annotations

from datetime import datetime

from stationmaster.domain.errors import StepTimedOut
from stationmaster.domain.events import (
    PhaseChanged,
    ResourceCreated,
    ResourceDeleted,
    ResourceRequested,
    RunEvent,
    RunPhase,
    make_event_id,
)
from stationmaster.domain.resources import ResourceKind
from stationmaster.domain.run.aggregate import Resource, ResourceStatus, Run
from stationmaster.services import Services


def enter_phase(services: Services, run: Run, phase: RunPhase, *, reason: str = "") -> Run:
    """Take the run into `phase`, unless it is there or has been there."""
    if run.entered(phase) is not None:
        return run
    event = PhaseChanged(
        event_id=make_event_id(run.run_id, "phase", phase),
        run_id=run.run_id,
        at=services.now(),
        phase=phase,
        reason=reason,
    )
    return services.runs.record(run.run_id, [event])


def request_resource(
    services: Services, run: Run, kind: ResourceKind, name: str, *, price_per_hour_usd: float = 0.0
) -> Run:
    """Record that a creation is about to be requested; call it before the request."""
    if find_resource(run, kind, name) is not None:
        return run
    event = ResourceRequested(
        event_id=make_event_id(run.run_id, "resource.requested", kind, name),
        run_id=run.run_id,
        at=services.now(),
        kind=kind,
        name=name,
        price_per_hour_usd=price_per_hour_usd,
    )
    return services.runs.record(run.run_id, [event])


def resource_created(
    services: Services, run: Run, kind: ResourceKind, name: str, *, resource_id: str = ""
) -> Run:
    """Record that a resource is there and usable."""
    known = find_resource(run, kind, name)
    if known is not None and known.status is ResourceStatus.ACTIVE:
        return run
    event = ResourceCreated(
        event_id=make_event_id(run.run_id, "resource.created", kind, name, resource_id),
        run_id=run.run_id,
        at=services.now(),
        kind=kind,
        name=name,
        resource_id=resource_id,
    )
    return services.runs.record(run.run_id, [event])


def resources_deleted(
    services: Services, run: Run, kinds: set[ResourceKind], *, name: str | None = None
) -> Run:
    """Record that every known resource of these kinds (and name) was seen to be gone."""
    events: list[RunEvent] = [
        ResourceDeleted(
            event_id=make_event_id(run.run_id, "resource.deleted", resource.kind, resource.name),
            run_id=run.run_id,
            at=services.now(),
            kind=resource.kind,
            name=resource.name,
        )
        for resource in run.resources.values()
        if resource.kind in kinds
        and resource.status is not ResourceStatus.DELETED
        and name in (None, resource.name)
    ]
    return services.runs.record(run.run_id, events) if events else run


def find_resource(run: Run, kind: ResourceKind, name: str) -> Resource | None:
    """The run's record of a resource, or None."""
    return run.resources.get(f"{kind.value}/{name}")


def check_time(
    services: Services, *, since: datetime | None, limit_s: float, what: str, seen: str = ""
) -> None:
    """Hold a wait against its limit.

    Raises:
        StepTimedOut: saying what is not ready, for how long, and what was seen last.
    """
    if since is None:
        return
    waited_s = (services.now() - since).total_seconds()
    if waited_s > limit_s:
        sentence = f"{what} after {waited_s:.0f} s (limit {limit_s:.0f} s)"
        raise StepTimedOut(f"{sentence}: {seen}" if seen else sentence)

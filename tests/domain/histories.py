"""Runs to which events happen, as the store takes them in. Shared by tests of the domain."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from stationmaster.domain.errors import IllegalTransition
from stationmaster.domain.reactions.run import consequences
from stationmaster.domain.run import events as ev
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.changes import apply
from stationmaster.domain.run.events import RunEvent, RunPhase
from tests.support.factories import START, make_event, make_run


def after(**duration: float) -> datetime:
    """A moment after the start."""
    return START + timedelta(**duration)


def event(kind: Any, *, at: float = 0, **fields: Any) -> Any:
    """An event so many seconds after the start."""
    return make_event(kind, event_id=f"{kind.__name__}-{at}", at=after(seconds=at), **fields)


def condition(kind: str, message: str = "m", *, at: float = 0) -> Any:
    return event(ev.JobConditionChanged, at=at, condition=kind, reason="r", message=message)


def pod(phase: str, name: str = "w-0", *, at: float = 0, **fields: Any) -> Any:
    return event(ev.PodChanged, at=at, pod=name, phase=phase, **fields)


def ended(process: str = "", pod: str = "w-0", *, at: float = 0, **fields: Any) -> Any:
    """What a log says of a process that ended badly."""
    return event(ev.ProcessFailed, at=at, pod=pod, process=process, **fields)


def step(number: int, *, at: float = 0, **fields: Any) -> Any:
    about = {"seq": number, "step": number, "total_steps": 1000, "loss_nats": 1.0}
    return event(ev.ProgressReported, at=at, **about | fields)


def take(run: Run, *events: RunEvent) -> Run:
    """The run after events and what follows; what cannot be applied is left out."""
    for each in events:
        try:
            run = apply(run, each)
        except IllegalTransition:
            continue
        for change in consequences(run, each):
            run = apply(run, change)
    return run


def run_after(*events: RunEvent, phase: RunPhase = RunPhase.RUNNING, **values: Any) -> Run:
    return take(make_run(phase, **values), *events)

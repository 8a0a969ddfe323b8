"""What is read of a run for its report: all that the product knows of it."""

from __future__ import annotations

from typing import Final

from stationmaster.charts.report import RunReport
from stationmaster.commands.looking import view_run
from stationmaster.commands.results import read_result
from stationmaster.diagnosis.explaining import UNEXPLAINED
from stationmaster.diagnosis.runs import context_of, explain_run
from stationmaster.domain.errors import StationmasterError
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import ProgressReported, RunPhase
from stationmaster.domain.run.goodput import goodput
from stationmaster.domain.run.view import RunView
from stationmaster.services import Services

# Of a run of a million steps a random sample is read, as for its picture.
MAX_POINTS: Final = 5_000


def read_report(services: Services, run: Run) -> RunReport:
    """Read everything about a run, whatever it has come to."""
    view, now = view_run(services, run), services.now()
    paid = goodput(view, now)
    spent = paid.spent if paid is not None else {}
    manifest, why_not = None, ""
    try:
        manifest = read_result(services, run)
    except StationmasterError as error:
        why_not = str(error)
    events = sorted(services.runs.rare_events(run.run_id), key=lambda event: event.at)
    return RunReport(
        made_at=now,
        title=run.request.title,
        machines=f"{run.placement.nodes} x {run.placement.instance_type}",
        run=run,
        cluster=view.cluster,
        points=tuple(_points(services, run)),
        events=tuple(events),
        cost_usd=view.cost_usd(now),
        costs=tuple(view.costs(now)),
        paid={cause.value: span.total_seconds() for cause, span in spent.items()},
        usd_per_million_tokens=paid.usd_per_million_tokens if paid is not None else None,
        over_at=view.torn_down_at,
        diagnosis=tuple(_diagnosis(view)),
        manifest=manifest,
        no_manifest=why_not,
    )


def _points(services: Services, run: Run) -> list[ProgressReported]:
    """Read the steps in order, each once, with what was last said of it."""
    found = services.runs.sample_frequent(run.run_id, most=MAX_POINTS)
    points: dict[int, ProgressReported] = {}
    for event in found:
        if not isinstance(event, ProgressReported):
            continue
        # Of a step that was taken twice a sample may have the older report only.
        while len(found) == MAX_POINTS and points and next(reversed(points)) >= event.step:
            points.popitem()
        points[event.step] = event
    return [points[step] for step in sorted(points)]


def _diagnosis(view: RunView) -> list[str]:
    found = explain_run(view.run, context_of(view)) if view.run.phase is RunPhase.FAILED else None
    if found is None:
        return []
    said = [] if found.rule == UNEXPLAINED else [found.diagnosis, found.evidence]
    return [*said, view.run.reason, found.remedy]

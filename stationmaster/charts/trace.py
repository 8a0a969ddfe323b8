"""One trace of a run, made of what is recorded of it: OTLP in its JSON form. Pure.

Ids follow from the run's, so the trace of a run is the same one whenever it is made.
Source: opentelemetry.io/docs/specs/otlp, "JSON Protobuf Encoding".
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from itertools import pairwise
from typing import Any

from stationmaster.charts.report import RunReport
from stationmaster.domain.run import events as ev


def trace_of(report: RunReport) -> dict[str, Any]:
    """Return the trace as one of a request's `resourceSpans`."""
    run, spans = report.run, list[dict[str, Any]]()
    about = {"service.name": "stationmaster", "run_id": run.run_id, "machines": report.machines}
    for name, start, end, why in _rows(report):
        span = {
            "traceId": sha256(run.run_id.encode()).hexdigest()[:32],
            "spanId": sha256(f"{run.run_id} {name} {start}".encode()).hexdigest()[:16],
            "parentSpanId": spans[0]["spanId"] if spans else "",
            "name": name,
            "kind": 1,  # internal
            "startTimeUnixNano": _nanoseconds(start),
            "endTimeUnixNano": _nanoseconds(max(start, end or report.over_at or report.made_at)),
            "status": {"code": 2, "message": why} if why else {},
        }
        spans.append(span)
    attributes = [{"key": key, "value": {"stringValue": text}} for key, text in about.items()]
    return {"resource": {"attributes": attributes}, "scopeSpans": [{"spans": spans}]}


def _rows(report: RunReport) -> Iterator[tuple[str, datetime, datetime | None, str]]:
    """Yield the run, then its parts: a name, start and end, and why it failed or ""."""
    run, cluster = report.run, report.cluster
    why = run.reason if run.phase is ev.RunPhase.FAILED else ""
    yield f"run {run.run_id}", run.requested_at, None, why
    for (phase, start), (_, end) in pairwise([*run.phases, (run.phase, report.made_at)]):
        if not phase.is_terminal:
            yield phase.value, start, end, ""
    for each in run.attempts:
        why = "" if each.why.startswith(ev.CHANGE) else each.why
        yield f"attempt {each.number}", each.started_at, each.ended_at or run.ended_at, why
    for event in report.events:
        if isinstance(event, ev.CheckpointSaved) and event.duration_s is not None:
            began = event.at - timedelta(seconds=event.duration_s)
            yield f"checkpoint of step {event.step}", began, event.at, ""
    if cluster is None:
        return
    for made in cluster.resources.values():
        ready_at = made.active_at or made.refused_at or made.deleted_at
        why = "AWS refused it" if made.never_was else ""
        if made.requested_at >= run.requested_at:  # a kept cluster has older ones
            yield f"{made.kind.value} {made.name}", made.requested_at, ready_at, why
    for check in cluster.checks:  # when they began is not known
        if check.at is not None and check.at >= run.requested_at:
            yield f"check {check.name}", check.at, check.at, "" if check.passed else check.detail
    if cluster.teardown_started_at is not None and not cluster.is_kept:
        yield "teardown", cluster.teardown_started_at, cluster.torn_down_at, ""


def _nanoseconds(at: datetime) -> str:
    return str((at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) * 1000)

"""The end of a teardown: the receipt's figures, or what is left and why."""

from __future__ import annotations

from collections.abc import Mapping

from stationmaster.domain.events import TeardownCompleted, TeardownFailed, make_event_id
from stationmaster.domain.ids import RunId
from stationmaster.domain.run.aggregate import TeardownStatus
from stationmaster.services import Services
from stationmaster.steps.conclude_run import sentence_of
from stationmaster.steps.leftovers import find_left


def conclude_teardown(
    services: Services, run_id: RunId, *, error: Mapping[str, str] | None = None
) -> None:
    """Record that the teardown is complete, with its cost, or that it failed and what is left.

    `error` is what Step Functions caught; None after a verified teardown.
    """
    run = services.runs.load(run_id)
    if run.teardown is TeardownStatus.COMPLETED:
        return
    now = services.now()
    if error is None:
        services.runs.record(
            run_id,
            [
                TeardownCompleted(
                    event_id=make_event_id(run_id, "teardown.completed"),
                    run_id=run_id,
                    at=now,
                    cost_usd=round(run.cost_usd(now), 6),
                )
            ],
        )
        return
    reason = sentence_of(error.get("Cause", "")) or error.get("Error", "unknown error")
    services.runs.record(
        run_id,
        [
            TeardownFailed(
                event_id=make_event_id(run_id, "teardown.failed", run.teardown_started_at),
                run_id=run_id,
                at=now,
                reason=reason,
                left=[str(left) for left in find_left(services, run_id)],
            )
        ],
    )

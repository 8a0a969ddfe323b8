"""A run that reports a million steps: how large its items get, by the product's own `apply`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from bench.figures import Figure
from stationmaster.domain.ids import RunId
from stationmaster.domain.run import events as ev
from stationmaster.domain.run.aggregate import start_run
from stationmaster.domain.run.changes import apply
from stationmaster.domain.run.request import TrainingRequest

STEPS: Final = 1_000_000
_RUN_ID: Final = RunId("tiny-llama-0123abcd")
_AT: Final = datetime(2026, 1, 2, tzinfo=UTC)
_LOOK_EVERY: Final = 1_000


def measure_long_run() -> list[Figure]:
    """Return the largest state and event on the way, as JSON."""
    request = TrainingRequest(
        recipe="tiny-llama",
        nodes=2,
        instance_type="m5.2xlarge",
        command="/train tiny-llama",
        team_id="T",
        channel_id="C",
        user_id="U",
    )
    requested = ev.RunRequested(
        event_id=ev.run_event_id(_RUN_ID, "requested"),
        run_id=_RUN_ID,
        at=_AT,
        request=request,
        price_per_hour_usd=0.0,
        estimated_cost_usd=0.0,
    )
    run, largest_state, largest_event = start_run(requested), 0, 0
    for seq in range(1, STEPS + 1):
        event = ev.ProgressReported(
            event_id=ev.run_event_id(_RUN_ID, "progress", seq),
            run_id=_RUN_ID,
            at=_AT,
            seq=seq,
            step=seq,
            total_steps=STEPS,
            loss_nats=2 + 1.23456789 / seq,
            tokens_per_s=123456.789,
            learning_rate=0.000123456,
            grad_norm=1.23456,
        )
        run = apply(run, event)
        if seq % _LOOK_EVERY == 0 or seq < _LOOK_EVERY:
            largest_state = max(largest_state, len(run.model_dump_json().encode()))
            largest_event = max(largest_event, len(event.model_dump_json().encode()))
    note = f"after {STEPS:,} steps"
    return [
        Figure(name="run item", value=largest_state, unit="bytes", at_most=8_000, note=note),
        Figure(name="event item", value=largest_event, unit="bytes", at_most=1_000),
    ]

"""A run that reports a million steps: how large its items get, and what its chart takes to read.

The state goes through the product's own `apply`; the curve is read by the product's own store from
a table that answers queries as DynamoDB does, page by page, and holds the million events.
"""

from __future__ import annotations

import tracemalloc
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, Final, cast

from bench.figures import AtMost, Figure
from bot.loss_curve import read_curve
from stationmaster.aws.run_store import RunStore
from stationmaster.domain.ids import RunId
from stationmaster.domain.run import events as ev
from stationmaster.domain.run.aggregate import Run, start_run
from stationmaster.domain.run.changes import apply
from stationmaster.domain.run.request import TrainingRequest
from stationmaster.services import Services

STEPS: Final = 1_000_000
_RUN_ID: Final = RunId("tiny-llama-0123abcd")
_AT: Final = datetime(2026, 1, 2, tzinfo=UTC)
_LOOK_EVERY: Final = 1_000
# DynamoDB ends a page at 1 MB.
_PAGE: Final = 2_000


def measure_long_run() -> list[Figure]:
    """Return the largest items after a million steps, and the memory that its curve takes."""
    run, largest_state, largest_event = _report()
    tracemalloc.start()
    curve = read_curve(_services(), run)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    note = f"after {STEPS:,} steps"
    return [
        Figure(name="run item", value=largest_state, unit="bytes", target=AtMost(8_000), note=note),
        Figure(name="event item", value=largest_event, unit="bytes", target=AtMost(1_000)),
        Figure(name="points of the chart", value=len(curve.points), unit="points"),
        Figure(
            name="memory of the chart's points",
            value=peak_bytes / 2**20,
            unit="MiB",
            target=AtMost(64),
            note=note,
        ),
    ]


def _progress(seq: int) -> ev.ProgressReported:
    return ev.ProgressReported(
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


def _report() -> tuple[Run, int, int]:
    """Return the run after all steps, and the largest state and event on the way, as JSON."""
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
        event = _progress(seq)
        run = apply(run, event)
        if seq % _LOOK_EVERY == 0 or seq < _LOOK_EVERY:
            largest_state = max(largest_state, len(run.model_dump_json().encode()))
            largest_event = max(largest_event, len(event.model_dump_json().encode()))
    return run, largest_state, largest_event


class _MillionSteps:
    """The events of the run as a DynamoDB client answers for them; their order is the hashes'."""

    def query(self, **arguments: Any) -> dict[str, Any]:
        if not arguments["ExpressionAttributeValues"][":prefix"]["S"].startswith("STEP#"):
            return {"Items": []}
        start = int(arguments.get("ExclusiveStartKey", {"n": 0})["n"])
        # A step that shares no factor with the number of steps goes through all of them once.
        seqs = ((start + index) * 617_413 % STEPS + 1 for index in range(_PAGE))
        items = [
            {"place": {"N": str(seq)}, "body": {"S": _progress(seq).model_dump_json()}}
            for seq in seqs
        ]
        end = start + _PAGE
        return {"Items": items, **({"LastEvaluatedKey": {"n": end}} if end < STEPS else {})}


def _services() -> Services:
    store = RunStore("runs", cast("Any", _MillionSteps()))
    return cast("Services", SimpleNamespace(runs=store))

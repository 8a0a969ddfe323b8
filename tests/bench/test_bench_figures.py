"""The benchmarks' arithmetic: verdicts, percentiles, and how a run's lines are cut up."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

# The benchmarks are run from the checkout and are no part of what is installed.
sys.path.append(str(Path(__file__).resolve().parents[2]))

from bench.figures import AtLeast, AtMost, Figure, Verdict, percentile
from bench.job import JobRecord, busiest_minute, line_delays_s, stretches

BEGAN = datetime(2026, 1, 2, 9, 0, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return BEGAN + timedelta(seconds=seconds)


def seen(seconds: float, **line: object) -> tuple[datetime, dict[str, object]]:
    """A line that comes out 0.25 s after what it tells of."""
    return at(seconds + 0.25), {"kind": "event", "event_at": at(seconds).isoformat(), **line}


def record(*, last: dict[str, object] | None = None) -> JobRecord:
    lines = [
        seen(4.0, type="run.requested"),
        seen(10.0, type="run.phase_changed", phase="running"),
        seen(20.0, type="progress.reported", step=1),
        seen(21.0, type="progress.reported", step=2),
        # Kubernetes keeps whole seconds: this is some moment between 30 and 31.
        seen(30.0, type="pod.changed", phase="Succeeded"),
        (at(33.0), {"kind": "slack", "method": "chat.postMessage", "text": "✅ *run succeeded*"}),
        (at(35.0), {"kind": "slack", "method": "chat.postMessage", "text": "receipt of r-1: $0"}),
        (at(36.0), last or {"kind": "result", "status": "succeeded"}),
    ]
    return JobRecord(began=BEGAN, ended=at(37.0), exit_code=0, lines=lines)


@pytest.mark.parametrize(
    ("value", "target", "verdict"),
    [
        (8.0, AtMost(8), Verdict.PASS),
        (8.1, AtMost(8), Verdict.OVER),
        (0.98, AtLeast(0.98), Verdict.PASS),
        (0.97, AtLeast(0.98), Verdict.OVER),
        (1e9, None, Verdict.INFO),
    ],
)
def test_figure_against_its_target_gets_its_verdict(value, target, verdict):
    figure = Figure(name="a figure", value=value, unit="s", target=target)

    assert figure.verdict is verdict
    assert f" {verdict.value}" in figure.as_line()
    assert figure.as_json()["verdict"] == verdict.value


def test_percentile_of_a_hundred_values_is_the_one_that_so_many_do_not_exceed():
    values = [float(value) for value in range(100, 0, -1)]

    assert [percentile(values, percent) for percent in (50, 95, 99, 100)] == [50, 95, 99, 100]
    with pytest.raises(ValueError, match="percentile 99 of 0 values"):
        percentile([], 99)


def test_busiest_minute_counts_a_sliding_window():
    moments = [at(second) for second in (0, 50, 55, 61, 70, 200)]

    assert busiest_minute(moments) == 4
    assert busiest_minute([at(0), at(60)]) == 1


def test_stretches_of_a_run_leave_the_pods_out_of_the_control_plane():
    parts = stretches(record())

    # The last pod's line came out at 30.25, so it cannot have ended later.
    assert (parts.to_receipt, parts.pods, parts.control_plane) == (35.0, 20.25, 14.75)
    assert (parts.to_command, parts.to_pods) == (4.25, 5.75)
    assert (parts.to_first_step, parts.after_pods) == (10.0, 4.75)
    total = parts.to_command + parts.to_pods + parts.pods + parts.after_pods
    assert total == pytest.approx(parts.to_receipt)


def test_stretches_of_a_run_without_a_receipt_are_refused():
    whole = record()
    cut = JobRecord(began=BEGAN, ended=at(34.0), exit_code=0, lines=whole.lines[:-2])

    with pytest.raises(RuntimeError, match="0 receipts"):
        stretches(cut)


def test_line_delays_run_from_the_trainers_stamp_to_the_line_that_came_out():
    assert line_delays_s(record()) == [0.25, 0.25]


def test_result_of_a_run_that_broke_off_is_refused():
    broken = record(last={"kind": "phase", "phase": "running"})

    with pytest.raises(RuntimeError, match="expected 0 and a result"):
        _ = broken.result

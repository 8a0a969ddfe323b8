"""The benchmarks' arithmetic: verdicts, how a run's lines are cut up, and the critical path."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from bench.critical_path import MIDDLE, compare, walk
from bench.figures import Figure
from bench.job import JobRecord, busiest_minute, stretches
from stationmaster.domain.polling import first_turn

BEGAN = datetime(2026, 1, 2, 9, 0, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return BEGAN + timedelta(seconds=seconds)


def seen(seconds: float, **line: object) -> tuple[datetime, dict[str, object]]:
    """A line that comes out 0.25 s after what it tells of."""
    return at(seconds + 0.25), {"kind": "event", "event_at": at(seconds).isoformat(), **line}


LINES = [
    seen(4.0, type="run.requested"),
    seen(10.0, type="run.phase_changed", phase="running"),
    seen(20.0, type="progress.reported", step=1),
    # Kubernetes keeps whole seconds: this is some moment between 30 and 31.
    seen(30.0, type="pod.changed", phase="Succeeded"),
    (at(33.0), {"kind": "slack", "method": "chat.postMessage", "text": "✅ *run succeeded*"}),
    (at(35.0), {"kind": "slack", "method": "chat.postMessage", "text": "receipt of r-1: $0"}),
]


@pytest.mark.parametrize(
    ("value", "target", "verdict"),
    [
        (8.0, {"at_most": 8}, "pass"),
        (8.1, {"at_most": 8}, "over"),
        (0.98, {"at_least": 0.98}, "pass"),
        (0.97, {"at_least": 0.98}, "over"),
        (1e9, {}, "info"),
    ],
)
def test_figure_against_its_target_gets_its_verdict(value, target, verdict):
    figure = Figure(name="a figure", value=value, unit="s", **target)

    assert f" {verdict}" in figure.as_line()


def test_busiest_minute_counts_a_sliding_window():
    assert busiest_minute([at(second) for second in (0, 50, 55, 61, 70, 200)]) == 4
    assert busiest_minute([at(0), at(60)]) == 1


def test_stretches_of_a_run_leave_the_pods_out_of_the_control_plane():
    parts = stretches(JobRecord(began=BEGAN, exit_code=0, lines=LINES))

    # The last pod's line came out at 30.25, so it cannot have ended later.
    assert (parts.to_receipt, parts.pods, parts.control_plane) == (35.0, 20.25, 14.75)
    assert (parts.to_command, parts.to_pods) == (4.25, 5.75)
    assert (parts.to_first_step, parts.after_pods) == (10.0, 4.75)


def test_run_that_broke_off_is_refused():
    broken = JobRecord(began=BEGAN, exit_code=0, lines=LINES[:-1])

    with pytest.raises(RuntimeError, match="0 receipts"):
        stretches(broken)
    with pytest.raises(RuntimeError, match="expected 0 and a result"):
        _ = broken.result


def loop(name: str, *, then: str) -> dict[str, dict[str, object]]:
    """Call a function of that name until it is ready, every 10 s at first."""
    not_ready = {"Not": {"Variable": "$.step.ready", "BooleanEquals": True}}
    return {
        name: {"Type": "Pass", "Result": first_turn(10), "Next": f"call-{name}"},
        f"call-{name}": {
            "Type": "Task",
            "Resource": f"${{{name}}}",
            "Parameters": {},
            "Next": f"{name}?",
        },
        f"{name}?": {
            "Type": "Choice",
            "Choices": [{**not_ready, "Next": f"wait-{name}"}],
            "Default": then,
        },
        f"wait-{name}": {"Type": "Wait", "SecondsPath": "$.step.wait_s", "Next": f"call-{name}"},
    }


def test_walk_of_a_loop_ends_at_the_first_call_after_the_work():
    states = {**loop("a", then="done"), "done": {"Type": "Succeed"}}

    # Calls end at 1, 12 and 23; the work is done at 15.
    assert walk({"StartAt": "a", "States": states}, {}, work_s={"a": 15}.get) == (23, ["a"])


def test_walk_of_a_state_that_ends_badly_is_refused():
    definition = {"StartAt": "a", "States": {"a": {"Type": "Fail"}}}

    with pytest.raises(ValueError, match="state a is a Fail: expected none on the way"):
        walk(definition, {}, work_s={}.get)


def test_critical_path_leads_through_training_nodes_and_not_through_the_file_system():
    ended_s, scripts_s = compare(MIDDLE)
    for work, is_critical in (("ensure-file-system", False), ("ensure-node-group training", True)):
        longer_s, longer_scripts_s = compare({**MIDDLE, work: MIDDLE[work] + 60})

        assert (longer_s > ended_s) is is_critical
        assert longer_scripts_s == scripts_s + 60


def test_work_without_a_duration_is_named():
    known = {work: seconds for work, seconds in MIDDLE.items() if work != "install-plugin"}

    with pytest.raises(LookupError, match='no duration for "install-plugin training-operator"'):
        compare(known)

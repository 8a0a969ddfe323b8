"""State machines walked on a clock: waits, branches, and what the critical path is made of."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

# The benchmarks are run from the checkout and are no part of what is installed.
sys.path.append(str(Path(__file__).resolve().parents[2]))

from bench.critical_path import DURATIONS, SCRIPTS_CLUSTER, compare, measure_critical_path
from bench.figures import Verdict
from bench.state_machines import Pace, walk
from stationmaster.domain.polling import first_turn

MIDDLE = {work: each.middle_s for work, each in DURATIONS.items()}


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


def machine(first: str, states: dict[str, dict[str, object]]) -> dict[str, object]:
    return {"StartAt": first, "States": {**states, "done": {"Type": "Succeed"}}}


def pace(**seconds: float) -> Pace:
    return Pace(work_s=lambda work: seconds[work], call_s=1.0)


def test_walk_of_a_loop_ends_at_the_first_call_after_the_work():
    way = walk(machine("a", loop("a", then="done")), {}, pace=pace(a=15))

    # Calls end at 1, 12 and 23; the work is done at 15.
    assert way.ended_s == 23
    assert [(each.work, each.ended_s) for each in way.path] == [("a", 23)]


def test_walk_of_branches_takes_the_one_that_ends_last():
    branches = [machine(each, loop(each, then="done")) for each in ("short", "long")]
    both = {"both": {"Type": "Parallel", "Branches": branches, "Next": "c"}}

    way = walk(
        machine("both", {**both, **loop("c", then="done")}), {}, pace=pace(short=5, long=50, c=0)
    )

    assert [each.work for each in way.path] == ["long", "c"]
    assert sorted(way.works) == ["c", "long", "short"]
    # The second branch waits 10, 10, 11, 11 and 12 s between its calls, and ends at 60.
    assert way.ended_s == 61


def test_walk_of_a_state_that_ends_badly_is_refused():
    definition = {"StartAt": "a", "States": {"a": {"Type": "Fail"}}}

    with pytest.raises(ValueError, match="state a is a Fail: expected none on the way"):
        walk(definition, {}, pace=pace())


def test_critical_path_leads_through_training_nodes_and_not_through_the_file_system():
    way, in_sequence_s = compare(MIDDLE)
    longer, longer_in_sequence_s = compare({**MIDDLE, "ensure-file-system": 570.0})

    works = [each.work for each in way.path]
    assert works.index("ensure-cluster") < works.index("ensure-node-group training")
    assert "ensure-file-system" not in works
    assert longer.ended_s == way.ended_s
    assert longer_in_sequence_s == in_sequence_s + 60


def test_work_without_a_duration_is_named():
    known = {work: seconds for work, seconds in MIDDLE.items() if work != "install-plugin"}

    with pytest.raises(LookupError, match='no duration for "install-plugin training-operator"'):
        compare(known)


def test_figure_says_whether_the_target_is_met(capsys: pytest.CaptureFixture[str]):
    figures = {each.name: each for each in measure_critical_path()}

    middle = figures.pop("critical path and scripts, middle durations")
    assert {each.verdict for each in figures.values()} == {Verdict.INFO}
    assert middle.verdict is (Verdict.PASS if middle.value <= 0.6 else Verdict.OVER)
    assert "run-check storage" in capsys.readouterr().out


def test_scripts_make_cluster_network_and_system_nodes_in_one_go():
    figures = {each.name: each for each in measure_critical_path()}
    way, in_sequence_s = compare(MIDDLE)

    scripts_s = in_sequence_s + SCRIPTS_CLUSTER.middle_s - 600 - 180  # control plane, system nodes
    middle = figures["critical path and scripts, middle durations"]
    assert middle.value == pytest.approx(way.ended_s / scripts_s)
    assert scripts_s > in_sequence_s

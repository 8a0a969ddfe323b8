"""State machines walked on a clock: waits, branches, and what the critical path is made of."""

from __future__ import annotations

import pytest

from bench.critical_path import MIDDLE, compare, walk
from stationmaster.domain.polling import first_turn


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


def test_walk_of_a_loop_ends_at_the_first_call_after_the_work():
    # Calls end at 1, 12 and 23; the work is done at 15.
    assert walk(machine("a", loop("a", then="done")), {}, work_s={"a": 15}.get) == (23, ["a"])


def test_walk_of_branches_takes_as_long_as_the_one_that_ends_last():
    branches = [machine(each, loop(each, then="done")) for each in ("short", "long")]
    both = {"both": {"Type": "Parallel", "Branches": branches, "Next": "c"}}
    durations = {"short": 5, "long": 50, "c": 0}

    ended_s, works = walk(
        machine("both", {**both, **loop("c", then="done")}), {}, work_s=durations.get
    )

    assert sorted(works) == ["c", "long", "short"]
    # The second branch waits 10, 10, 11, 11 and 12 s between its calls, and ends at 60.
    assert ended_s == 61


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

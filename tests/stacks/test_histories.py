"""No execution can outgrow its history, whatever its loops wait for, up to their own deadlines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from lambdas.registry import MACHINES
from stationmaster.checks import CHECKS, before, time_limit_s
from stationmaster.domain.cluster.replacements import MAX_REPLACED
from stationmaster.domain.cluster.spec import ClusterSpec, spec_for
from stationmaster.domain.planning.recipe_lookup import get_recipe
from stationmaster.domain.polling import first_turn, next_turn
from stationmaster.domain.run.events import StagingWork
from stationmaster.jobs import bringing, export, push
from stationmaster.plugins import PLUGINS
from stationmaster.rendering import saver_job
from stationmaster.settings import Settings
from stationmaster.steps.parts.node_replacements import WAIT_S
from tests.support.state_loops import scopes, without_beginnings

ROOT = Path(__file__).parent.parent.parent
LIMITS = Settings(region="us-west-2", table_name="t", bus_name="b")
# Source: Step Functions developer guide, "Quotas".
MOST_EVENTS = 25_000
# Of a call: entered, scheduled, started, succeeded, exited; of the Choice and the Wait, two each.
EVENTS_OF_TURN, EVENTS_OF_BEGINNING, EVENTS_OF_RETRY = 9, 2, 3
ZONES = 6

# How long each step may keep its loop, at most, in seconds.
_STARTS_S = LIMITS.release_job_timeout_s + LIMITS.job_start_timeout_s
_SAVES_S = 2 * _STARTS_S + export.DEADLINE_S + saver_job.DEADLINE_S
_PUSHES_S = LIMITS.job_start_timeout_s + push.DEADLINE_S
_STAGES_S = (
    _STARTS_S + LIMITS.provision_timeout_s + len(get_args(StagingWork)) * bringing.DEADLINE_S
)
DEADLINES_S = {
    "train": {
        "StageData": _STAGES_S,
        "EnsureJobStarted": LIMITS.job_start_timeout_s,
        "SaveResults": _SAVES_S,
        "SaveAfterFailure": _SAVES_S,
        "PushResults": _PUSHES_S,
        "PushAfterFailure": _PUSHES_S,
        "ReleaseRun": LIMITS.release_job_timeout_s,
        "ReleaseRunAfterFailure": LIMITS.release_job_timeout_s,
    },
    "cluster": {
        "EnsureCluster": LIMITS.provision_timeout_s,
        "EnsureSystemNodes": LIMITS.provision_timeout_s,
        # In each zone they are waited for, and then seen gone.
        "EnsureTrainingNodes": ZONES * 2 * LIMITS.provision_timeout_s,
        "EnsureFileSystem": ZONES * 2 * LIMITS.provision_timeout_s,
        "InstallPlugin": LIMITS.plugin_timeout_s,
        "RunCheck": LIMITS.check_timeout_s,  # from when it may start: see check_s
        "ReplaceNodes": WAIT_S,
    },
    "teardown": {
        "BeginTeardown": LIMITS.release_job_timeout_s,
        "ReleaseJob": LIMITS.release_job_timeout_s,
        **dict.fromkeys(
            (
                "ReleaseTrainingNodes",
                "ReleaseFileSystem",
                "ReleaseSystemNodes",
                "ReleaseCluster",
                "ReleaseNetwork",
            ),
            LIMITS.release_timeout_s,
        ),
        "VerifyReleased": LIMITS.release_timeout_s + LIMITS.creation_grace_s,
    },
}
# A run that trained after nothing was there to save goes back once, to be saved.
SAVED_LATE = (
    "SaveAfterFailure", "LateSavingDone?", "VerifyAfterFailure", "PushesModelLate",
    "PushAfterFailure", "LatePushOver?", "ConcludeFailure", "TrainedMeanwhile",
)  # fmt: skip
# States that lead back to themselves but for the loops, and how often.
AGAIN = {
    "train": dict.fromkeys(SAVED_LATE, 1),
    "cluster": {
        "ProvisionCapacity": ZONES - 1,
        "WaitForNextZone": ZONES - 1,
        "Validate": MAX_REPLACED,
        "ReplaceNodes": MAX_REPLACED,
        "NodesReplaced?": MAX_REPLACED,
    },
    "teardown": {},
}

of_each_machine = pytest.mark.parametrize("name", sorted(MACHINES))


def definition(name: str) -> dict[str, Any]:
    read = json.loads((ROOT / MACHINES[name]).read_text())
    assert isinstance(read, dict)
    return read


def shortest_waits(name: str) -> dict[str, int]:
    """Of each loop, by the state of its step."""
    found = {}
    for scope in scopes(definition(name)):
        states = scope["States"]
        begun = {each["Next"]: each["Result"] for each in states.values() if each["Type"] == "Pass"}
        for wait in states.values():
            if wait["Type"] == "Wait" and wait["Next"] in begun:
                found[wait["Next"]] = begun[wait["Next"]]["every_s"]
                assert wait["SecondsPath"] == "$.step.wait_s"
    return found


def events(every_s: int, deadline_s: float, *, retries: int = 0) -> int:
    """Of a loop that lasts until its step's time is over, with so many retries of each call."""
    turn, calls = first_turn(every_s), 1
    while turn["waited_s"] <= deadline_s:
        turn, calls = next_turn(turn), calls + 1
    return EVENTS_OF_BEGINNING + calls * (EVENTS_OF_TURN + retries * EVENTS_OF_RETRY)


def check_s(check: str, spec: ClusterSpec) -> float:
    """How long a check may take from the beginning of all, the ones before it included."""
    earlier = before(check, spec, is_full=True)
    own_s = time_limit_s(check, longest_s=LIMITS.check_timeout_s)
    return own_s + max((check_s(each, spec) for each in earlier), default=0.0)


def events_by_loop(name: str) -> dict[str, int]:
    """Without retries; of a Map's loop, those of all items together."""
    every_s = shortest_waits(name)
    found = {loop: events(every_s[loop], limit_s) for loop, limit_s in DEADLINES_S[name].items()}
    if name == "cluster":
        spec = spec_for(get_recipe("llama2-7b"), nodes=2, instance_type="p4d.24xlarge")
        checks_s = [check_s(check.NAME, spec) for check in CHECKS]
        found["InstallPlugin"] *= len(PLUGINS)
        found["RunCheck"] = sum(events(every_s["RunCheck"], limit_s) for limit_s in checks_s)
    return found


def on_a_cycle(machine: dict[str, Any]) -> Iterator[str]:
    """States that lead back to themselves other than through the Wait state of a loop."""
    for scope in scopes(machine):
        ways = {
            name: {
                state.get("Next") if "SecondsPath" not in state else None,
                state.get("Default"),
                *(each["Next"] for each in [*state.get("Choices", []), *state.get("Catch", [])]),
            }
            - {None}
            for name, state in scope["States"].items()
        }
        for name, nexts in ways.items():
            seen, left = set(), [*nexts]
            while left:
                at = left.pop()
                if at not in seen:
                    seen.add(at)
                    left += ways[at]
            if name in seen:
                yield name


@of_each_machine
def test_each_loop_and_each_other_way_back_has_a_limit(name: str) -> None:
    assert shortest_waits(name).keys() == DEADLINES_S[name].keys()
    assert set(on_a_cycle(without_beginnings(definition(name)))) == AGAIN[name].keys()


@of_each_machine
def test_no_loop_outgrows_a_history_even_where_each_call_is_retried_to_the_end(name: str) -> None:
    every_s = shortest_waits(name)
    attempts = {
        each: sum(retrier["MaxAttempts"] for retrier in state["Retry"])
        for scope in scopes(definition(name))
        for each, state in scope["States"].items()
        if each in every_s
    }

    for loop, limit_s in DEADLINES_S[name].items():
        assert events(every_s[loop], limit_s, retries=attempts[loop]) < MOST_EVENTS, loop


@of_each_machine
def test_all_loops_of_an_execution_fill_less_than_half_of_its_history(name: str) -> None:
    assert sum(events_by_loop(name).values()) <= 10_000

"""Walk a state machine on a clock that nobody waits for, and say how long each stretch took.

Used by `bench.critical_path`. It reads the synthesized definitions, so it sees the order, the
branches and the waits that AWS would execute. It knows the states that lead to a good end; a retry
or a Catch is never taken. What a state works on takes as long as the caller says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from stationmaster.domain.polling import first_turn, next_turn

_NOT_READY: Final = {"Not": {"Variable": "$.step.ready", "BooleanEquals": True}}
_TOKEN_TASK: Final = "arn:aws:states:::lambda:invoke.waitForTaskToken"
# Names in a payload that say what a call works on, beside the function.
_SUBJECTS: Final = ("node_group", "plugin", "check")


@dataclass(frozen=True, slots=True)
class Stretch:
    """The time from the first call of a state's function until it was ready, waits included."""

    work: str
    began_s: float
    ended_s: float


@dataclass(slots=True)
class Walk:
    """A way through a machine; `path` has what ended last of each set of branches."""

    ended_s: float
    path: list[Stretch] = field(default_factory=list)
    works: list[str] = field(default_factory=list)
    """All that was worked on, whether it was waited for or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How long things take."""

    work_s: Callable[[str], float]
    """Seconds from the first call for a piece of work until its function answers that it is ready.
    A piece is named by the function, and by the node group, plugin or check: "run-check nodes"."""
    call_s: float
    """Seconds of one call of a function."""


def walk(
    definition: Mapping[str, Any],
    data: Mapping[str, Any],
    *,
    pace: Pace,
    began_s: float = 0.0,
    until: str | None = None,
    item: str = "",
) -> Walk:
    """Go from the first state to a good end, or to the entry of the state `until`.

    `data` is the machine's input with the lists that its Maps go through; `item` is what the Map
    around this machine is at.

    Raises:
        ValueError: a state is of a kind that no way to a good end has had so far.
    """
    done = Walk(began_s)
    begun: dict[str, float] = {}
    name, ready, turn = str(definition["StartAt"]), False, first_turn(0)
    while name != until:
        state = definition["States"][name]
        match state["Type"]:
            case "Task":
                began_s = begun.setdefault(name, done.ended_s)
                work = Stretch(_work(state, item), began_s, began_s)
                is_asked = _rules(definition["States"][state["Next"]]) == [_NOT_READY]
                ready = _call(done, work, pace=pace, is_asked=is_asked)
            case "Pass":
                turn = state["Result"]
            case "Wait":
                turn = next_turn(turn)
                done.ended_s += turn["wait_s"]
            case "Choice":
                name = _chosen(name, state, ready=ready)
                continue
            case "Parallel" | "Map":
                parts = _parts(state, data)
                begins_s = done.ended_s
                _join(
                    done,
                    [walk(one, data, pace=pace, began_s=begins_s, item=at) for one, at in parts],
                )
            case "Succeed":
                return done
            case kind:
                raise ValueError(f"state {name} is a {kind}: expected none on the way to a success")
        if state.get("End"):
            return done
        name = state["Next"]
    return done


def _work(state: Mapping[str, Any], item: str) -> str:
    """Return what a Task works on: its function, and the node group, plugin or check."""
    parameters = state["Parameters"]
    is_token = state["Resource"] == _TOKEN_TASK
    function = parameters["FunctionName"] if is_token else state["Resource"]
    payload = parameters["Payload"] if is_token else parameters
    subjects = [payload[each] for each in _SUBJECTS if each in payload]
    if any(f"{each}.$" in payload for each in _SUBJECTS):
        subjects.append(item)
    return " ".join([function.strip("${}"), *subjects])


def _call(done: Walk, work: Stretch, *, pace: Pace, is_asked: bool) -> bool:
    """Call a function once; whether its work is done then.

    `is_asked` says whether a Choice looks at the answer, and has it called again. Where none does,
    the state itself waits: for a task token.
    """
    done.ended_s += pace.call_s
    ready_at = work.began_s + pace.work_s(work.work)
    if is_asked and done.ended_s < ready_at:
        return False
    done.ended_s = max(done.ended_s, ready_at)
    done.path.append(Stretch(work.work, work.began_s, done.ended_s))
    done.works.append(work.work)
    return True


def _parts(
    state: Mapping[str, Any], data: Mapping[str, Any]
) -> list[tuple[Mapping[str, Any], str]]:
    """Return the machines inside a Parallel or a Map, each with the item that it is for."""
    if state["Type"] == "Parallel":
        return [(branch, "") for branch in state["Branches"]]
    items = data[state["ItemsPath"].removeprefix("$.")]
    return [(state["ItemProcessor"], item) for item in items]


def _chosen(name: str, choice: Mapping[str, Any], *, ready: bool) -> str:
    """Return the state after a Choice; a plain run is spared what its first step says so of."""
    rules = _rules(choice)
    is_spared = bool(rules) and rules[0].get("And", [{}])[0].get("IsPresent") is True
    if rules != [_NOT_READY] and not is_spared:
        raise ValueError(f"choice {name} asks {rules}: expected {_NOT_READY} alone")
    return str(choice["Default"] if ready and not is_spared else choice["Choices"][0]["Next"])


def _rules(state: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what a Choice asks; nothing of another state."""
    choices = state.get("Choices", [])
    return [{key: rule[key] for key in rule if key != "Next"} for rule in choices]


def _join(done: Walk, parts: list[Walk]) -> None:
    """Go on when the last part has ended."""
    if not parts:
        return
    last = max(parts, key=lambda part: part.ended_s)
    done.ended_s = last.ended_s
    done.path += last.path
    done.works += [work for part in parts for work in part.works]

"""Which states, edges and retries a state machine has, and which of them executions went through.

Pure: reads definitions and execution histories as Step Functions gives them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.support.state_loops import without_beginnings

# A loop's beginning, which every way into the loop goes through.
_PASS = "PassState"
_ENTERED, _EXITED = "StateEntered", "StateExited"
_SCHEDULED = ("LambdaFunctionScheduled", "TaskScheduled")
_FAILURES = (
    "LambdaFunctionFailed",
    "LambdaFunctionTimedOut",
    "TaskFailed",
    "TaskTimedOut",
    "TaskStartFailed",
    "TaskSubmitFailed",
)


@dataclass
class Graph:
    """States by name, edges as pairs of names, and the states that retried."""

    states: set[str] = field(default_factory=set)
    edges: set[tuple[str, str]] = field(default_factory=set)
    retries: set[str] = field(default_factory=set)


def defined(definition: dict[str, Any]) -> Graph:
    """Everything that a definition can do."""
    graph = Graph()
    for name, state in _states(without_beginnings(definition)):
        targets = [
            *([state["Next"]] if "Next" in state else []),
            *(choice["Next"] for choice in state.get("Choices", [])),
            *([state["Default"]] if "Default" in state else []),
            *(catcher["Next"] for catcher in state.get("Catch", [])),
        ]
        # Two edges between the same states would look the same in a history.
        assert len(set(targets)) == len(targets), f"{name} has two edges to one state"
        graph.states.add(name)
        graph.edges |= {(name, target) for target in targets}
        if state.get("Retry"):
            graph.retries.add(name)
    return graph


def visited(histories: Iterable[Sequence[Mapping[str, Any]]]) -> Graph:
    """Everything that the executions of one machine did."""
    graph = Graph()
    for history in histories:
        by_id = {event["id"]: event for event in history}
        for event in history:
            if event["type"].endswith(_ENTERED) and not event["type"].startswith(_PASS):
                name = _name(event)
                graph.states.add(name)
                origin = _origin(event, by_id)
                if origin is not None:
                    graph.edges.add((origin, name))
            elif event["type"] in _SCHEDULED:
                retried = _retried(event, by_id)
                if retried is not None:
                    graph.retries.add(retried)
    return graph


def _states(definition: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name, state in definition["States"].items():
        yield name, state
        for inner in (*state.get("Branches", []), state.get("ItemProcessor")):
            if inner is not None:
                yield from _states(inner)


def _name(event: Mapping[str, Any]) -> str:
    details = event.get("stateEnteredEventDetails") or event["stateExitedEventDetails"]
    return str(details["name"])


def _before(
    event: Mapping[str, Any], by_id: Mapping[int, Mapping[str, Any]]
) -> Iterator[Mapping[str, Any]]:
    """What led to an event, newest first."""
    while (previous := by_id.get(event["previousEventId"])) is not None:
        yield previous
        event = previous


def _origin(event: Mapping[str, Any], by_id: Mapping[int, Mapping[str, Any]]) -> str | None:
    """The state that led to this one; None for the first of a machine, a branch or an item."""
    for previous in _before(event, by_id):
        if previous["type"].startswith(_PASS):
            continue
        if previous["type"].endswith(_EXITED):
            return _name(previous)
        if previous["type"].endswith((_ENTERED, "StateStarted", "IterationStarted")):
            return None
    return None


def _retried(event: Mapping[str, Any], by_id: Mapping[int, Mapping[str, Any]]) -> str | None:
    """The state that is attempted again by this call, if it is another attempt."""
    failed = False
    for previous in _before(event, by_id):
        if previous["type"].endswith(_ENTERED):
            return _name(previous) if failed else None
        failed = failed or previous["type"] in _FAILURES
    return None

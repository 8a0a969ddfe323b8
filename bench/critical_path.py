"""From a request to its first training step, on a cluster that has to be made first. Simulated.

The committed state machines are walked on a clock that nobody waits for, with the durations below,
and compared with what scripts take for the same work in sequence: plugin after plugin, check after
check, job. A template of theirs makes a network with each cluster, so that its whole creation takes
longer than control plane and system nodes do; the network of a deployment is there already. What a
script would spend on looking whether something is ready is not counted for it; for the state
machines it is.

The durations are the middles of ranges that others report, not measurements of this project. They
are for a run on nodes with GPUs and EFA that streams its data, so that nothing is staged.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from bench.figures import Figure
from stationmaster import checks, plugins
from stationmaster.domain.cluster.spec import spec_for
from stationmaster.domain.names import SYSTEM_NODE_GROUP, TRAINING_NODE_GROUP
from stationmaster.domain.planning.recipe_lookup import get_recipe
from stationmaster.domain.polling import first_turn, next_turn

# A warm function that reads the table and asks AWS once or twice.
CALL_S: Final = 1.0
_MACHINES: Final = Path(__file__).parents[1] / "lambdas"
_NOT_READY: Final = {"Not": {"Variable": "$.step.ready", "BooleanEquals": True}}
_TOKEN_TASK: Final = "arn:aws:states:::lambda:invoke.waitForTaskToken"
# Names in a payload that say what a call works on, beside the function.
_SUBJECTS: Final = ("node_group", "plugin", "check")
_NODES: Final = "ensure-node-group"
# By function, and by node group, plugin or check; a function alone is for all others of its kind.
# The shortest and the longest time in seconds, and who reports it.
DURATIONS: Final[Mapping[str, tuple[float, float, str]]] = {
    "prepare-run": (0, 0, "one call"),
    "submit-job": (0, 0, "one call"),
    "ensure-job-started": (
        30,
        120,
        "the image is on the nodes since the storage check; imports and rendezvous",
    ),
    "prepare-cluster": (0, 0, "one call"),
    "ensure-cluster": (480, 720, "EKS control planes take 8 to 12 min"),
    f"{_NODES} {SYSTEM_NODE_GROUP}": (120, 240, "node groups of CPU instances take 2 to 4 min"),
    f"{_NODES} {TRAINING_NODE_GROUP}": (
        300,
        900,
        "awsome-distributed-ai, EKS templates: GPU node groups take 5 to 15 min more",
    ),
    "ensure-file-system": (
        300,
        720,
        "FSx for Lustre, CREATING to AVAILABLE: 5 to 12 min (aws-do-eks waits as long)",
    ),
    "install-plugin": (
        30,
        120,
        "an image of some 100 MB to each node; an EKS add-on reports ACTIVE after 1 to 2 min",
    ),
    "run-check": (0, 0, "nodes say it when they have joined"),
    "run-check storage": (
        60,
        600,
        "awsome-distributed-ai's CI gives pods 10 min to pull the image and be ready",
    ),
    "run-check network": (
        100,
        690,
        "the image, as for storage, then imports, rendezvous and half a minute of messages",
    ),
    "conclude-cluster": (0, 0, "one call"),
}
MIDDLE: Final = {work: (low_s + high_s) / 2 for work, (low_s, high_s, _) in DURATIONS.items()}
# What scripts do at once and the state machines do not (awsome-distributed-ai, EKS templates: 15 to
# 30 min with network and system nodes); the work that it stands for is left out.
SCRIPTS_CLUSTER_S: Final = 1350.0
_IN_SCRIPTS_CLUSTER: Final = ("ensure-cluster", f"{_NODES} {SYSTEM_NODE_GROUP}")


def measure_critical_path() -> list[Figure]:
    """Measure the way to the first step against what scripts take; prints the durations."""
    print("  durations, s")
    for work, (low_s, high_s, source) in DURATIONS.items():
        if high_s:
            print(f"    {work:<28} {low_s:>4g} to {high_s:>4g}  {source}")
    ended_s, scripts_s = compare(MIDDLE)
    return [
        Figure(
            name="critical path, of what scripts take",
            value=ended_s / scripts_s,
            unit="of the sum",
            at_most=0.6,
            note=f"{ended_s / 60:.1f} of {scripts_s / 60:.1f} min",
        )
    ]


def compare(seconds: Mapping[str, float]) -> tuple[float, float]:
    """Return the seconds from a request to its first step, and those that scripts take.

    `seconds` has a duration for each key of DURATIONS.
    """
    spec = spec_for(get_recipe("llama2-7b"), nodes=2, instance_type="p4d.24xlarge")
    names = {"plugins": plugins.names_for(spec), "checks": checks.names_for(spec)}

    def work_s(work: str) -> float:
        function = work.split(maxsplit=1)[0]
        if work not in seconds and function not in seconds:
            raise LookupError(f'no duration for "{work}": add one to bench/critical_path.py')
        return seconds.get(work, seconds.get(function, 0.0))

    made_s, making = walk(_machine("cluster"), names, work_s=work_s)
    ended_s, works = walk(
        _machine("train"),
        {},
        work_s=lambda work: made_s if work == "acquire-cluster" else work_s(work),
        until="AwaitJob",
    )
    works = [*making, *works]
    works.remove("acquire-cluster")
    scripts_s = SCRIPTS_CLUSTER_S
    scripts_s += sum(work_s(work) for work in works if work not in _IN_SCRIPTS_CLUSTER)
    return ended_s, scripts_s


def _machine(name: str) -> dict[str, Any]:
    machine: dict[str, Any] = json.loads((_MACHINES / f"{name}.asl.json").read_text())
    return machine


def walk(
    definition: Mapping[str, Any],
    data: Mapping[str, Any],
    *,
    work_s: Callable[[str], float],
    began_s: float = 0.0,
    until: str | None = None,
    item: str = "",
) -> tuple[float, list[str]]:
    """Go from the first state to a good end, or to the entry of the state `until`.

    A retry or a Catch is never taken. Returns when that is, and all that was worked on.

    Args:
        definition: a synthesized state machine, or a part of it.
        data: its input, with the lists that its Maps go through.
        work_s: seconds from the first call for a piece of work until its function answers that it
            is ready. A piece is named by the function, and by the node group, plugin or check.
        began_s: when the first state is entered.
        until: the state to stop at.
        item: what the Map around this machine is at.

    Raises:
        ValueError: a state is of a kind that no way to a good end has had so far.
    """
    now_s, works = began_s, list[str]()
    begun: dict[str, float] = {}
    name, ready, turn = str(definition["StartAt"]), False, first_turn(0)
    while name != until:
        state = definition["States"][name]
        match state["Type"]:
            case "Task":
                work = _work(state, item)
                ready_s = begun.setdefault(name, now_s) + work_s(work)
                now_s += CALL_S
                # Where no Choice looks at the answer, the state itself waits: for a task token.
                is_asked = _rules(definition["States"][state["Next"]]) == [_NOT_READY]
                ready = not is_asked or now_s >= ready_s
                if ready:
                    now_s = max(now_s, ready_s)
                    works.append(work)
            case "Pass":
                turn = state["Result"]
            case "Wait":
                turn = next_turn(turn)
                now_s += turn["wait_s"]
            case "Choice":
                name = _chosen(name, state, ready=ready)
                continue
            case "Parallel" | "Map":
                parts = [
                    walk(part, data, work_s=work_s, began_s=now_s, item=each)
                    for part, each in _parts(state, data)
                ]
                now_s = max([now_s, *(ended_s for ended_s, _ in parts)])
                works += [work for _, inside in parts for work in inside]
            case "Succeed":
                break
            case kind:
                raise ValueError(f"state {name} is a {kind}: expected none on the way to a success")
        if state.get("End"):
            break
        name = state["Next"]
    return now_s, works


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

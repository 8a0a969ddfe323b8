"""From a request to its first training step, on a cluster that has to be made first. Simulated.

The committed state machines are walked with the durations below, and the way that ends last is
compared with two sums. One is the same work done in sequence: control plane, node groups, file
system, plugin after plugin, check after check, job. The other is what scripts take for it: a
template of theirs makes a network with each cluster, so that its whole creation takes longer than
control plane and system nodes do; the network of a deployment is there already. What a script would
spend on looking whether something is ready is not counted for it; for the state machines it is.

The durations are ranges that others report, not measurements of this project. They are for a run on
nodes with GPUs and EFA that streams its data, so that nothing is staged.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from bench.figures import AtMost, Figure
from bench.state_machines import Pace, Walk, walk
from stationmaster import checks, plugins
from stationmaster.domain.cluster.spec import ClusterSpec, spec_for
from stationmaster.domain.names import SYSTEM_NODE_GROUP, TRAINING_NODE_GROUP
from stationmaster.domain.planning.recipe_lookup import get_recipe

TARGET: Final = 0.6
# A warm function that reads the table and asks AWS once or twice.
_CALL_S: Final = 1.0
_MACHINES: Final = Path(__file__).parents[1] / "lambdas"


@dataclass(frozen=True, slots=True)
class Duration:
    """A range in seconds, and who reports it."""

    low_s: float
    high_s: float
    source: str

    @property
    def middle_s(self) -> float:
        """Half-way between both ends."""
        return (self.low_s + self.high_s) / 2


_ONE_CALL: Final = Duration(0, 0, "one call")
_LOOK: Final = Duration(0, 0, "nodes say it when they have joined")
_PLUGIN: Final = Duration(
    30, 120, "an image of some 100 MB to each node; an EKS add-on reports ACTIVE after 1 to 2 min"
)
# By function, and by node group, plugin or check; a function alone is for all others of its kind.
DURATIONS: Final[Mapping[str, Duration]] = {
    "prepare-run": _ONE_CALL,
    "submit-job": _ONE_CALL,
    "ensure-job-started": Duration(
        30, 120, "the image is on the nodes since the storage check; imports and rendezvous"
    ),
    "prepare-cluster": _ONE_CALL,
    "ensure-cluster": Duration(480, 720, "EKS control planes take 8 to 12 min"),
    f"ensure-node-group {SYSTEM_NODE_GROUP}": Duration(
        120, 240, "node groups of CPU instances take 2 to 4 min"
    ),
    f"ensure-node-group {TRAINING_NODE_GROUP}": Duration(
        300, 900, "awsome-distributed-ai, EKS templates: GPU node groups take 5 to 15 min more"
    ),
    "ensure-file-system": Duration(
        300, 720, "FSx for Lustre, CREATING to AVAILABLE: 5 to 12 min (aws-do-eks waits as long)"
    ),
    "install-plugin": _PLUGIN,
    "run-check": _LOOK,
    "run-check storage": Duration(
        60, 600, "awsome-distributed-ai's CI gives pods 10 min to pull the image and be ready"
    ),
    "run-check network": Duration(
        100,
        690,
        "the image, as for storage, then imports, rendezvous and half a minute of messages",
    ),
    "conclude-cluster": _ONE_CALL,
}
# What scripts do at once and the state machines do not: the work that it stands for is left out.
SCRIPTS_CLUSTER: Final = Duration(
    900, 1800, "awsome-distributed-ai, EKS templates: creation with network and system nodes"
)
_IN_SCRIPTS_CLUSTER: Final = ("ensure-cluster", f"ensure-node-group {SYSTEM_NODE_GROUP}")


def measure_critical_path() -> list[Figure]:
    """Measure the way to the first step against what scripts take, and against a sequence.

    Prints the table of durations and the critical path.
    """
    _print_durations()
    figures = []
    for name, (seconds, scripts_cluster_s) in _choices().items():
        way, in_sequence_s = compare(seconds)
        scripts_s = in_sequence_s + scripts_cluster_s
        scripts_s -= sum(seconds[work] for work in _IN_SCRIPTS_CLUSTER)
        is_middle = name == "middle"
        if is_middle:
            _print_path(way)
        for other, other_s in (
            ("scripts", scripts_s),
            ("the same work in sequence", in_sequence_s),
        ):
            figures.append(
                Figure(
                    name=f"critical path and {other}, {name} durations",
                    value=way.ended_s / other_s,
                    unit="of the sum",
                    target=AtMost(TARGET) if is_middle and other == "scripts" else None,
                    note=f"{way.ended_s / 60:.1f} of {other_s / 60:.1f} min",
                )
            )
    return figures


def compare(seconds: Mapping[str, float]) -> tuple[Walk, float]:
    """Return the way from a request to its first step, and the seconds of all its work in sequence.

    `seconds` has a duration for each key of DURATIONS.
    """
    spec = _spec()
    names = {"plugins": plugins.names_for(spec), "checks": checks.names_for(spec)}

    def work_s(work: str) -> float:
        function = work.split(maxsplit=1)[0]
        if work not in seconds and function not in seconds:
            raise LookupError(f'no duration for "{work}": add one to bench/critical_path.py')
        return seconds.get(work, seconds.get(function, 0.0))

    pace = Pace(work_s=work_s, call_s=_CALL_S)
    cluster = walk(_machine("cluster"), names, pace=pace)
    made = cluster.ended_s
    run_pace = Pace(
        work_s=lambda work: made if work == "acquire-cluster" else work_s(work), call_s=_CALL_S
    )
    run = walk(_machine("train"), {}, pace=run_pace, until="AwaitJob")
    waited = next(each for each in run.path if each.work == "acquire-cluster")
    inside = [
        replace(each, began_s=each.began_s + waited.began_s, ended_s=each.ended_s + waited.began_s)
        for each in cluster.path
    ]
    at = run.path.index(waited)
    run.path[at : at + 1] = inside
    works = [*cluster.works, *(each for each in run.works if each != waited.work)]
    return run, sum(work_s(each) for each in works)


def _choices() -> dict[str, tuple[dict[str, float], float]]:
    """Choose by name a duration for each work, and that of the scripts' cluster."""

    def chosen(end: Callable[[Duration], float]) -> tuple[dict[str, float], float]:
        return {work: end(each) for work, each in DURATIONS.items()}, end(SCRIPTS_CLUSTER)

    return {
        "shortest": chosen(lambda each: each.low_s),
        "middle": chosen(lambda each: each.middle_s),
        "longest": chosen(lambda each: each.high_s),
    }


def _spec() -> ClusterSpec:
    return spec_for(get_recipe("llama2-7b"), nodes=2, instance_type="p4d.24xlarge")


def _machine(name: str) -> dict[str, Any]:
    text = (_MACHINES / f"{name}.asl.json").read_text()
    machine: dict[str, Any] = json.loads(text)
    return machine


def _print_durations() -> None:
    print("  durations, s")
    for work, each in {**DURATIONS, "scripts' cluster": SCRIPTS_CLUSTER}.items():
        if each.high_s:
            print(f"    {work:<28} {each.low_s:>4g} to {each.high_s:>4g}  {each.source}")


def _print_path(way: Walk) -> None:
    print("  critical path, middle durations, s")
    for each in way.path:
        if each.ended_s - each.began_s > _CALL_S:
            print(f"    {each.work:<28} {each.began_s:>6.0f} to {each.ended_s:>6.0f}")

"""What is known of a run when it is compared with others, and what differs. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from stationmaster.domain.errors import UserError
from stationmaster.domain.keys.registry import typed_options
from stationmaster.domain.keys.run_name import RUN_NAME
from stationmaster.domain.results import ResultManifest
from stationmaster.domain.run.request import Placement, TrainingRequest

NOT_SET = "-"


@dataclass(frozen=True)
class Facts:
    """What is known of one run, by the names of keys."""

    asked: Mapping[str, str]
    """Keys that were typed, and machines; one that is missing was not typed."""
    known: Mapping[str, str]
    """Every key of its training, and what its manifest says; one that is missing is not known."""


def facts_of(
    request: TrainingRequest, placement: Placement, manifest: ResultManifest | None = None
) -> Facts:
    """Return what is known of a run; without its manifest only what it was asked for."""
    asked = {"recipe": request.recipe, **typed_options(request)}
    asked |= {"nodes": request.node_words, "instance": placement.instance_type}
    asked.pop(RUN_NAME.name, None)
    if request.cluster_id is not None:
        asked["on"] = request.cluster_id
    try:
        training = request.resolved.training.model_dump()
    except UserError:  # a recipe or a key of an earlier version
        training = request.overrides
    known = {key: str(value) for key, value in training.items()}
    if manifest is not None:
        known |= {"nodes it ran on": str(placement.nodes), "image": manifest.image}
        known |= {"seed": str(manifest.seed), "data": manifest.data}
        known |= {_version(name): version for name, version in manifest.versions.items()}
    return Facts(asked, known)


def _version(library: str) -> str:
    return "code" if library == "code" else f"version of {library}"


def differences(runs: Sequence[Facts]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each name whose values differ, with that of each run; what is not known is left out."""
    for name in dict.fromkeys(name for run in runs for name in run.asked):
        values = tuple(run.asked.get(name, NOT_SET) for run in runs)
        if len(set(values)) > 1:
            yield name, values
    for name in runs[0].known:
        if all(name in run.known for run in runs):
            values = tuple(run.known[name] for run in runs)
            if len(set(values)) > 1:
                yield name, values

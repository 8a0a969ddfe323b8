"""What is known of runs that are compared, what differs, and a study's speeds. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from statistics import median

from stationmaster.domain.errors import UserError
from stationmaster.domain.keys.registry import typed_options
from stationmaster.domain.keys.run_name import RUN_NAME
from stationmaster.domain.results import ResultManifest
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.recoveries import step_size
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


@dataclass(frozen=True)
class Measured:
    """One run; None for what nothing says."""

    nodes: int
    samples_per_s: float | None
    """The median of its newest lines, those of the first steps left out."""
    tokens_per_s: float | None
    of_linear: float | None
    """Samples a second and node, as a part of those of the run on the fewest nodes."""
    usd_per_million: float | None
    """USD of its nodes for a million tokens; of samples, where it has no tokens."""
    target: timedelta | None
    """How long it trains, by that speed, until its loss is first at the target."""
    target_usd: float | None


@dataclass(frozen=True)
class Study:
    """All runs of one, in their order."""

    runs: tuple[Measured, ...]
    target_loss: float | None
    """In nats, the lowest that every one of them has reached; None where one has no loss."""


def study_of(runs: Sequence[Run]) -> Study:
    """Measure runs against the one on the fewest nodes, the first of several such."""
    speeds = [median(run.speeds.samples_per_s or (0,)) for run in runs]
    base = min(range(len(runs)), key=lambda place: runs[place].placement.nodes)
    lowest = [min((loss for _, loss in run.loss_points), default=None) for run in runs]
    losses = [loss for loss in lowest if loss is not None]
    target = max(losses) if len(losses) == len(runs) else None
    a_node = speeds[base] / runs[base].placement.nodes
    rows = [_measured(run, speed, a_node, target) for run, speed in zip(runs, speeds, strict=True)]
    return Study(tuple(rows), target)


def _measured(run: Run, speed: float, a_node: float, target: float | None) -> Measured:
    nodes, (samples, tokens) = run.placement.nodes, step_size(run)
    token_speed = tokens / samples * speed if tokens and samples else None
    usd_per_s = run.price_per_hour_usd / 3600
    step = next((at for at, loss in run.loss_points if target is not None and loss <= target), None)
    seconds = step * samples / speed if step is not None and samples and speed else None
    unit = token_speed or speed
    return Measured(
        nodes=nodes,
        samples_per_s=speed or None,
        tokens_per_s=token_speed or (run.progress.tokens_per_s if run.progress else None),
        of_linear=speed / nodes / a_node if speed and a_node else None,
        usd_per_million=usd_per_s / unit * 1e6 if unit else None,
        target=None if seconds is None else timedelta(seconds=seconds),
        target_usd=None if seconds is None else seconds * usd_per_s,
    )

"""`/train resume`, `/train rerun`: the words that stand for a run, and what is typed over them."""

from __future__ import annotations

from collections.abc import Mapping

from stationmaster.domain.catalogue.recipes import PRESET
from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.ids import RunId
from stationmaster.domain.keys.eks_cluster import CLUSTER
from stationmaster.domain.keys.file_system import FILE_SYSTEM, FILE_SYSTEM_TYPE, is_size
from stationmaster.domain.keys.job_options import PRIORITY_CLASS, QUEUE
from stationmaster.domain.keys.kept_cluster import ALONE, ON
from stationmaster.domain.keys.machines import INSTANCE, NODES
from stationmaster.domain.keys.names import START_KEYS, key_meant
from stationmaster.domain.keys.questions import AskedRun, SavedRun
from stationmaster.domain.keys.registry import typed_options
from stationmaster.domain.keys.resume_from import RESUME_FROM
from stationmaster.domain.keys.run_name import RUN_NAME
from stationmaster.domain.results import ResultManifest
from stationmaster.domain.run.request import Placement, TrainingRequest

_STORAGE_KEYS = (FILE_SYSTEM.name, FILE_SYSTEM_TYPE.name)
# They are about the cluster that is named with them.
_QUEUE_KEYS = (QUEUE.name, PRIORITY_CLASS.name)


def saved_run(
    run_id: RunId, request: TrainingRequest, placement: Placement, manifest: ResultManifest
) -> SavedRun:
    """Return a run that has ended; `placement` is that of its last attempt."""
    return SavedRun(
        run_id=run_id,
        recipe=request.recipe,
        model=request.model,
        resolved=request.resolved,
        program=request.program,
        nodes=placement.nodes,
        instance_type=placement.instance_type,
        manifest=manifest,
        words=_resumed_words(request, placement),
    )


def _resumed_words(request: TrainingRequest, placement: Placement) -> dict[str, str]:
    typed = typed_options(request)
    is_range = request.min_nodes is not None
    words = {
        NODES.name: typed[NODES.name] if is_range else str(placement.nodes),
        INSTANCE.name: placement.instance_type,
        **request.overrides,
        **{key: value for key, value in typed.items() if START_KEYS[key].is_resumed},
    }
    if is_size(words.get(FILE_SYSTEM.name, "")):
        del words[FILE_SYSTEM.name]  # the longer run may need another one
    if CLUSTER.name not in words:
        words = {key: value for key, value in words.items() if key not in _QUEUE_KEYS}
    resolved = request.resolved.training
    # A warm-up is no longer than its run: the longer run must not have a longer one.
    if resolved.warmup_steps == resolved.steps:
        words.setdefault("warmup_steps", str(resolved.warmup_steps))
    return words


def continued_words(
    saved: SavedRun, typed: Mapping[str, str], *, at: str, cluster: Cluster | None
) -> list[str]:
    """Return the key=value words of `/train resume`: the run's own, with what was typed over them.

    Args:
        at: "@STEP" where that was typed.
        cluster: the one that `on=` names; its machines stand for those of the run.
    """
    words = _typed_over(saved, typed, cluster) | {RESUME_FROM.name: f"{saved.run_id}{at}"}
    return [f"{key}={value}" for key, value in words.items()]


def asked_run(run_id: RunId, request: TrainingRequest) -> AskedRun:
    """Return a run as it was asked for, whatever has become of it."""
    words = {**typed_options(request), **request.overrides}
    words.pop(RUN_NAME.name, None)  # a name is one run's
    is_typed = FILE_SYSTEM.name in request.command or not request.brings_data
    if is_size(words.get(FILE_SYSTEM.name, "")) and not is_typed:
        del words[FILE_SYSTEM.name]  # the plan chose it, and chooses it again
    if request.goes_with_study:
        words.pop(ALONE.name, None)  # it gets a cluster of its own
    elif request.cluster_id is not None:
        words[ON.name] = request.cluster_id
    return AskedRun(
        run_id=run_id,
        recipe=request.recipe,
        model=request.model,
        nodes=request.nodes,
        words=words,
    )


def repeated_words(
    asked: AskedRun, typed: Mapping[str, str], *, cluster: Cluster | None
) -> list[str]:
    """Return the key=value words of `/train rerun`: what the run was asked for, typed keys over it.

    Args:
        cluster: the one that `on=` names; its machines stand for those of the run.
    """
    words = _typed_over(asked, typed, cluster)
    if PRESET in typed:  # of another size, on machines of its own
        for key in (NODES.name, INSTANCE.name):
            words = {each: value for each, value in words.items() if each != key or key in typed}
    return [f"{key}={value}" for key, value in words.items()]


def _typed_over(
    asked: AskedRun, typed: Mapping[str, str], cluster: Cluster | None
) -> dict[str, str]:
    kept = dict(asked.words)
    if cluster is not None:
        kept.pop(INSTANCE.name, None)
        for key in (*_STORAGE_KEYS, CLUSTER.name, *_QUEUE_KEYS):
            kept.pop(key, None)
        least, is_range, _ = kept[NODES.name].partition(":")
        if not is_range or int(least) > cluster.spec.nodes:
            kept[NODES.name] = str(min(asked.nodes, cluster.spec.nodes))
    # The one key of the file system is no mistyped form of the other, which may be kept alone.
    if any(
        key_meant(key, _STORAGE_KEYS) == FILE_SYSTEM.name and not is_size(value)
        for key, value in typed.items()
    ):
        kept.pop(FILE_SYSTEM_TYPE.name, None)  # one that exists has a type
    # A mistyped key is corrected later: it must not meet the one that it means.
    meant = {key_meant(key, (*kept, *_STORAGE_KEYS)) for key in typed}
    for length, other in (("steps", "epochs"), ("epochs", "steps")):
        if length in (*typed, *meant):
            kept.pop(other, None)
    kept = {key: value for key, value in kept.items() if key not in meant}
    return kept | dict(typed)

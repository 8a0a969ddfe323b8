"""The command that was meant by one that is refused: it works when it is pasted.

The grammar calls this for a start and for a plan; what stands is asked of `parameters`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from stationmaster.domain.catalogue.instances import CATALOGUE as INSTANCES
from stationmaster.domain.catalogue.recipes import PRESET, SMOKE, Recipe
from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.commands.backing_up import BACKUP_EVERY, backup_meant
from stationmaster.domain.commands.capacity import (
    CAPACITY,
    FindReservation,
    capacity_meant,
    no_reservations,
)
from stationmaster.domain.commands.durations import respelled
from stationmaster.domain.commands.hosting import (
    CLUSTER,
    FindEksCluster,
    host_meant,
    no_eks_clusters,
)
from stationmaster.domain.commands.job_options import JOB_KEYS
from stationmaster.domain.commands.joining import FindCluster, keep_meant, no_clusters
from stationmaster.domain.commands.meanings import key_meant
from stationmaster.domain.commands.node_range import range_meant
from stationmaster.domain.commands.own_code import COMMAND, IMAGE, OwnCodeRules
from stationmaster.domain.commands.parameters import key_typed, read_values
from stationmaster.domain.commands.pushing import PUSH_TO
from stationmaster.domain.commands.resuming import RESUME_FROM, FindSaved, no_results
from stationmaster.domain.commands.storing import (
    FILE_SYSTEM,
    FILE_SYSTEM_TYPE,
    FindFileSystem,
    no_file_systems,
    storage_meant,
    type_meant,
)
from stationmaster.domain.commands.table import key_names
from stationmaster.domain.commands.validating import VALIDATE, level_meant
from stationmaster.domain.datasets import read_shared_path
from stationmaster.domain.errors import UserError
from stationmaster.domain.spelling import nearest, typed_word

# Where no other value is beyond doubt: another cluster, another run, other checks.
_WITHOUT_DEFAULT: Final = (
    "on",
    CAPACITY,
    CLUSTER,
    PUSH_TO,
    RESUME_FROM,
    FILE_SYSTEM,
    FILE_SYSTEM_TYPE,
    VALIDATE,
    *JOB_KEYS,
)


def corrected(
    recipe: Recipe,
    pairs: Sequence[str],
    *,
    prefix: str,
    find_cluster: FindCluster = no_clusters,
    find_saved: FindSaved = no_results,
    find_file_system: FindFileSystem = no_file_systems,
    find_eks_cluster: FindEksCluster = no_eks_clusters,
    find_reservation: FindReservation = no_reservations,
    own_code: OwnCodeRules | None = None,
) -> str:
    """A command that works and is as near as possible to what was typed.

    Each word is kept if the command stands with it, replaced by its nearest valid form if not, and
    left out as the last resort, so the suggestion never fails when pasted. Where a value had to be
    chosen or a word left out it is a plan, which costs nothing: without budget=5, or with other
    machines, a start could cost more than was typed.
    """

    def stands(words: Sequence[str]) -> bool:
        try:
            read_values(
                words,
                recipe,
                find_cluster=find_cluster,
                find_saved=find_saved,
                find_file_system=find_file_system,
                find_eks_cluster=find_eks_cluster,
                find_reservation=find_reservation,
                own_code=own_code,
            )
        except UserError:
            return False
        return True

    spelled = [_candidates(word, recipe, None)[1:2] for word in pairs[:20]]
    together = [each for words in spelled for each in words]
    if len(together) == len(pairs) and stands(together):
        return " ".join([f"/train {prefix}{recipe.name}", *map(typed_word, together)])
    kept: list[str] = []
    # The preset first, then the cluster: they decide what else stands, and what a run costs.
    ordered = sorted(pairs[:20], key=_weight)
    is_as_typed = len(pairs) == len(ordered)
    cluster: Cluster | None = None
    for word in ordered:
        *spellings, default = _candidates(word, recipe, cluster)
        found = next((each for each in spellings if stands([*kept, each])), None)
        if _lies_nowhere(word, kept):
            found, default = None, ""
        is_as_typed = is_as_typed and found is not None
        if found is None and default and stands([*kept, default]):
            found = default
        kept += [found] if found else []
        if found and found.startswith("on="):
            cluster = find_cluster(found.removeprefix("on="))
    words = map(typed_word, kept)
    return " ".join([f"/train {prefix if is_as_typed else 'plan '}{recipe.name}", *words])


def _lies_nowhere(word: str, kept: Sequence[str]) -> bool:
    """Whether a word names data on a file system that is new and empty."""
    key, _, value = word.partition("=")
    if key != "dataset" or read_shared_path(value) is None:
        return False
    return not any(each.startswith((f"{FILE_SYSTEM}=fs-", "on=")) for each in kept)


def _weight(word: str) -> int:
    """What a word needs comes before it: a checkpoint fits or not by all keys but the steps."""
    key, _, value = word.partition("=")
    if key == "steps" and value.startswith("+"):
        return 5
    ranks = {
        PRESET: 0,
        "on": 1,
        COMMAND: 1,
        FILE_SYSTEM: 2,
        CLUSTER: 4,
        CAPACITY: 4,
        RESUME_FROM: 4,
    }
    return ranks.get(key, 3)


def _candidates(word: str, recipe: Recipe, cluster: Cluster | None) -> list[str]:
    """The word, the same in another spelling, and last its key with the default; "" without one."""
    key, _, value = word.partition("=")
    close = key_meant(key_typed(key), key_names(recipe))
    if close is None:
        return [""]
    choice = nearest(value, [SMOKE]) if close == PRESET else None
    choice = respelled(value) if close in ("keep", BACKUP_EVERY) else choice
    choice = storage_meant(value) if close == FILE_SYSTEM else choice
    choice = type_meant(value) if close == FILE_SYSTEM_TYPE else choice
    choice = range_meant(value) if close == "nodes" else choice
    choice = host_meant(value) if close == CLUSTER else choice
    choice = capacity_meant(value) if close == CAPACITY else choice
    choice = level_meant(value) if close == VALIDATE else choice
    spellings = [word, f"{close}={value}", f"{close}={choice or value.lower()}"]
    if close in _WITHOUT_DEFAULT:
        return [*spellings, ""]  # no other cluster, run or file system is meant
    if close in (IMAGE, COMMAND):
        return [*spellings[:2], spellings[1], ""]  # nor another program
    return [*spellings, f"{close}={_default(close, recipe, value, cluster)}"]


def _default(key: str, recipe: Recipe, value: str, cluster: Cluster | None) -> object:
    if key == "nodes":
        most = cluster.spec.nodes if cluster is not None else recipe.default_nodes
        return min(recipe.default_nodes, most)
    if key == "instance":
        near = None if value in INSTANCES else nearest(value, INSTANCES)
        usual = cluster.spec.instance_type if cluster is not None else recipe.default_instance
        return usual if cluster is not None else near or usual
    if key == PRESET:
        return SMOKE
    if key == "keep":
        return keep_meant(value)
    if key == BACKUP_EVERY:
        return backup_meant(value)
    return getattr(recipe.training, key)

"""The key=value words after a recipe: read, checked, and corrected where they are wrong.

The grammar calls this for a start and for a plan; it knows nothing of subcommands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stationmaster.domain.catalogue.instances import CATALOGUE as INSTANCES
from stationmaster.domain.catalogue.recipes import PRESET, SMOKE, Recipe
from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.cluster.spec import with_file_system
from stationmaster.domain.commands.backing_up import (
    BACKUP_EVERY,
    backup_meant,
    plan_with_backups,
    read_backup_every,
)
from stationmaster.domain.commands.durations import respelled
from stationmaster.domain.commands.hosting import (
    CLUSTER,
    FindEksCluster,
    host_meant,
    no_eks_clusters,
    plan_with_host,
    read_host,
    refuse_with_on,
    refuse_without_file_system,
)
from stationmaster.domain.commands.joining import (
    FindCluster,
    fitted,
    keep_meant,
    no_clusters,
    plan_with_notes,
    read_keep,
    refuse_more_nodes,
    refuse_other_machines,
    shared_cluster,
)
from stationmaster.domain.commands.meanings import (
    key_meant,
    planned_key_meant,
    refuse_mistyped_keys,
)
from stationmaster.domain.commands.node_range import TypedNodes, range_meant, read_nodes
from stationmaster.domain.commands.own_code import (
    COMMAND,
    IMAGE,
    OwnCode,
    OwnCodeRules,
    plan_with_own_code,
    read_own_code,
    refuse_etcd,
    refuse_idle_keys,
    refuse_unread_data,
)
from stationmaster.domain.commands.pushing import PUSH_TO, plan_with_push, read_push_to
from stationmaster.domain.commands.resuming import (
    RESUME_FROM,
    FindSaved,
    Returning,
    no_results,
    plan_with_returning,
    read_returning,
    refuse_unfit,
)
from stationmaster.domain.commands.storing import (
    FILE_SYSTEM,
    FindFileSystem,
    Storage,
    no_file_systems,
    plan_with_storage,
    read_storage,
    refuse_no_room,
    refuse_with_cluster,
    storage_meant,
    with_size,
)
from stationmaster.domain.commands.table import PLANNED_KEYS, key_names
from stationmaster.domain.datasets import Listing, read_shared_path
from stationmaster.domain.errors import BadCommand, NotAvailable, UserError
from stationmaster.domain.ids import ClusterId
from stationmaster.domain.planning.plan import Plan, plan_recipe
from stationmaster.domain.planning.unknown_program import plan_of_program
from stationmaster.domain.spelling import nearest, typed_word


@dataclass(frozen=True)
class Values:
    """What was typed, None where the recipe's default applies, and what it amounts to."""

    nodes: int | None
    min_nodes: int | None
    instance_type: str | None
    overrides: dict[str, str]
    on: str | None
    keep_s: int
    storage: Storage
    eks_name: str
    backup_every_s: int | None
    push_to: str
    resolved: Recipe
    plan: Plan
    cluster_id: ClusterId | None
    returning: Returning
    own: OwnCode


def read_values(
    words: Sequence[str],
    recipe: Recipe,
    *,
    find_cluster: FindCluster = no_clusters,
    find_saved: FindSaved = no_results,
    find_file_system: FindFileSystem = no_file_systems,
    find_eks_cluster: FindEksCluster = no_eks_clusters,
    own_code: OwnCodeRules | None = None,
    listing: Listing | None = None,
) -> Values:
    """Read and check the words after a recipe.

    `find_cluster` is called for on=CLUSTER only, `find_saved` for resume_from= and for weights=
    that name a run, `find_file_system` for file_system=fs-... only, `find_eks_cluster` for
    cluster=eks:NAME only. `own_code` is what image= and command= may be in the channel. `listing`
    is what S3 says of the data set, where that has been asked.

    Raises:
        UserError: one sentence that names the value and what was expected.
    """
    values = read_pairs(words)
    _refuse_planned_keys(values, recipe)
    typed = read_nodes(values.pop("nodes", None), maximum=_most_nodes(recipe, values))
    instance_type = values.pop("instance", None)
    on, keep_s = values.pop("on", None), read_keep(values.pop("keep", None))
    own = read_own_code(values, own_code)
    refuse_idle_keys(own, {BACKUP_EVERY, PUSH_TO} & values.keys())
    backup_every_s = read_backup_every(values.pop(BACKUP_EVERY, None))
    push_to = read_push_to(values.pop(PUSH_TO, None))
    cluster = find_cluster(on) if on is not None else None
    storage = read_storage(values.pop(FILE_SYSTEM, None), find_file_system=find_file_system)
    eks_name = read_host(values.pop(CLUSTER, None), find_eks_cluster=find_eks_cluster)
    if on is not None:
        refuse_with_on(eks_name, on)
        refuse_with_cluster(storage, on)
    refuse_without_file_system(eks_name, storage.existing)
    refuse_mistyped_keys(recipe, values)
    refuse_idle_keys(own, values)
    refuse_unread_data(own, values.get("dataset", ""))
    returning = read_returning(values, find_saved=find_saved)
    # Planning holds every other rule, so a bad value is refused here and not after a creation.
    resolved = with_size(recipe.with_overrides(values), storage)
    if storage.existing is not None:
        resolved = with_file_system(resolved, storage.existing)
    refuse_unfit(returning, resolved)
    refuse_etcd(own, resolved.training.rendezvous)
    planned = returning.planned(resolved)
    if cluster is None:
        plan = plan_recipe(
            planned,
            nodes=typed.most,
            min_nodes=typed.least,
            instance_type=instance_type,
            listing=listing,
            restored_bytes=returning.num_bytes,
            trains=not own.program,
        )
        refuse_no_room(storage, plan)
        whole = 0.0 if eks_name else plan.price_per_hour_usd
    else:
        refuse_other_machines(cluster, instance_type)
        refuse_more_nodes(cluster, typed.most if typed.least is None else typed.least)
        plan = _plan_on(
            cluster,
            planned,
            typed=typed,
            listing=listing,
            restored_bytes=returning.num_bytes,
            trains=not own.program,
        )
        whole = cluster.spec.price_per_hour_usd
    plan = plan_of_program(plan) if own.program else plan
    plan = plan_with_notes(plan, cluster=cluster, keep_s=keep_s, whole=whole)
    plan = plan if own.program else plan_with_backups(plan, backup_every_s)
    plan = plan_with_push(plan, push_to)
    plan = plan_with_returning(plan, returning, resolved)
    plan = plan_with_host(plan_with_storage(plan, storage, is_guest=bool(eks_name)), eks_name)
    plan = plan_with_own_code(plan, own)
    return Values(
        nodes=typed.most,
        min_nodes=typed.least,
        instance_type=instance_type,
        overrides=values,
        on=on,
        keep_s=keep_s,
        storage=storage,
        eks_name=eks_name,
        backup_every_s=backup_every_s,
        push_to=push_to,
        resolved=resolved,
        plan=plan,
        cluster_id=cluster.cluster_id if cluster is not None else None,
        returning=returning,
        own=own,
    )


def _plan_on(
    cluster: Cluster,
    recipe: Recipe,
    *,
    typed: TypedNodes,
    listing: Listing | None,
    restored_bytes: int,
    trains: bool,
) -> Plan:
    """The plan of a run that uses a cluster: its machines, and at most its nodes."""
    most = min(typed.most or recipe.default_nodes, cluster.spec.nodes)
    return plan_recipe(
        fitted(recipe, cluster),
        nodes=most,
        min_nodes=typed.least if typed.least != most else None,
        instance_type=cluster.spec.instance_type,
        shared=shared_cluster(cluster),
        listing=listing,
        restored_bytes=restored_bytes,
        trains=trains,
    )


def read_pairs(words: Sequence[str]) -> dict[str, str]:
    """Read key=value words, whatever the keys.

    Raises:
        BadCommand: a word is no pair, or a key is there twice.
    """
    values: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        key = _key(key)
        if not equals or not key:
            raise BadCommand(f'expected key=value, got "{shorten(word)}"')
        if not value:
            raise BadCommand(f"{shorten(key)}= has no value; write {shorten(key)}=VALUE")
        if key in values:
            raise BadCommand(f"{shorten(key)} is given twice; keep one")
        values[key] = value
    return values


def _key(typed: str) -> str:
    return typed.lstrip("-").lower().replace("-", "_")


def _most_nodes(recipe: Recipe, values: Mapping[str, str]) -> int:
    """A preset has machines of its own; a preset that is not known is refused by the plan."""
    preset = {key: value for key, value in values.items() if key == PRESET}
    return recipe.with_overrides(preset).max_nodes


def _refuse_planned_keys(values: Mapping[str, str], recipe: Recipe) -> None:
    for key in values:
        if (planned := planned_key_meant(key, key_names(recipe))) is not None:
            name = f"{planned}=" if key == planned else f'"{shorten(key)}": {planned}='
            today = PLANNED_KEYS[planned].today
            raise NotAvailable(f"{name} is not available in this version; {today}")


def corrected(
    recipe: Recipe,
    pairs: Sequence[str],
    *,
    prefix: str,
    find_cluster: FindCluster = no_clusters,
    find_saved: FindSaved = no_results,
    find_file_system: FindFileSystem = no_file_systems,
    find_eks_cluster: FindEksCluster = no_eks_clusters,
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
    ranks = {PRESET: 0, "on": 1, COMMAND: 1, FILE_SYSTEM: 2, CLUSTER: 4, RESUME_FROM: 4}
    return ranks.get(key, 3)


def _candidates(word: str, recipe: Recipe, cluster: Cluster | None) -> list[str]:
    """The word, the same in another spelling, and last its key with the default; "" without one."""
    key, _, value = word.partition("=")
    close = key_meant(_key(key), key_names(recipe))
    if close is None:
        return [""]
    choice = nearest(value, [SMOKE]) if close == PRESET else None
    choice = respelled(value) if close in ("keep", BACKUP_EVERY) else choice
    choice = storage_meant(value) if close == FILE_SYSTEM else choice
    choice = range_meant(value) if close == "nodes" else choice
    choice = host_meant(value) if close == CLUSTER else choice
    spellings = [word, f"{close}={value}", f"{close}={choice or value.lower()}"]
    if close in ("on", CLUSTER, PUSH_TO, RESUME_FROM, FILE_SYSTEM):
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


def shorten(text: str, limit: int = 80) -> str:
    """Repeat no more of what was typed than a sentence bears."""
    return text if len(text) <= limit else text[: limit - 3] + "..."

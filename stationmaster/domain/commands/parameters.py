"""The key=value words after a recipe: read and checked.

The grammar calls this for a start and for a plan; it knows nothing of subcommands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stationmaster.domain.catalogue.recipes import PRESET, Recipe
from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.cluster.spec import Reservation, with_file_system
from stationmaster.domain.commands.backing_up import (
    BACKUP_EVERY,
    plan_with_backups,
    read_backup_every,
)
from stationmaster.domain.commands.capacity import (
    CAPACITY,
    FindReservation,
    no_reservations,
    plan_with_capacity,
    read_capacity,
    reservation_of,
    reserved_type,
)
from stationmaster.domain.commands.frameworks import (
    refuse_own_trainers_keys,
    refuse_own_trainers_model,
)
from stationmaster.domain.commands.hosting import (
    CLUSTER,
    FindEksCluster,
    no_eks_clusters,
    plan_with_host,
    read_host,
    refuse_with_on,
    refuse_without_file_system,
)
from stationmaster.domain.commands.job_options import (
    plan_with_job_options,
    read_job_options,
    refuse_with_own_code,
    refuse_without_cluster,
)
from stationmaster.domain.commands.joining import (
    FindCluster,
    fitted,
    no_clusters,
    plan_with_notes,
    read_keep,
    refuse_full_queue,
    refuse_more_nodes,
    refuse_other_machines,
    shared_cluster,
)
from stationmaster.domain.commands.meanings import (
    planned_key_meant,
    refuse_mistyped_keys,
)
from stationmaster.domain.commands.node_range import TypedNodes, read_nodes
from stationmaster.domain.commands.own_code import (
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
    FindSaved,
    Returning,
    no_results,
    plan_with_returning,
    read_returning,
    refuse_unfit,
)
from stationmaster.domain.commands.storing import (
    FILE_SYSTEM,
    FILE_SYSTEM_TYPE,
    FindFileSystem,
    Storage,
    no_file_systems,
    plan_with_storage,
    read_storage,
    refuse_no_room,
    refuse_with_cluster,
    with_size,
)
from stationmaster.domain.commands.table import PLANNED_KEYS, key_names
from stationmaster.domain.commands.validating import (
    VALIDATE,
    plan_with_validation,
    read_validate,
    refuse_full_with_on,
)
from stationmaster.domain.datasets import Listing
from stationmaster.domain.errors import BadCommand, NotAvailable
from stationmaster.domain.ids import ClusterId
from stationmaster.domain.planning.plan import Plan, plan_recipe
from stationmaster.domain.planning.unknown_program import plan_of_program
from stationmaster.domain.run.request import JobOptions


@dataclass(frozen=True)
class Values:
    """What was typed, None where the recipe's default applies, and what it amounts to."""

    nodes: int | None
    min_nodes: int | None
    instance_type: str | None
    overrides: dict[str, str]
    on: str | None
    keep_s: int
    is_full: bool
    storage: Storage
    reservation: Reservation | None
    is_spot: bool
    eks_name: str
    backup_every_s: int | None
    push_to: str
    resolved: Recipe
    plan: Plan
    cluster_id: ClusterId | None
    returning: Returning
    own: OwnCode
    job_options: JobOptions


def read_values(
    words: Sequence[str],
    recipe: Recipe,
    *,
    find_cluster: FindCluster = no_clusters,
    find_saved: FindSaved = no_results,
    find_file_system: FindFileSystem = no_file_systems,
    find_eks_cluster: FindEksCluster = no_eks_clusters,
    find_reservation: FindReservation = no_reservations,
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
    is_full = read_validate(values.pop(VALIDATE, None))
    typed_keys = frozenset(values)
    own = read_own_code(values, own_code)
    job_options = read_job_options(values)
    refuse_with_own_code(job_options, image=own.image, program=own.program)
    refuse_idle_keys(own, {BACKUP_EVERY, PUSH_TO} & values.keys())
    backup_every_s = read_backup_every(values.pop(BACKUP_EVERY, None))
    push_to = read_push_to(values.pop(PUSH_TO, None))
    cluster = find_cluster(on) if on is not None else None
    storage = read_storage(
        values.pop(FILE_SYSTEM, None),
        values.pop(FILE_SYSTEM_TYPE, None),
        find_file_system=find_file_system,
    )
    eks_name = read_host(values.pop(CLUSTER, None), find_eks_cluster=find_eks_cluster)
    capacity = read_capacity(values.pop(CAPACITY, None), find_reservation=find_reservation)
    instance_type = reserved_type(
        capacity,
        instance_type=instance_type,
        on=on,
        eks_name=eks_name,
        zone=storage.found.zone if storage.found is not None else None,
        keep_s=keep_s,
    )
    if on is not None:
        refuse_with_on(eks_name, on)
        refuse_full_with_on(on, is_full=is_full)
        refuse_with_cluster(storage, on)
    if find_eks_cluster is not no_eks_clusters:
        # Where no cluster can be named, as on the command line, what is rendered may be for any.
        refuse_without_cluster(job_options, on=on, eks_name=eks_name)
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
    if not own.program:
        refuse_own_trainers_keys(resolved, typed_keys)
        refuse_own_trainers_model(resolved, values.get("weights", ""), returning.weights_from)
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
            source=capacity.source,
        )
        refuse_no_room(storage, plan)
        whole = 0.0 if eks_name else plan.price_per_hour_usd
    else:
        refuse_other_machines(cluster, instance_type)
        refuse_full_queue(cluster)
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
    plan = (
        plan
        if own.program or not resolved.uses_own_trainer
        else plan_with_backups(plan, backup_every_s)
    )
    plan = plan_with_push(plan, push_to)
    plan = plan_with_returning(plan, returning, resolved)
    plan = plan_with_host(plan_with_storage(plan, storage, is_guest=bool(eks_name)), eks_name)
    plan = plan_with_capacity(plan_with_own_code(plan, own), capacity)
    plan = plan_with_job_options(plan_with_validation(plan, is_full=is_full), job_options)
    return Values(
        nodes=typed.most,
        min_nodes=typed.least,
        instance_type=instance_type,
        overrides=values,
        on=on,
        keep_s=keep_s,
        is_full=is_full,
        storage=storage,
        reservation=reservation_of(capacity, plan),
        is_spot=capacity.is_spot,
        eks_name=eks_name,
        backup_every_s=backup_every_s,
        push_to=push_to,
        resolved=resolved,
        plan=plan,
        cluster_id=cluster.cluster_id if cluster is not None else None,
        returning=returning,
        own=own,
        job_options=job_options,
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
        key = key_typed(key)
        if not equals or not key:
            raise BadCommand(f'expected key=value, got "{shorten(word)}"')
        if not value:
            raise BadCommand(f"{shorten(key)}= has no value; write {shorten(key)}=VALUE")
        if key in values:
            raise BadCommand(f"{shorten(key)} is given twice; keep one")
        values[key] = value
    return values


def key_typed(typed: str) -> str:
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


def shorten(text: str, limit: int = 80) -> str:
    """Repeat no more of what was typed than a sentence bears."""
    return text if len(text) <= limit else text[: limit - 3] + "..."

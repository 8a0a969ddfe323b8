"""`file_system=`, `file_system_type=` and `storage=`: a new file system, or one that exists."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from stationmaster.domain.catalogue.recipes import Recipe
from stationmaster.domain.cluster.spec import FileSystemSpec, with_file_system
from stationmaster.domain.errors import BadCommand, BadParameter
from stationmaster.domain.keys import eks_cluster, kept_cluster
from stationmaster.domain.keys.key import Family, Key, Part, Start, Typed
from stationmaster.domain.keys.questions import FoundFileSystem
from stationmaster.domain.names import CLAIM_PREFIX, LABEL_GUESTS
from stationmaster.domain.planning.arrival import (
    SMALLEST_GIB,
    STEP_GIB,
    checkpoints_on_disk,
)
from stationmaster.domain.planning.cost import SCRATCH_MBPS_PER_TIB
from stationmaster.domain.planning.memory import GIB
from stationmaster.domain.planning.plan import Plan

# What a new one can be, with MB/s a TiB; the throughput decides the type of FSx.
_TYPES: Final[Mapping[str, int]] = {
    "scratch-200": SCRATCH_MBPS_PER_TIB,
    "persistent-125": 125,
    "persistent-250": 250,
    "persistent-500": 500,
    "persistent-1000": 1000,
}
# The largest multiple of STEP_GIB that is offered here.
_MAX_GIB: Final = 96_000

# Source: FSx API reference, FileSystemId: fs- and 8 or more hex digits. FSx makes 17 of them.
_ID: Final = re.compile(r"fs-[0-9a-f]{8,40}")
_HIDDEN_ID: Final = re.compile(r"(?:fs-)?([0-9a-f]{17}|[0-9a-f]{8})(?![0-9a-f])")
# A namespace, where it is not the default one, and a name. Source: Kubernetes, Object names.
_CLAIM: Final = re.compile(
    r"(?:(?P<namespace>[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?)/)?"
    r"(?P<name>[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?)"
)
# Source: FSx for Lustre user guide, Deployment options: scratch file systems.
_SCRATCH_NOTE: Final = (
    "file_system_type=scratch-200: FSx keeps no second copy of what is on it; what a failed "
    "server had is lost, and training starts again from the newest backup (backup_every=)"
)


def _id_meant(value: str) -> str | None:
    """Find the id in an ARN, an address, or in another spelling; None where there is none."""
    found = _HIDDEN_ID.search(value.lower())
    return f"fs-{found[1]}" if found else None


def gib_meant(value: str) -> str:
    """Return the largest size on offer that is no larger than what was typed; else the value."""
    if not (value.isascii() and value.isdigit()) or int(value[:9]) < SMALLEST_GIB:
        return value
    number = int(value[:9])
    whole = number // STEP_GIB * STEP_GIB or SMALLEST_GIB
    return str(min(whole, _MAX_GIB))


def _type_meant(value: str) -> str | None:
    """Find the type that FSx's own name or another spelling means; None where it means none."""
    spelled = value.lower().replace("_", "-")
    if spelled in ("scratch", "scratch-2"):
        return "scratch-200"
    spelled = spelled.replace("persistent-2-", "persistent-")
    return spelled if spelled in _TYPES else None


def _claim_meant(value: str) -> str | None:
    """Spell the claim as it is accepted; None where none is meant."""
    found = _CLAIM.fullmatch(value.lower().removeprefix(CLAIM_PREFIX))
    is_meant = CLAIM_PREFIX in value.lower() or not (_id_meant(value) or is_size(value))
    return f"{CLAIM_PREFIX}{found[0]}" if found and is_meant else None


FILE_SYSTEM: Final = Key(
    name="file_system",
    help="an FSx for Lustre file system that exists (fs-...), used and never deleted; or the GiB "
    "of a new one: 1200, or a multiple of 2400",
    meanings=("fs", "fsx", "file_system_id", "file_system_gib"),
    choices=("1200", "2400", "4800"),
    meant=lambda value: _id_meant(value) or gib_meant(value),
    turn=2,
    is_resumed=True,
    typed=lambda options: (
        str(options.file_system_gib or "")
        if options.file_system is None
        else ""
        if options.file_system.claim
        else options.file_system.existing_id
    ),
)
STORAGE: Final = Key(
    name="storage",
    help="of cluster=eks:..., a claim that its nodes share (ReadWriteMany), used and never "
    "deleted: pvc:NAME, or pvc:NAMESPACE/NAME",
    meanings=("pvc", "claim", "claim_name", "persistent_volume_claim"),
    meant=_claim_meant,
    turn=2,
    is_resumed=True,
    typed=lambda options: (
        options.file_system.existing_id
        if options.file_system is not None and options.file_system.claim
        else ""
    ),
)
FILE_SYSTEM_TYPE: Final = Key(
    name="file_system_type",
    help="of a new file system, its type with MB/s a TiB: scratch-200 is the cheapest and keeps no "
    "second copy, persistent-250 is usual with GPUs",
    meanings=("storage_type", "deployment_type", "fsx_type"),
    choices=tuple(_TYPES),
    meant=_type_meant,
    is_resumed=True,
    typed=lambda options: next(
        (name for name, at in _TYPES.items() if at == options.file_system_mbps_per_tib), ""
    ),
)


class Option(Part):
    """The file system that a run's own cluster has."""

    file_system_mbps_per_tib: int | None = None
    """MB/s a TiB of a new file system; None for the recipe's."""
    file_system_gib: int | None = None
    """The size of a file system of its own, typed or chosen by the plan; None for the recipe's."""
    file_system: FileSystemSpec | None = None
    """The file system that exists and that its own cluster uses; None for a new one."""

    def fit(self, recipe: Recipe) -> Recipe:
        """Return the recipe with this file system in place of its own."""
        if self.file_system is not None:
            return with_file_system(recipe, self.file_system)
        typed = {
            "file_system_gib": self.file_system_gib,
            "file_system_mbps_per_tib": self.file_system_mbps_per_tib,
        }
        return recipe.model_copy(
            update={key: value for key, value in typed.items() if value is not None}
        )


def read(typed: Typed) -> Option:
    """Read them, and ask about a file system that exists."""
    value, type_name = typed.get(FILE_SYSTEM), typed.get(FILE_SYSTEM_TYPE)
    if (claim := typed.get(STORAGE)) is not None:
        return _read_claim(claim, file_system=value, type_name=type_name)
    if type_name is not None and type_name not in _TYPES:
        raise BadCommand(
            f"file_system_type={type_name[:80]} is not accepted: expected {', '.join(_TYPES)}, a "
            "type of FSx for Lustre with its MB/s a TiB"
        )
    mbps_per_tib = _TYPES[type_name] if type_name is not None else None
    if value is None or is_size(value):
        gib = None if value is None else read_gib(value, key=FILE_SYSTEM.name)
        return Option(file_system_gib=gib, file_system_mbps_per_tib=mbps_per_tib)
    if not _ID.fullmatch(value):
        meant = _id_meant(value)
        nearest = f"; did you mean {meant}" if meant else ""
        raise BadCommand(
            f"file_system={value[:80]} is not accepted: expected the id of an FSx for Lustre "
            f"file system, such as fs-0123456789abcdef0, or the GiB of a new one{nearest}"
        )
    found = typed.ask.find_file_system(value)
    if type_name is not None:
        raise BadCommand(
            f"file_system_type={type_name} is of a new file system, and file_system={value} "
            "exists; leave file_system_type= out"
        )
    return Option(file_system=found.spec)


def _read_claim(value: str, *, file_system: str | None, type_name: str | None) -> Option:
    """Read a claim; nobody can ask the cluster about it yet."""
    found = _CLAIM.fullmatch(value.removeprefix(CLAIM_PREFIX))
    if not value.startswith(CLAIM_PREFIX) or found is None:
        nearest = f"; did you mean {_claim_meant(value)}" if _claim_meant(value) else ""
        raise BadCommand(
            f"storage={value[:80]} is not accepted: expected {CLAIM_PREFIX}NAME or "
            f"{CLAIM_PREFIX}NAMESPACE/NAME, a PersistentVolumeClaim of the cluster of "
            f"cluster=eks:...; file_system= takes an FSx for Lustre file system{nearest}"
        )
    for key, other in ((FILE_SYSTEM, file_system), (FILE_SYSTEM_TYPE, type_name)):
        if other is not None:
            raise BadCommand(
                f"storage={value} and {key.name}={other[:80]} are of two file systems; keep one"
            )
    name = f"{CLAIM_PREFIX}{found['namespace'] or 'default'}/{found['name']}"
    return Option(
        file_system=FileSystemSpec(
            storage_gib=SMALLEST_GIB, mbps_per_tib=SCRATCH_MBPS_PER_TIB, existing_id=name
        )
    )


def is_size(value: str) -> bool:
    """Say whether it is the size of a new file system; so many digits are an id without its fs-."""
    return value.isascii() and value.isdigit() and len(value) != 17


def read_gib(value: str, *, key: str) -> int:
    """Read the GiB of a new file system.

    Raises:
        BadCommand: FSx offers no such size.
    """
    number = int(value[:9]) if value.isascii() and value.isdigit() else 0
    if number != SMALLEST_GIB and not (0 < number <= _MAX_GIB and number % STEP_GIB == 0):
        raise BadCommand(
            f"{key}={value[:80]} is not accepted: expected {SMALLEST_GIB} or a multiple of "
            f"{STEP_GIB} up to {_MAX_GIB}"
        )
    return number


def found_of(start: Start) -> FoundFileSystem | None:
    """Return what AWS said of the one that exists, where one was typed."""
    existing = start.part(Option).file_system
    if existing is None or existing.claim:
        return None
    return start.ask.find_file_system(existing.existing_id)


def refuse(start: Start) -> None:
    """Refuse a guest that brings no file system, and one for a cluster that has one."""
    on, guest = start.part(kept_cluster.Option).on, eks_cluster.CLUSTER.typed(start.options)
    if guest and start.part(Option).file_system is None:
        raise BadCommand(
            f"cluster={guest} needs file_system=fs-..., one that its nodes reach, or "
            "storage=pvc:NAME, a claim of it: no new file system is attached to an existing network"
        )
    claim = STORAGE.typed(start.options)
    if claim and on is None and not guest:
        raise BadCommand(
            f"storage={claim} needs cluster=eks:NAME, the existing cluster that has the claim; a "
            "cluster that is made takes file_system="
        )
    if on is None:
        return
    for key in (FILE_SYSTEM, STORAGE):
        if value := key.typed(start.options):
            raise BadCommand(
                f"{key.name}={value} cannot be used with on={on}: a run on a kept "
                f"cluster uses that cluster's file system; leave {key.name}= out"
            )
    if type_name := FILE_SYSTEM_TYPE.typed(start.options):
        raise BadCommand(
            f"file_system_type={type_name} cannot be used with on={on}: that "
            "cluster's file system is there; leave file_system_type= out"
        )


def refuse_no_room(start: Start, plan: Plan) -> None:
    """Refuse a typed file system that cannot hold what the run writes.

    Raises:
        BadParameter: naming what is needed and what there is.
    """
    brought = "data" if plan.conversion is None else "data, weights that are converted"
    written_gb = checkpoints_on_disk(start.resolved) * plan.checkpoint_gb + plan.export_gb
    needed = plan.needed_gib or round(written_gb * 1e9 / GIB)
    gib, found = start.part(Option).file_system_gib, found_of(start)
    if gib is not None and plan.file_system_gib > gib:
        raise BadParameter(
            f"file_system={gib} is too small: {brought} and checkpoints need {needed:,} GiB; use "
            f"file_system={plan.file_system_gib}, or leave it out"
        )
    if found is not None and found.free_gib is not None and needed > found.free_gib:
        raise BadParameter(
            f"file_system={found.spec.existing_id} has {found.free_gib:,} GiB free, and {brought} "
            f"and checkpoints need {needed:,} GiB; free some, or leave file_system= out"
        )


def note(start: Start, plan: Plan) -> Iterable[str]:
    """Say what using a file system that exists means, and what a scratch one lacks."""
    own, found = start.part(Option), found_of(start)
    if own.file_system_mbps_per_tib == SCRATCH_MBPS_PER_TIB:
        yield _SCRATCH_NOTE
    if claim := STORAGE.typed(start.options):
        yield (
            f"storage={claim}: nothing but the run's own directories is written to it, and it "
            "stays; its size and speed are not known here, times are planned with those of the "
            f"recipe's usual file system; its owner has given it the label {LABEL_GUESTS}=allowed"
        )
    if found is None:
        return
    room = (
        f"{found.free_gib:,} GiB of it are free"
        if found.free_gib is not None
        else "how much of it is free is not known before the run"
    )
    is_guest = bool(start.part(eks_cluster.Option).eks_name)
    nodes = "" if is_guest else f"; nodes are made in its zone, {found.zone}"
    yield (
        f"file system {found.spec.existing_id} exists: it is in no price here, and nothing but the "
        f"run's own directories is written to it; {room}{nodes}"
    )


FAMILY: Final = Family(
    keys=(FILE_SYSTEM, FILE_SYSTEM_TYPE, STORAGE), read=read, refuse=refuse, note=note
)

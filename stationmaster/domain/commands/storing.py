"""What `file_system=` means: the size of a new one, or the id of one that exists.

`parameters` and `cluster_words` call it while they read a command. Pure: who asks AWS about a file
system is given by the caller.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from stationmaster.domain.catalogue.recipes import Recipe
from stationmaster.domain.cluster.spec import FileSystemSpec
from stationmaster.domain.errors import BadCommand, BadParameter, NotPossibleNow, UserError
from stationmaster.domain.planning.cost import SCRATCH_MBPS_PER_TIB
from stationmaster.domain.planning.memory import GIB
from stationmaster.domain.planning.plan import Plan
from stationmaster.domain.planning.staging import CHECKPOINTS_ON_DISK, SMALLEST_GIB, STEP_GIB

FILE_SYSTEM: Final = "file_system"
FILE_SYSTEM_TYPE: Final = "file_system_type"
# What a new one can be, with MB/s a TiB; the throughput decides the type of FSx.
TYPES: Final[Mapping[str, int]] = {
    "scratch-200": SCRATCH_MBPS_PER_TIB,
    "persistent-125": 125,
    "persistent-250": 250,
    "persistent-500": 500,
    "persistent-1000": 1000,
}
# The largest multiple of STEP_GIB that is offered here.
MAX_GIB: Final = 96_000

# Source: FSx API reference, FileSystemId: fs- and 8 or more hex digits. FSx makes 17 of them.
_ID: Final = re.compile(r"fs-[0-9a-f]{8,40}")
_HIDDEN_ID: Final = re.compile(r"(?:fs-)?([0-9a-f]{17}|[0-9a-f]{8})(?![0-9a-f])")


@dataclass(frozen=True)
class FoundFileSystem:
    """A file system that exists, as AWS described it when it was typed."""

    spec: FileSystemSpec
    zone: str
    """The availability zone that it is in, and that the nodes are made in."""
    free_gib: int | None = None
    """Room on it; None where that is not known."""


# Source: FSx for Lustre user guide, Deployment options: scratch file systems.
_SCRATCH_NOTE: Final = (
    f"{FILE_SYSTEM_TYPE}=scratch-200: FSx keeps no second copy of what is on it; what a failed "
    "server had is lost, and training starts again from the newest backup (backup_every=)"
)

Answer = TypeVar("Answer")
FindFileSystem = Callable[[str], FoundFileSystem]
"""Asks AWS about a file system by its id. Raises a UserError that says why it cannot be used."""


def no_file_systems(file_system_id: str) -> FoundFileSystem:
    """Find nothing: where AWS is not meant to be asked.

    Raises:
        NotPossibleNow: always.
    """
    raise NotPossibleNow(
        f"{FILE_SYSTEM}={file_system_id} names a file system of the deployment's AWS account, and "
        "that is not asked here; type the command in the channel"
    )


def asked_once(find: Callable[[str], Answer]) -> Callable[[str], Answer]:
    """Ask once about each id or name, whatever the answer: a correction reads words many times."""
    answers: dict[str, Answer | UserError] = {}

    def remembered(name: str) -> Answer:
        if name not in answers:
            try:
                answers[name] = find(name)
            except UserError as error:
                answers[name] = error
        answer = answers[name]
        if isinstance(answer, UserError):
            raise answer
        return answer

    return remembered


@dataclass(frozen=True)
class Storage:
    """The file system that was typed; neither where none was."""

    new_gib: int | None = None
    new_mbps_per_tib: int | None = None
    """Of a new one: what was typed after `file_system_type=`."""
    found: FoundFileSystem | None = None

    @property
    def existing(self) -> FileSystemSpec | None:
        """The one that exists."""
        return self.found.spec if self.found is not None else None

    @property
    def typed(self) -> str | None:
        """The value as it is typed again."""
        if self.found is not None:
            return self.found.spec.existing_id
        return str(self.new_gib) if self.new_gib is not None else None

    @property
    def typed_type(self) -> str | None:
        """The type of a new one as it is typed again."""
        return type_typed(self.new_mbps_per_tib)


def type_typed(mbps_per_tib: int | None) -> str | None:
    """What is typed after `file_system_type=` for a throughput; None for the recipe's own."""
    return next((name for name, at in TYPES.items() if at == mbps_per_tib), None)


def read_storage(
    value: str | None, type_name: str | None = None, *, find_file_system: FindFileSystem
) -> Storage:
    """What was typed after `file_system=` and after `file_system_type=`.

    Raises:
        UserError: the one is neither a size nor the id of a file system that can be used, the other
            is no type, or a file system that exists was typed with a type.
    """
    mbps_per_tib = None if type_name is None else _read_type(type_name)
    storage = _read_storage(value, find_file_system=find_file_system)
    if mbps_per_tib is None:
        return storage
    if storage.found is not None:
        raise BadCommand(
            f"{FILE_SYSTEM_TYPE}={type_name} is of a new file system, and "
            f"{FILE_SYSTEM}={storage.typed} exists; leave {FILE_SYSTEM_TYPE}= out"
        )
    return replace(storage, new_mbps_per_tib=mbps_per_tib)


def _read_type(value: str) -> int:
    if value not in TYPES:
        raise BadCommand(
            f"{FILE_SYSTEM_TYPE}={value[:80]} is not accepted: expected {', '.join(TYPES)}, a type "
            "of FSx for Lustre with its MB/s a TiB"
        )
    return TYPES[value]


def type_meant(value: str) -> str | None:
    """The type that is meant by FSx's own name or in another spelling; None where none is."""
    spelled = value.lower().replace("_", "-")
    if spelled in ("scratch", "scratch-2"):
        return "scratch-200"
    spelled = spelled.replace("persistent-2-", "persistent-")
    return spelled if spelled in TYPES else None


def _read_storage(value: str | None, *, find_file_system: FindFileSystem) -> Storage:
    if value is None:
        return Storage()
    if is_size(value):
        return Storage(new_gib=read_gib(value, key=FILE_SYSTEM))
    if not _ID.fullmatch(value):
        meant = id_meant(value)
        nearest = f"; did you mean {meant}" if meant else ""
        raise BadCommand(
            f"{FILE_SYSTEM}={value[:80]} is not accepted: expected the id of an FSx for Lustre "
            f"file system, such as fs-0123456789abcdef0, or the GiB of a new one{nearest}"
        )
    return Storage(found=find_file_system(value))


def is_size(value: str) -> bool:
    """Whether it is the size of a new file system, rather than one that exists."""
    return value.isascii() and value.isdigit() and not is_meant(value)


def is_meant(digits: str) -> bool:
    """Whether digits are an id without its fs-, rather than a size."""
    return len(digits) == 17


def id_meant(value: str) -> str | None:
    """The id in an ARN, an address, or in another spelling; None where there is none."""
    found = _HIDDEN_ID.search(value.lower())
    return f"fs-{found[1]}" if found else None


def read_gib(value: str, *, key: str) -> int:
    """GiB of a new file system.

    Raises:
        BadCommand: FSx offers no such size.
    """
    number = int(value[:9]) if value.isascii() and value.isdigit() else 0
    if number != SMALLEST_GIB and not (0 < number <= MAX_GIB and number % STEP_GIB == 0):
        raise BadCommand(
            f"{key}={value[:80]} is not accepted: expected {SMALLEST_GIB} or a multiple of "
            f"{STEP_GIB} up to {MAX_GIB}"
        )
    return number


def gib_meant(value: str) -> str:
    """The largest size that is offered and no larger than what was typed; else the same value."""
    if not (value.isascii() and value.isdigit()) or int(value[:9]) < SMALLEST_GIB:
        return value
    number = int(value[:9])
    whole = number // STEP_GIB * STEP_GIB or SMALLEST_GIB
    return str(min(whole, MAX_GIB))


def storage_meant(value: str) -> str:
    """The file system that comes nearest to a value that is not accepted."""
    return id_meant(value) or gib_meant(value)


def refuse_with_cluster(storage: Storage, label: str) -> None:
    """Refuse a file system for a run on a cluster that has one.

    Raises:
        BadCommand: naming both.
    """
    if storage.typed is not None:
        raise BadCommand(
            f"{FILE_SYSTEM}={storage.typed} cannot be used with on={label}: a run on a kept "
            f"cluster uses that cluster's file system; leave {FILE_SYSTEM}= out"
        )
    if storage.typed_type is not None:
        raise BadCommand(
            f"{FILE_SYSTEM_TYPE}={storage.typed_type} cannot be used with on={label}: that "
            f"cluster's file system is there; leave {FILE_SYSTEM_TYPE}= out"
        )


def refuse_no_room(storage: Storage, plan: Plan) -> None:
    """Refuse a typed file system that cannot hold what the run writes.

    Raises:
        BadParameter: naming what is needed and what there is.
    """
    brought = "data" if plan.conversion is None else "data, weights that are converted"
    needed = _needed_gib(plan)
    if storage.new_gib is not None and plan.file_system_gib > storage.new_gib:
        raise BadParameter(
            f"{FILE_SYSTEM}={storage.new_gib} is too small: {brought} and checkpoints need "
            f"{needed:,} GiB; use {FILE_SYSTEM}={plan.file_system_gib}, or leave it out"
        )
    found = storage.found
    if found is None or found.free_gib is None:
        return
    if needed > found.free_gib:
        raise BadParameter(
            f"{FILE_SYSTEM}={found.spec.existing_id} has {found.free_gib:,} GiB free, and "
            f"{brought} and checkpoints need {needed:,} GiB; free some, or leave {FILE_SYSTEM}= out"
        )


def _needed_gib(plan: Plan) -> int:
    written_gb = CHECKPOINTS_ON_DISK * plan.checkpoint_gb + plan.export_gb
    return plan.needed_gib or round(written_gb * 1e9 / GIB)


def plan_with_storage(plan: Plan, storage: Storage, *, is_guest: bool = False) -> Plan:
    """The plan with what using a file system that exists means; a guest's nodes are there."""
    found = storage.found
    if storage.new_mbps_per_tib == SCRATCH_MBPS_PER_TIB:
        return plan.model_copy(update={"warnings": [_SCRATCH_NOTE, *plan.warnings]})
    if found is None:
        return plan
    room = (
        f"{found.free_gib:,} GiB of it are free"
        if found.free_gib is not None
        else "how much of it is free is not known before the run"
    )
    nodes = "" if is_guest else f"; nodes are made in its zone, {found.zone}"
    note = (
        f"file system {found.spec.existing_id} exists: it is in no price here, and nothing but the "
        f"run's own directories is written to it; {room}{nodes}"
    )
    return plan.model_copy(update={"warnings": [note, *plan.warnings]})


def with_size(recipe: Recipe, storage: Storage) -> Recipe:
    """The recipe with a new file system of the size and the type that were typed."""
    typed = {
        "file_system_gib": storage.new_gib,
        "file_system_mbps_per_tib": storage.new_mbps_per_tib,
    }
    return recipe.model_copy(
        update={key: value for key, value in typed.items() if value is not None}
    )

"""How long data and converted weights take to arrive, which file system holds them, and whether
data is linked to it instead of copied. Pure arithmetic; every constant names its source.

Published weights are converted for Megatron by `container/nemo/convert_weights.py`: one pod, on one
of the run's nodes, downloads them to the file system, loads them, and writes them in Megatron's
form. It was never timed. They are taken to be the recipe's model in bf16; the hub is not asked.

A link shows a bucket's objects as files at once; FSx reads an object when its file is first read. A
copy reads all of them before training, compared with S3's own checksums. So a link is better where
a run reads little of its data, or where FSx's servers bring all of it sooner than one pod does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from stationmaster.domain.catalogue.models import ImageModel
from stationmaster.domain.catalogue.recipes import Recipe
from stationmaster.domain.datasets import Listing, Preparation
from stationmaster.domain.errors import BadParameter
from stationmaster.domain.frozen import Frozen
from stationmaster.domain.planning.cost import (
    COPY_BYTES_PER_S,
    HUB_BYTES_PER_S,
    JOB_START_S,
    REORDER_BYTES_PER_S,
    VALIDATION_IMAGES,
    file_system_bytes_per_s,
)
from stationmaster.domain.planning.estimators import checkpoint_bytes, export_bytes
from stationmaster.domain.planning.layout import BF16_BYTES, Layout
from stationmaster.domain.planning.memory import GIB, available_host_bytes

# Two checkpoints are kept while a third is written.
CHECKPOINTS_ON_DISK: Final = 3
_SPARE: Final = 1.1

SMALLEST_GIB: Final = 1200
STEP_GIB: Final = 2400
# Source: FSx for Lustre quotas, storage capacity of PERSISTENT_2 SSD file systems, default of an
# account in a region.
LARGEST_GIB: Final = 100_800

# What one small object costs a core in Python and boto3: `relay.stage` took 1.3 ms for each of
# 1,500 of 110 kB from local mode's S3. TLS, which that has not, is taken to double it.
COPY_S_PER_OBJECT: Final = 0.003
# Text that one core tokenises and packs: docs/figures.md has 1 M tokens a second, of 4 characters.
PACK_BYTES_PER_S: Final = 4e6


class DataPlan(Frozen):
    """What a run's data needs before it trains; field names are a contract."""

    source: str
    num_bytes: int
    num_objects: int
    is_complete: bool
    """False where there are more objects than were counted: bytes and times are at least these."""
    is_estimated: bool = False
    """Whether they are about these instead, because class folders tell how many there are."""
    is_packed: bool = False
    """Whether it is packed from the hub on all nodes; figures are the most it can be then."""
    linked: bool = False
    """Whether FSx links the bucket to the file system, instead of a copy."""
    why: str = ""
    """Why it is linked, or copied although its bucket may be linked; "" where it may not."""
    stage_s: int
    """Seconds until the data can be trained on, once the cluster is ready."""
    needed_gib: int
    """What is read of the data, what is made of it, and checkpoints, with a tenth to spare."""

    @property
    def sentence(self) -> str:
        """What a person reads in a plan."""
        least = "" if self.is_complete else "about " if self.is_estimated else "at least "
        minutes = max(1, round(self.stage_s / 60))
        time = f"{'at least ' if least == 'at least ' else ''}about {minutes:,} min"
        size = f"{self.num_bytes / 1e9:,.1f} GB of {self.source}"
        what = f"{least}{self.num_objects:,} objects, {size}"
        if self.is_packed:
            return (
                f"data: all nodes pack at most {self.num_objects:,} files, {size}, on the file "
                f"system before training, in {time}; with checkpoints it needs at most "
                f"{self.needed_gib:,} GiB"
            )
        if self.linked:
            return (
                f"data: {what} are linked to the file system, not copied, in {time}, because "
                f"{self.why}; names and sizes are compared with S3 before training, contents come "
                "at their first read and are not; with checkpoints it needs "
                f"{self.needed_gib:,} GiB"
            )
        why = f", and not linked, because {self.why}" if self.why else ""
        return (
            f"data: {what} are brought to the file system before training, in {time}{why}; with "
            f"checkpoints it needs {self.needed_gib:,} GiB"
        )


def legal_size_gib(needed_gib: float) -> int:
    """Return the smallest size that FSx offers which holds so much.

    Source: FSx for Lustre API reference, StorageCapacity of PERSISTENT_2 SSD.
    """
    return (
        SMALLEST_GIB if needed_gib <= SMALLEST_GIB else STEP_GIB * math.ceil(needed_gib / STEP_GIB)
    )


def checkpoint_room_bytes(layout: Layout) -> int:
    """Return what training writes to the file system at most, with a model that is made of it."""
    number = checkpoints_on_disk(layout.recipe)
    return math.ceil(number * checkpoint_bytes(layout)) + export_bytes(layout)


def checkpoints_on_disk(recipe: Recipe) -> int:
    """Return how many checkpoints lie there at a time: two, the one being written, the best one."""
    if recipe.framework == "nemo":
        return 6  # the newest and the three best, and one more of each that is being written
    return CHECKPOINTS_ON_DISK + (getattr(recipe.training, "save_best", "off") != "off")


def smallest_file_system_gib(layout: Layout) -> int:
    """Return FSx's smallest size that holds what is written, with a tenth to spare."""
    return legal_size_gib(checkpoint_room_bytes(layout) / GIB * _SPARE)


def plan_data(
    layout: Layout, listing: Listing, *, is_own: bool = True, restored_bytes: int = 0
) -> DataPlan:
    """Plan what the data needs; the time on the file system that the layout's recipe has.

    Args:
        is_own: whether the file system is made for this run.
        restored_bytes: what else lies there: other runs' results, weights that are converted.
    """
    copy_s = _copy_s(layout.recipe, listing) if listing.is_stored else 0.0
    choice = choose(layout.recipe, listing, copy_s=copy_s, is_own=is_own)
    stored = choice.read_bytes if listing.is_stored else 0
    return DataPlan(
        source=listing.source,
        num_bytes=listing.expected_bytes,
        num_objects=listing.expected_objects,
        is_complete=listing.is_complete,
        is_estimated=bool(listing.likely_objects),
        is_packed=not listing.is_stored,
        linked=choice.is_linked,
        why=choice.why,
        stage_s=math.ceil(choice.seconds + _prepare_s(layout, listing)),
        needed_gib=needed_gib(layout, stored + listing.prepared_bytes + restored_bytes),
    )


def needed_gib(layout: Layout, num_bytes: int) -> int:
    """Return the size of a file system that holds so much beside what training writes."""
    return math.ceil((num_bytes + checkpoint_room_bytes(layout)) * _SPARE / GIB)


def restore_s(recipe: Recipe, num_bytes: int) -> int:
    """Return the seconds in which so much of other runs' results comes back to the file system."""
    return math.ceil(num_bytes / min(COPY_BYTES_PER_S, file_system_bytes_per_s(recipe)))


def _copy_s(recipe: Recipe, listing: Listing) -> float:
    rate = min(COPY_BYTES_PER_S, file_system_bytes_per_s(recipe))
    return listing.expected_bytes / rate + listing.expected_objects * COPY_S_PER_OBJECT


def _prepare_s(layout: Layout, listing: Listing) -> float:
    match listing.preparation:
        case Preparation.IMAGES:  # read once and written once
            return 2 * listing.prepared_bytes / file_system_bytes_per_s(layout.recipe)
        case Preparation.TOKENS | Preparation.MEGATRON:
            cores = layout.nodes * layout.instance.vcpus
            packing = listing.prepared_bytes / (PACK_BYTES_PER_S * cores)
            if listing.preparation is Preparation.MEGATRON:  # parts are read and written again
                packing += 2 * listing.prepared_bytes / file_system_bytes_per_s(layout.recipe)
            if listing.is_stored:
                return packing
            # Each node reads its share of the hub.
            return max(packing, listing.num_bytes / (HUB_BYTES_PER_S * layout.nodes))
        case _:
            return 0.0


# As published, and converted: both are on the file system, and in memory, until the Job ends.
# Source: container/nemo/convert_weights.py, which deletes the first after the second is whole.
_COPIES: Final = 2


class Conversion(Frozen):
    """What a plan says of weights that are converted; field names are a contract."""

    repository: str
    num_bytes: int
    """Of the weights, once."""
    stage_s: int
    """Seconds until they are converted, once the cluster is ready."""
    room_bytes: int
    """What they take of the file system while they are converted."""

    @property
    def sentence(self) -> str:
        """What a person reads in a plan."""
        return (
            f"weights={self.repository}: about {self.num_bytes / 1e9:,.0f} GB are downloaded and "
            f"converted on one node before training, in about {max(1, round(self.stage_s / 60))} "
            "min, which this plan counts; a later run on the same file system finds them. They "
            f"take {self.room_bytes / 1e9:,.0f} GB of it meanwhile"
        )


def plan_conversion(layout: Layout) -> Conversion | None:
    """Return what the weights of a recipe need before training; None where nothing is converted.

    Raises:
        BadParameter: a node's memory is too small for it.
    """
    repository = layout.recipe.weights_to_convert
    if not repository:
        return None
    size = BF16_BYTES * layout.recipe.model.num_parameters
    needed, has = _COPIES * size, available_host_bytes(layout) * layout.processes_per_node
    if needed > has:
        raise BadParameter(
            f"weights={repository} take {needed / 1e9:,.0f} GB of one node's memory while they are "
            f"converted, and {layout.instance.name} has {has / 1e9:,.0f} GB for that; use a larger "
            "instance, or weights=/fsx/PATH of a checkpoint that was converted elsewhere"
        )
    disk = file_system_bytes_per_s(layout.recipe)
    seconds = (
        JOB_START_S  # its image, and Python's libraries
        + size / min(HUB_BYTES_PER_S, disk)
        + _COPIES * size / disk  # read once and written once
        + size / REORDER_BYTES_PER_S
    )
    return Conversion(
        repository=repository,
        num_bytes=size,
        stage_s=math.ceil(seconds),
        room_bytes=_COPIES * size,
    )


# Until an association is available. Assumed: AWS says "minutes".
LINK_S: Final = 300
# Names and sizes that FSx imports in a second, and that the program which compares them sees.
# Assumed, a tenth of what a Lustre metadata server of this size takes (user guide, "File system
# metadata performance": 12,000 IOPS).
IMPORTED_PER_S: Final = 1200
# More of a data set of images than this is copied: loaded one by one while GPUs wait, small objects
# arrive no faster than the copy brings them.
MOST_READ: Final = 0.5


@dataclass(frozen=True, slots=True)
class Choice:
    """How data comes to the file system."""

    is_linked: bool
    why: str
    """The rest of a sentence after "because"; "" where a link was out of the question."""
    read_bytes: int
    """What comes to lie on the file system."""
    seconds: float
    """Until the data can be trained on, once the cluster is ready."""


def samples_read(recipe: Recipe) -> int | None:
    """Return the objects that a run opens at most, images one by one; None for all of them."""
    if not isinstance(recipe.model, ImageModel):
        return None
    training = recipe.own_training
    evaluates = 0 < training.eval_every <= training.steps
    evaluated = (training.eval_samples or VALIDATION_IMAGES) if evaluates else 0
    return training.steps * training.global_batch_size + evaluated


def choose(recipe: Recipe, listing: Listing, *, copy_s: float, is_own: bool) -> Choice:
    """Choose to link or to copy.

    Args:
        copy_s: how long a copy takes.
        is_own: whether the file system is the run's own and new. Another one has one link at
            most, and its room was planned for others.
    """
    whole = listing.expected_bytes
    copied = Choice(is_linked=False, why="", read_bytes=whole, seconds=copy_s)
    if not listing.may_link or not is_own:
        return copied
    if listing.preparation is Preparation.TOKENS or listing.prepared_bytes:
        return replace(copied, why="it has to be prepared, which reads all of it")
    if not listing.is_complete and not listing.likely_objects:
        return replace(copied, why="it has more objects than can be counted now")
    read = samples_read(recipe)
    share = 1.0 if read is None else min(1.0, read / listing.expected_objects)
    if read is not None and share > MOST_READ:
        why = f"the run reads {share:.0%} of it: more than half is copied first"
        return replace(copied, why=why)
    seconds = LINK_S + listing.expected_objects / IMPORTED_PER_S
    if read is None:
        seconds += whole / file_system_bytes_per_s(recipe)
    seconds = math.ceil(seconds)  # as the plan shows it
    saved_s = copy_s - seconds
    if saved_s < listing.link_saves_s:
        return replace(
            copied,
            why=f"a link takes about {_minutes(seconds)}, and only a link that saves "
            f"{_minutes(listing.link_saves_s)} is worth its unchecked first reads",
        )
    read_bytes = round(whole * share)
    of_it = "all of it once" if read is None else f"about {share:.1%} of it"
    return Choice(
        is_linked=True,
        why=f"a copy takes about {_minutes(copy_s)}, a link {_minutes(seconds)}, and the run reads "
        f"{of_it} ({read_bytes / 1e9:,.1f} GB)",
        read_bytes=read_bytes,
        seconds=seconds,
    )


def _minutes(seconds: float) -> str:
    return f"{max(1, round(seconds / 60)):,} min"

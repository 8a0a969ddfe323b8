"""Which file system holds what a run brings and writes, and how long the bringing takes. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from stationmaster.domain.datasets import Listing, PackedSource, S3Source, SharedPath
from stationmaster.domain.errors import BadParameter
from stationmaster.domain.planning.arrival import (
    LARGEST_GIB,
    Conversion,
    DataPlan,
    legal_size_gib,
    needed_gib,
    plan_conversion,
    plan_data,
    restore_s,
)
from stationmaster.domain.planning.cost import Shared
from stationmaster.domain.planning.layout import Layout


@dataclass(frozen=True, kw_only=True, slots=True)
class Room:
    """What is brought before training, and the layout with a file system that holds it."""

    layout: Layout
    data: DataPlan | None = None
    conversion: Conversion | None = None
    restored_bytes: int = 0
    needed_gib: int = 0
    """Of a file system, for what is brought and checkpoints; 0 where nothing is brought."""

    @property
    def stage_s(self) -> int:
        """Seconds until all of it is there: one after the other."""
        brought = (self.data, self.conversion)
        seconds = sum(each.stage_s for each in brought if each is not None)
        return seconds + restore_s(self.layout.recipe, self.restored_bytes)


def find_room(
    layout: Layout,
    listing: Listing | None,
    shared: Shared | None,
    *,
    restored_bytes: int,
    converts_weights: bool,
) -> Room:
    """Find the layout with a file system that holds what is brought, and what that needs.

    Args:
        converts_weights: False where a command takes the trainer's place.

    Raises:
        BadParameter: the shared cluster's file system is too small for it, or any is.
    """
    conversion = plan_conversion(layout) if converts_weights else None
    beside = restored_bytes + (conversion.room_bytes if conversion is not None else 0)
    is_own = shared is None and not layout.recipe.file_system_id
    data = None
    if listing is not None:
        data = plan_data(layout, listing, is_own=is_own, restored_bytes=beside)
    elif not beside:
        return Room(layout=layout)
    needed = data.needed_gib if data is not None else needed_gib(layout, beside)
    room = Room(
        layout=layout,
        data=data,
        conversion=conversion,
        restored_bytes=restored_bytes,
        needed_gib=needed,
    )
    size, has = legal_size_gib(needed), layout.recipe.file_system_gib
    if data is not None and data.is_packed and not is_own:
        return room  # at most so much, and it may be there already
    if (reason := _why_no_room(room, listing, shared)) is not None:
        raise BadParameter(reason)
    if size > has and is_own:
        recipe = layout.recipe.model_copy(update={"file_system_gib": size})
        # A larger one is faster, so that a copy may have become better than a link.
        return find_room(
            replace(layout, recipe=recipe),
            listing,
            shared,
            restored_bytes=restored_bytes,
            converts_weights=converts_weights,
        )
    return room


def _why_no_room(room: Room, listing: Listing | None, shared: Shared | None) -> str | None:
    """Say why no file system that the run may have holds so much, and what to do; else None."""
    recipe, conversion = room.layout.recipe, room.conversion
    if shared is not None:
        whose, remedies = f"the file system of cluster {shared.label}", ["leave on= out"]
    elif recipe.file_system_id:
        whose, remedies = f"file system {recipe.file_system_id}", ["leave file_system= out"]
    else:
        whose, remedies = "the largest file system", []
    has = recipe.file_system_gib if remedies else LARGEST_GIB
    if room.needed_gib <= has or not recipe.is_storage_known:
        return None
    parts = []
    if listing is not None:
        parts.append(f'dataset="{listing.source}" has {listing.expected_bytes / 1e9:,.1f} GB')
    elif room.restored_bytes:
        parts.append(f"what comes back of other runs has {room.restored_bytes / 1e9:,.1f} GB")
    if conversion is not None:
        size = f"{conversion.room_bytes / 1e9:,.1f} GB"
        parts.append(f"weights={conversion.repository} take {size} while they are converted")
    if not remedies or listing is not None or room.restored_bytes:
        remedies.append("use less data")
    return (
        f"{' and '.join(parts)}; with what is made of that, and checkpoints, "
        f"{room.needed_gib:,} GiB are needed, and {whose} has {has:,} GiB: {', or '.join(remedies)}"
    )


def room_notes(room: Room, shared: Shared | None) -> Iterator[str]:
    """Yield what is brought before training, or what a plan cannot know of it."""
    if room.conversion is not None:
        yield room.conversion.sentence
    recipe = room.layout.recipe
    data = recipe.data
    if room.data is not None:
        yield room.data.sentence
    elif isinstance(data, S3Source):
        yield (
            f"how much {data} holds, and how long it takes to bring it to the "
            "file system, is asked in the channel: /train plan"
        )
    elif isinstance(data, SharedPath) and (shared is not None or recipe.file_system_id):
        yield (
            f"{data.path} is read where it lies; whether it is there and what this recipe needs is "
            "looked at before training"
        )
    elif isinstance(data, PackedSource):
        yield (
            f"all nodes pack {data.name} on the file system before training; how long that takes "
            "and how much room it needs is asked in the channel, where the hub answers: /train plan"
        )

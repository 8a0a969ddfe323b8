"""Whether a run's data is linked to its file system instead of copied, and why. Pure arithmetic.

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
from stationmaster.domain.planning.cost import VALIDATION_IMAGES, file_system_bytes_per_s

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

"""Answers and errors that all ranks share, so that none continues alone or waits for the others.

They go over the group of checkpoints, which waits for hours.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import torch.distributed as dist

from stationmaster.domain.checkpoints import Manifest
from stationmaster.domain.errors import PermanentError, StationmasterError
from training.manifest import first_damage
from training.parallel import Ranks

Result = TypeVar("Result")


def from_rank_0(action: Callable[[], Result], ranks: Ranks) -> Result:
    """Call `action` on rank 0 alone; return or raise its outcome on every rank."""
    if ranks.world_size == 1:
        return action()
    outcome: list[Any] = [None, None]
    if ranks.rank == 0:
        try:
            outcome[0] = action()
        except (OSError, StationmasterError) as exc:
            outcome[1] = exc
    dist.broadcast_object_list(outcome, src=0, group=ranks.checkpoint_group)
    result, error = outcome
    if error is not None:
        raise error
    return cast("Result", result)


def on_every_rank(action: Callable[[], Result], ranks: Ranks) -> Result:
    """Call `action` on every rank; when it fails on one, all raise the first one's error."""
    outcome: list[Any] = [None, None]
    try:
        outcome[0] = action()
    except (OSError, StationmasterError) as exc:
        outcome[1] = exc
    if failure := next(filter(None, gathered(outcome[1], ranks)), None):
        raise failure
    return cast("Result", outcome[0])


def damage_of(path: Path, manifest: Manifest, ranks: Ranks, *, cached: bool) -> str:
    """Read a checkpoint, each rank its share; all ranks return the same damage, "" when it is
    whole.

    Raises:
        OSError: on every rank, when the storage fails one of them.
    """
    size = ranks.world_size
    share = [name for name, file in manifest.files.items() if file.rank % size == ranks.rank]
    read = partial(first_damage, path, manifest, names=share, cached=cached)
    return next(filter(None, gathered(on_every_rank(read, ranks), ranks)), "")


def check_same_data(identity: str, ranks: Ranks) -> None:
    """Refuse to train when nodes prepared different data from what they call the same data set.

    `identity` names the contents, e.g. by their hash.

    Raises:
        PermanentError: naming the remedy.
    """
    if len(set(gathered(identity, ranks))) > 1:
        raise PermanentError(
            f"the nodes prepared different data (rank {ranks.rank} has {identity[:24]}); "
            "give all nodes the same dataset directory, Python and tokenizers, or a shared "
            "STATIONMASTER_CACHE_DIR"
        )


def gathered(mine: Result, ranks: Ranks) -> list[Result]:
    """Return what each rank gave, in their order, on every rank."""
    if ranks.world_size == 1:
        return [mine]
    everyones: list[Any] = [None] * ranks.world_size
    dist.all_gather_object(everyones, mine, group=ranks.checkpoint_group)
    return everyones

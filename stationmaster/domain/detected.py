"""What is detected of a run that trains, and what a channel wants done then. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Final

from pydantic import AfterValidator, Field

from stationmaster.domain.frozen import Frozen

MAX_SAID: Final = 180


class Kind(StrEnum):
    """What can be wrong with a run that takes steps, as rules of channels name it."""

    NOT_FINITE = "not_finite"
    SPIKE = "spike"
    DIVERGENCE = "divergence"
    STRAGGLER = "straggler"
    GPU_IDLE = "gpu_idle"
    DATA_BOUND = "data_bound"
    SLOWER = "slower"
    CHECKPOINT_SLOW = "checkpoint_slow"
    DISK_FILLS = "disk_fills"


class Action(StrEnum):
    """What follows from a detection, once it is posted in the thread."""

    TELL = "tell"
    """Nothing more."""
    STOP = "stop"
    """The run is stopped as a person would: it writes a checkpoint and saves its results."""
    RESTART = "restart"
    """The next attempt begins, from the newest checkpoint; it is one of `attempts=N`."""
    REPLACE = "replace"
    """The same, with another machine in place of the node that was named."""


class Detection(Frozen):
    """Something that was found wrong, once for each kind and attempt."""

    kind: Kind
    attempt: int
    at: datetime
    step: int | None = None
    evidence: str = Field(max_length=MAX_SAID)
    """The figures that show it, as a sentence without a full stop."""
    remedy: str = Field(max_length=MAX_SAID)
    """What a person can do, likewise."""
    node: str = Field(default="", max_length=80)
    """The node to which it is due; "" where no single one is."""
    rank: int | None = None
    action: Action = Action.TELL


def _possible(wanted: Mapping[Kind, Action]) -> Mapping[Kind, Action]:
    for kind, action in wanted.items():
        if action is Action.REPLACE and kind is not Kind.STRAGGLER:
            raise ValueError(
                f'"{kind}": "replace" is not possible, because only "{Kind.STRAGGLER}" names a '
                "node; expected tell, stop or restart"
            )
    return wanted


Wanted = Annotated[dict[Kind, Action], AfterValidator(_possible)]
"""The actions by kind; a kind that is not named is told."""

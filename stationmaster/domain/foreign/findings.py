"""What a line of another trainer says, and numbers as programs print them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from stationmaster.domain.outside import MAX_COUNT, plausible

# Digits are bounded so that no line can cost more than its length.
NUMBER: Final = r"([-+]?[\d.,]{1,30}(?:[eE][-+]?\d{1,3})?|[-+]?(?:nan|inf))"
COUNT: Final = r"(\d{1,15})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A progress line; `total_steps` is None where the format does not say it.

    `loss_nats` is None where the trainer prints nan or inf, or no loss at all (`has_loss`).
    """

    step: int
    loss_nats: float | None
    has_loss: bool = True
    total_steps: int | None = None
    figures: Mapping[str, float | None] = field(default_factory=dict)
    """The further figures that are in the line, by the names that an event has."""
    of_one_rank: bool = False
    """Whether one rank of all prints it: two pods with such lines have not joined."""
    of_own_batch: bool = False
    """Whether each rank prints it of its own batch: two pods with the same have not joined."""


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint is complete."""

    step: int
    path: str


@dataclass(frozen=True, slots=True)
class Resumed:
    """A checkpoint was loaded."""

    step: int
    path: str


@dataclass(frozen=True, slots=True)
class Saving:
    """A checkpoint is being written to `path`; a later line says when it is complete."""

    path: str


@dataclass(frozen=True, slots=True)
class SavingDone:
    """The checkpoint announced before is complete."""


@dataclass(frozen=True, slots=True)
class TotalSteps:
    """The trainer says how many steps it will take."""

    total_steps: int


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The loss over held-out data; `step` is None where the line does not say it."""

    step: int | None
    loss_nats: float | None


@dataclass(frozen=True, slots=True)
class Bar:
    """How far a progress bar of training is, without any other figure."""

    step: int
    total_steps: int


@dataclass(frozen=True, slots=True)
class Logged:
    """Figures of a step that only the bar beside them tells."""

    loss_nats: float | None
    figures: Mapping[str, float | None] = field(default_factory=dict)
    epoch: float | None = None
    """How many epochs are done, with a fraction; None where it is not said."""
    of_one_rank: bool = False


@dataclass(frozen=True, slots=True)
class InEpoch:
    """A progress line that counts within an epoch of unknown length."""

    epoch: int
    iteration: int
    loss_nats: float | None


Finding = (
    Progress
    | Saved
    | Resumed
    | Saving
    | SavingDone
    | TotalSteps
    | Evaluated
    | Bar
    | Logged
    | InEpoch
)


def number(text: str | None) -> float | None:
    """Read a plausible number, with thousands separators allowed, or None."""
    return plausible(parsed(text))


def parsed(text: str | None) -> float | None:
    """Read a number that may be nan or infinite, or None."""
    if text is None:
        return None
    try:
        return float(text.replace(",", "").rstrip("."))
    except ValueError:
        return None


def progress(
    *,
    step: int,
    loss: str | None,
    total_steps: int | None = None,
    of_one_rank: bool = False,
    of_own_batch: bool = False,
    **figures: float | None,
) -> Progress | None:
    """Make the finding of a line; None where its loss is no number or its step none of training."""
    if parsed(loss) is None or not 0 <= step < MAX_COUNT:
        return None
    return Progress(
        step=step,
        loss_nats=number(loss),
        total_steps=total_steps if total_steps is not None and total_steps < MAX_COUNT else None,
        figures={name: plausible(figure) for name, figure in figures.items()},
        of_one_rank=of_one_rank,
        of_own_batch=of_own_batch,
    )


def evaluated(step: int | None, loss: str | None) -> Evaluated | None:
    """Make the finding of an evaluation; None where its loss is no number."""
    if parsed(loss) is None or (step is not None and step >= MAX_COUNT):
        return None
    return Evaluated(step, number(loss))

"""Limits of numbers, times and texts that come from outside: one place for all of them.

Figures in log lines, Kubernetes objects, the hub's answers and batches are made plausible where
they are parsed, so nothing later checks them. It imports nothing of the domain: the trainer starts
with it.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Final

from pydantic import AfterValidator, AwareDatetime, Field, ValidationError

MAX_COUNT: Final = 2**53
"""The limit of counts: larger ones are not exact in every reader of JSON."""
MAX_FIGURE: Final = 1e12
"""The limit of figures: a step of 30,000 years or a diverged loss says no more than inf."""
EARLIEST: Final = datetime(1970, 1, 1, tzinfo=UTC)
"""The earliest time: nothing can be subtracted from Kubernetes' zero time, of the year 1."""
LATEST: Final = datetime(2200, 1, 1, tzinfo=UTC)
MAX_TEXT_BYTES: Final = 1_200
"""The most bytes, as JSON, of each text of an event."""
MAX_NAME_BYTES: Final = 80
"""The most bytes of a pod's or node's name; EKS' own have 60."""
MAX_KEPT_BYTES: Final = 160
"""The most bytes of a text that is kept once for each of many pods or nodes."""


def plausible(figure: float | None) -> float | None:
    """Return the figure; None where it is not finite or too large to be true."""
    return figure if figure is not None and abs(figure) <= MAX_FIGURE else None


def plausible_time(at: datetime) -> datetime | None:
    """Return the time; None where it has no zone or cannot be true."""
    return at if at.tzinfo and EARLIEST <= at < LATEST else None


def clipped(text: str, most: int = MAX_TEXT_BYTES) -> str:
    """Cut a text to what takes `most` bytes of JSON."""
    if len(text) * 6 <= most:
        return text
    size = 0
    for place, character in enumerate(text):
        size += 6 if character < " " else 2 if character in '"\\' else len(character.encode())
        if size > most:
            return text[:place]
    return text


def sound(value: Any) -> Any:
    """Check a field of an event, and cut its texts, in lists too.

    Raises:
        ValueError: a number that is not finite or too large, or a time that cannot be true.
    """
    match value:
        case str():
            return clipped(value)
        case float() | int() if not abs(value) <= (
            MAX_FIGURE if isinstance(value, float) else MAX_COUNT
        ):
            raise ValueError(
                f"expected a finite number of at most {MAX_FIGURE:g}, got {value!r:.40}"
            )
        case datetime() if plausible_time(value) is None:
            raise ValueError(f"expected a time from 1970 to 2199 with its zone, got {value}")
        case list() | tuple():
            return type(value)(sound(each) for each in value)
        case dict():
            return {key: sound(each) for key, each in value.items()}
        case _:
            return value


def first_problem(error: ValidationError) -> str:
    """Say what pydantic finds first, in one sentence without the value."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    return f"{place}: {first['msg']}" if place else first["msg"]


Count = Annotated[int, Field(ge=0, lt=MAX_COUNT)]
Finite = Annotated[float, Field(ge=-MAX_FIGURE, le=MAX_FIGURE)]
Moment = Annotated[AwareDatetime, Field(ge=EARLIEST, lt=LATEST)]
Name = Annotated[str, AfterValidator(lambda name: clipped(name, MAX_NAME_BYTES))]
Short = Annotated[str, AfterValidator(lambda text: clipped(text, MAX_KEPT_BYTES))]

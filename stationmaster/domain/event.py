"""The one shape of an event: a fact in the past tense that happened to a run or to a cluster.

Its class names its `type`, and adds the id of what it happened to. An event's id is the same on
every delivery of the same fact, so that recording it twice changes nothing. Its numbers, times and
texts are plausible, whoever makes it: see `outside`.
"""

from __future__ import annotations

import hashlib
from inspect import get_annotations
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal

from pydantic import BaseModel, Field, field_validator

from stationmaster.domain.frozen import Frozen
from stationmaster.domain.ids import EventId
from stationmaster.domain.outside import Moment, sound

# An id is part of a sort key of the table, and of what a run keeps of a lost node.
_MAX_ID: Final = 300


class Event(Frozen, extra="forbid"):
    """The fields that every event has."""

    is_frequent: ClassVar[bool] = False
    """Whether there may be a million of its kind: such events are kept apart from the others."""

    event_id: Annotated[EventId, Field(max_length=_MAX_ID)]
    at: Moment
    if TYPE_CHECKING:
        type: str = ""

    def __init_subclass__(cls, *, type: str = "", **options: Any) -> None:
        """Give the class the field that tells it from others: a Literal, for unions of events."""
        super().__init_subclass__(**options)
        if type:
            cls.__annotations__ = {"type": Literal[type], **get_annotations(cls)}
            cls.type = type

    @field_validator("*")
    @classmethod
    def _sound(cls, value: Any) -> Any:
        return sound(value)


def shared(event: Event, kind: type[BaseModel]) -> dict[str, Any]:
    """Return the fields of an event that a part of a state has under the same names."""
    return {name: getattr(event, name) for name in kind.model_fields if hasattr(event, name)}


def make_event_id(owner: str, *parts: object) -> EventId:
    """Hash what identifies a fact to a short id, the same whenever the fact is reported.

    `owner` is the id of what it happened to. Use `run_event_id` and `cluster_event_id`, which keep
    apart a run and a cluster of the same id.
    """
    text = "\x1f".join([owner, *(str(part) for part in parts)])
    return EventId(hashlib.sha256(text.encode()).hexdigest()[:24])

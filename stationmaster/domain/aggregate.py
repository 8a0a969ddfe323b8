"""The one shape of what has a life of its own: a run, a cluster.

An aggregate is a state that only events change. `start` makes the state of its first event, `apply`
the state after a further one, and `consequences` says which events follow from one that was just
applied. All three are pure; `aws/aggregate_store.py` keeps every aggregate in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, TypeAdapter

from stationmaster.domain.errors import StationmasterError
from stationmaster.domain.event import Event


class State(BaseModel):
    """What every aggregate's state has."""

    model_config = ConfigDict(frozen=True)

    version: int = 0
    """How many times it was written; the store's business."""
    requested_at: datetime

    @property
    def id(self) -> str:
        """Unique among the aggregates of its kind."""
        raise NotImplementedError

    @property
    def is_open(self) -> bool:
        """Something of it may still have to be done."""
        raise NotImplementedError

    @property
    def is_final(self) -> bool:
        """Its end is final: what comes too late to be possible is left out, not refused."""
        return False


StateT = TypeVar("StateT", bound=State)
EventT = TypeVar("EventT", bound=Event)


@dataclass(frozen=True)
class Aggregate(Generic[StateT, EventT]):
    """One kind of aggregate: how it lives, and what the store has to know of it."""

    name: str
    key_prefix: str
    state: type[StateT]
    event: TypeAdapter[EventT]
    start: Callable[[Any], StateT]
    apply: Callable[[StateT, EventT], StateT]
    consequences: Callable[[StateT, EventT], Sequence[EventT]]
    not_found: Callable[[str], StationmasterError]

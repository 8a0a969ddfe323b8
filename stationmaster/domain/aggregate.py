"""The one shape of what has a life of its own: a run, a cluster.

An aggregate is a state that only events change. `start` makes the state of its first event, `apply`
the state after a further one, and `consequences` says which events follow from one that was just
applied. All three are pure; `aws/aggregate_store.py` keeps every aggregate in the same way.

Every collection of a state has a `Bound`, so that its item stays small however long it lives: below
half of what the table takes. The other half is room for its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Annotated, Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from stationmaster.domain.errors import IllegalTransition, StationmasterError
from stationmaster.domain.event import Event


def repeated(entries: dict[int, tuple[Any, datetime]]) -> Iterable[int]:
    """Places of phases that were entered before and were entered again later."""
    last = {name: place for place, (name, _) in entries.items()}
    first = {name: place for place, (name, _) in reversed(entries.items())}
    return (place for place, (name, _) in entries.items() if first[name] < place < last[name])


@dataclass(frozen=True)
class Bound:
    """How many entries a collection has at most; annotates the field.

    `spare` has the keys (of a list, the places) of those that may go, in order; where none may, or
    it is None, what would add another entry is refused.
    """

    most: int
    spare: Callable[[Any], Iterable[Any]] | None = iter


class State(BaseModel):
    """What every aggregate's state has."""

    model_config = ConfigDict(frozen=True)

    version: int = 0
    """How many times it was written; the store's business."""
    requested_at: datetime
    folded: Annotated[dict[str, int], Bound(20)] = Field(default_factory=dict)
    """How many entries its collections had beside those that they have."""

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

    @property
    def is_ending(self) -> bool:
        """It ends or has ended: what is written now may take the room that is kept for that."""
        raise NotImplementedError


StateT = TypeVar("StateT", bound=State)
EventT = TypeVar("EventT", bound=Event)


def bounded(before: StateT, after: StateT) -> StateT:
    """The state `after` an event with the collections at their bounds; what went is counted.

    Raises:
        IllegalTransition: a collection would grow of which no entry may go.
    """
    changes: dict[str, Any] = {}
    for name, field in type(after).model_fields.items():
        bound = next((each for each in field.metadata if isinstance(each, Bound)), None)
        entries = getattr(after, name)
        if bound is None or len(entries) <= bound.most:
            continue
        keyed = entries if isinstance(entries, Mapping) else dict(enumerate(entries))
        spare = bound.spare(keyed) if bound.spare is not None else ()
        gone = {*islice(spare, len(keyed) - bound.most)}
        kept = {key: entry for key, entry in keyed.items() if key not in gone}
        if len(kept) > max(bound.most, len(getattr(before, name))):
            raise IllegalTransition(
                f"the list of {name.replace('_', ' ')} of {after.id} is full with {bound.most} "
                "entries; try again later, or use another cluster"
            )
        changes[name] = kept if isinstance(entries, Mapping) else [*kept.values()]
        counted = changes.setdefault("folded", dict(after.folded))
        counted[name] = counted.get(name, 0) + len(gone)
    return after.model_copy(update=changes) if changes else after


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

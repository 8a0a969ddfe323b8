"""The one shape of what has a life of its own: a run, a cluster. Pure.

Only events change an aggregate. `start` makes the state of its first event, `apply` the state after
a further one, and `consequences` says which events follow. Every collection of a state has a
`Bound`: its item stays below half of what the table takes, and the rest is room for its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Annotated, Any, Generic, TypeVar

from pydantic import Field, TypeAdapter

from stationmaster.domain.errors import IllegalTransition, StationmasterError
from stationmaster.domain.event import Event
from stationmaster.domain.frozen import Frozen


def repeated(entries: dict[int, tuple[Any, datetime]]) -> Iterable[int]:
    """Yield the places of phases that were entered again later."""
    last = {name: place for place, (name, _) in entries.items()}
    first = {name: place for place, (name, _) in reversed(entries.items())}
    return (place for place, (name, _) in entries.items() if first[name] < place < last[name])


@dataclass(frozen=True)
class Bound:
    """The most entries that a collection may have; it annotates the field.

    `spare` yields the keys (of a list, the places) of entries that may go, in order. Where it is
    None or yields none, one more entry is refused.
    """

    most: int
    spare: Callable[[Any], Iterable[Any]] | None = iter


class State(Frozen):
    """The fields that every aggregate's state has."""

    version: int = 0
    """How many times the state was written; the store counts."""
    requested_at: datetime
    folded: Annotated[dict[str, int], Bound(20)] = Field(default_factory=dict)
    """How many entries of each collection have gone."""

    @property
    def id(self) -> str:
        """The id, unique among the aggregates of its kind."""
        raise NotImplementedError

    @property
    def is_open(self) -> bool:
        """Whether something may still have to be done for it."""
        raise NotImplementedError

    @property
    def is_final(self) -> bool:
        """Whether its end is final: events that come too late are then ignored, not refused."""
        return False

    @property
    def is_ending(self) -> bool:
        """Whether it ends or has ended, and so may use the room that is kept for its end."""
        raise NotImplementedError


StateT = TypeVar("StateT", bound=State)
EventT = TypeVar("EventT", bound=Event)


def bounded(before: StateT, after: StateT) -> StateT:
    """Bring the collections of `after` to their bounds, and count what went.

    Raises:
        IllegalTransition: a collection of which no entry may go would grow.
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
    """One kind of aggregate: its functions, and what the store has to know."""

    name: str
    key_prefix: str
    state: type[StateT]
    event: TypeAdapter[EventT]
    start: Callable[[Any], StateT]
    apply: Callable[[StateT, EventT], StateT]
    consequences: Callable[[StateT, EventT], Sequence[EventT]]
    not_found: Callable[[str], StationmasterError]

"""How long a loop of a state machine waits before it calls its step again. Pure.

A call and its wait take nine events, and Step Functions ends an execution with its 25,000th. So
waits grow, and the number of calls grows with the logarithm of the time.
"""

from __future__ import annotations

from typing import Final, TypedDict

# Of the time waited so far: what a loop adds to its shortest wait, which is all that a stop or an
# end that comes meanwhile is noticed late.
_SHARE: Final = 20
_LONGEST_S: Final = 600
# Of waits of many hours, ten minutes would be too often: a day of them takes 1,300 events.
_SHARE_OF_HOURS: Final = 50


class Turn(TypedDict):
    """A loop's shortest wait, its next wait, and how long it has waited by then, in seconds."""

    every_s: int
    wait_s: int
    waited_s: int


def first_turn(every_s: int) -> Turn:
    """Begin a loop."""
    return {"every_s": every_s, "wait_s": every_s, "waited_s": 0}


def next_turn(turn: Turn) -> Turn:
    """Return the turn after a call that was not ready."""
    every_s, waited_s = turn["every_s"], turn["waited_s"]
    longer_s = max(min(waited_s // _SHARE, _LONGEST_S), waited_s // _SHARE_OF_HOURS)
    wait_s = every_s + longer_s
    return {"every_s": every_s, "wait_s": wait_s, "waited_s": waited_s + wait_s}

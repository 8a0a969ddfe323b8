"""How much may run at once, in a deployment and in each of its channels; 0 is no limit. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from stationmaster.domain.errors import NotPossibleNow

# A refusal is one sentence, and names no more than these.
_MOST_NAMED: Final = 5


@dataclass(frozen=True)
class Limits:
    """What the deployment allows."""

    runs: int = 0
    usd_per_hour: float = 0.0
    runs_per_channel: int = 0
    usd_per_hour_per_channel: float = 0.0

    def __bool__(self) -> bool:
        return bool(
            self.runs or self.usd_per_hour or self.runs_per_channel or self.usd_per_hour_per_channel
        )


@dataclass(frozen=True)
class Spending:
    """A run, or a cluster, that is there or is asked for."""

    name: str
    channel_id: str
    user_id: str
    is_run: bool
    usd_per_hour: float
    """What it adds; of a run on a cluster that is listed itself, nothing."""


def refuse_over(limits: Limits, there: Sequence[Spending], asked: Spending) -> None:
    """Refuse what would go over a limit, with the figures and who runs what.

    Raises:
        NotPossibleNow: naming the first limit that it would go over.
    """
    own = [each for each in there if each.channel_id == asked.channel_id]
    for where, listed, runs, usd in (
        ("this deployment", there, limits.runs, limits.usd_per_hour),
        ("this channel", own, limits.runs_per_channel, limits.usd_per_hour_per_channel),
    ):
        count = sum(each.is_run for each in listed)
        if runs and asked.is_run and count >= runs:
            running = [each for each in listed if each.is_run]
            verb = "has" if count == 1 else "have"
            raise NotPossibleNow(
                f"{where} runs at most {runs} at a time, and {count} {verb} not ended: "
                f"{_named(running, asked.channel_id)}; wait for one to end, or /train stop one",
                suggestion="/train list",
            )
        spent = sum(each.usd_per_hour for each in listed)
        if usd and asked.usd_per_hour and spent + asked.usd_per_hour > usd:
            paid = [each for each in listed if each.usd_per_hour]
            named = f": {_named(paid, asked.channel_id)}" if paid else ""
            raise NotPossibleNow(
                f"{where} spends at most ${usd:,.2f} an hour; ${spent:,.2f} is spent now, and this "
                f"would add ${asked.usd_per_hour:,.2f}{named}; use fewer or smaller machines, or "
                "wait for something to end",
                suggestion="/train list",
            )


def _named(listed: Sequence[Spending], channel_id: str) -> str:
    """Return those of the channel by name; what is in other channels is counted only."""
    own = [each for each in listed if each.channel_id == channel_id]
    words = [
        f"{each.name} by {each.user_id}"
        + (f" (${each.usd_per_hour:,.2f} an hour)" if each.usd_per_hour else "")
        for each in own[:_MOST_NAMED]
    ]
    if len(own) > _MOST_NAMED:
        words.append(f"{len(own) - _MOST_NAMED} more here")
    others = [each for each in listed if each.channel_id != channel_id]
    if others:
        usd = sum(each.usd_per_hour for each in others)
        words.append(f"{len(others)} in other channels (${usd:,.2f} an hour)")
    return ", ".join(words)

"""How much may run at once or cost: in a deployment, in a channel, of a person; 0 is no limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from pydantic import Field

from stationmaster.domain.errors import NotPossibleNow
from stationmaster.domain.frozen import Frozen

# A refusal is one sentence, and names no more than these.
_MOST_NAMED: Final = 5

Number = TypeVar("Number", int, float)


class Quota(Frozen, extra="forbid"):
    """How much somebody may have at a time; 0 is no limit."""

    runs: int = Field(default=0, ge=0)
    gpus: int = Field(default=0, ge=0)
    """Of clusters that are there or asked for."""
    usd_per_hour: float = Field(default=0, ge=0, allow_inf_nan=False)
    usd_a_month: float = Field(default=0, ge=0, allow_inf_nan=False)
    """That what is asked for in a calendar month costs, with what it is still expected to."""

    def __bool__(self) -> bool:
        return bool(self.runs or self.gpus or self.usd_per_hour or self.usd_a_month)

    def narrowed(self, other: Quota) -> Quota:
        """Return the lower of each of two limits."""
        return Quota(
            runs=lower(self.runs, other.runs),
            gpus=lower(self.gpus, other.gpus),
            usd_per_hour=lower(self.usd_per_hour, other.usd_per_hour),
            usd_a_month=lower(self.usd_a_month, other.usd_a_month),
        )


def lower(one: Number, other: Number) -> Number:
    """Return the lower of two limits, of which 0 is none."""
    return min(one, other) if one and other else one or other


class Limits(Frozen):
    """What the deployment allows in all, in the channel, and to the person who asks."""

    deployment: Quota = Quota()
    channel: Quota = Quota()
    person: Quota = Quota()

    def __bool__(self) -> bool:
        return bool(self.deployment or self.channel or self.person)


@dataclass(frozen=True)
class Spending:
    """A run, or a cluster, that is there or is asked for."""

    name: str
    channel_id: str
    user_id: str
    is_run: int
    """How many runs it is: of a study all, of a cluster none."""
    usd_per_hour: float
    """What it adds; of a run on a cluster that is listed itself, nothing."""
    gpus: int = 0
    """The same."""
    usd: float = 0
    """What it has cost and is still expected to."""


def refuse_over(
    limits: Limits, there: Sequence[Spending], asked: Spending, *, month: Sequence[Spending] = ()
) -> None:
    """Refuse what would go over a limit, with the figures and who runs what.

    Args:
        month: what was asked for in the channel this month, also what has ended.

    Raises:
        NotPossibleNow: naming the first limit that it would go over.
    """
    mine = [each for each in month if each.user_id == asked.user_id]
    here = [each for each in there if each.channel_id == asked.channel_id]
    own = [each for each in here if each.user_id == asked.user_id]
    for where, listed, counted, quota in (
        ("this deployment", there, (), limits.deployment),
        ("this channel", here, month, limits.channel),
        ("each person of this channel", own, mine, limits.person),
    ):
        running = [each for each in listed if each.is_run]
        if quota.runs and asked.is_run and len(running) + asked.is_run > quota.runs:
            have = f"{len(running)} {'has' if len(running) == 1 else 'have'}"
            named = f": {_named(running, asked.channel_id)}" if running else ""
            raise NotPossibleNow(
                f"{where} runs at most {quota.runs} at a time, and {have} not ended{named}; ask "
                "for fewer, wait for one to end, or /train stop one",
                suggestion="/train list",
            )
        paid = [each for each in listed if each.usd_per_hour]
        spent, usd = sum(each.usd_per_hour for each in paid), quota.usd_per_hour
        if usd and asked.usd_per_hour and spent + asked.usd_per_hour > usd:
            named = f": {_named(paid, asked.channel_id)}" if paid else ""
            raise NotPossibleNow(
                f"{where} spends at most ${usd:,.2f} an hour; ${spent:,.2f} is spent now, and this "
                f"would add ${asked.usd_per_hour:,.2f}{named}; use fewer or smaller machines, or "
                "wait for something to end",
                suggestion="/train list",
            )
        busy = [each for each in listed if each.gpus]
        taken = sum(each.gpus for each in busy)
        if quota.gpus and asked.gpus and taken + asked.gpus > quota.gpus:
            named = f": {_named(busy, asked.channel_id)}" if busy else ""
            raise NotPossibleNow(
                f"{where} takes at most {quota.gpus} GPUs at a time; {taken} are taken now, and "
                f"this would take {asked.gpus}{named}; use fewer, or wait for something to end",
                suggestion="/train list",
            )
        expected, most = sum(each.usd for each in counted), quota.usd_a_month
        if most and asked.usd and expected + asked.usd > most:
            raise NotPossibleNow(
                f"{where} spends at most ${most:,.2f} a month; what was asked for this month costs "
                f"${expected:,.2f} with what is still expected, and this would add about "
                f"${asked.usd:,.2f}; use fewer or smaller machines, less time or a lower budget=, "
                "or ask whoever keeps cdk.json",
                suggestion="/train cost",
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
    if others := [each for each in listed if each.channel_id != channel_id]:
        usd = sum(each.usd_per_hour for each in others)
        words.append(f"{len(others)} in other channels (${usd:,.2f} an hour)")
    return ", ".join(words)

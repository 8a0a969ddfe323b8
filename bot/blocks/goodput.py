"""The part of a run's paid time in which it trained, and what took the rest."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from bot.blocks import mrkdwn as md
from stationmaster.domain.run.goodput import Cause, Goodput, goodput
from stationmaster.domain.run.view import RunView

_ENOUGH_TRAINING: Final = timedelta(minutes=10)
"""Before that, the goodput says only that the run has just begun."""
_MAX_CAUSES: Final = 5


def goodput_line(view: RunView, *, now: datetime) -> str:
    """Say what the paid time was spent on, the largest loss first; "" where that is not known."""
    found = goodput(view, now)
    if found is None:
        return ""
    lost = [pair for pair in found.spent.items() if pair[0] is not Cause.TRAINING]
    by_size = sorted(lost, key=lambda pair: -pair[1])
    causes = [f"{cause.value} {md.duration(span)}" for cause, span in by_size[:_MAX_CAUSES]]
    if rest := sum((span for _, span in by_size[_MAX_CAUSES:]), timedelta()):
        causes.append(f"others {md.duration(rest)}")
    trained, paid = md.duration(found.training), md.duration(found.paid)
    said = [f"Goodput {_fraction(found)}: {trained} training of {paid} paid", ", ".join(causes)]
    if found.usd_per_million_tokens is not None:
        emulated = " emulated" if view.run.emulated_speed else ""
        said.append(
            f"{md.money_escaped(found.usd_per_million_tokens)}{emulated} per million tokens"
        )
    return "; ".join(filter(None, said))


def goodput_so_far(view: RunView, *, now: datetime) -> str:
    """Write the goodput of a run that has ended, or has trained for long enough; else ""."""
    found = goodput(view, now)
    if found is None or (found.training < _ENOUGH_TRAINING and not view.run.phase.is_terminal):
        return ""
    return _fraction(found)


def _fraction(found: Goodput) -> str:
    return f"{'at least ' if Cause.UNKNOWN in found.spent else ''}{found.fraction:.0%}"

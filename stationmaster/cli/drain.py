"""What `stationmaster drain` does: a deployment takes no new starts, and finishes what is open."""

from __future__ import annotations

import argparse
from typing import Final

from stationmaster.cli.deployed import bot_settings
from stationmaster.domain.errors import BadCommand
from stationmaster.services import Services

_MOST_SHOWN: Final = 20


def drain(arguments: argparse.Namespace) -> int:
    """Switch it on or off, or look; 0 where nothing is open or starts are taken, else 1."""
    reason = arguments.reason.strip()
    if not (reason.isprintable() and 0 < len(reason) <= 200):
        raise BadCommand(f'--reason "{reason[:40]}": expected a sentence of 1 to 200 characters')
    services = Services(bot_settings(arguments))
    if arguments.switch == "on":
        services.guard.drain(reason, at=services.now())
    elif arguments.switch == "off":
        services.guard.undrain()
    drained = services.guard.drained()
    if drained is None:
        print("starts are taken")
        return 0
    since, why = drained
    print(f"no new starts since {since:%Y-%m-%d %H:%M} UTC: {why}")
    left = open_names(services)
    print("\n".join([*left[:_MOST_SHOWN], f"{len(left) or 'nothing'} is open"]))
    return 1 if left else 0


def open_names(services: Services) -> list[str]:
    """List the runs and clusters that have not ended, as a person names them."""
    clusters = services.cluster_states.list_open()
    return [
        *(f"run {run.run_id}: {run.phase.value}" for run in services.runs.list_open()),
        *(f"cluster {each.label}: {each.phase.value}" for each in clusters),
    ]

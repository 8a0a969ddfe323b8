"""What `stationmaster audit` does: it exports the audit of a channel, and checks its chain."""

from __future__ import annotations

import argparse
import sys

from stationmaster.cli.deployed import bot_settings
from stationmaster.domain.audit import broken_at
from stationmaster.services import Services


def audit(arguments: argparse.Namespace) -> int:
    """Print the entries as JSON Lines, oldest first; 1 where the chain is broken.

    Each line is an entry and its hash, which the next one has as `before`.
    """
    return print_chain(Services(bot_settings(arguments)), arguments.channel)


def print_chain(services: Services, channel_id: str) -> int:
    """Print the entries of a channel, each with its hash; 1 where the chain is broken."""
    entries = [*services.audit.newest_first(channel_id)][::-1]
    for entry in entries:
        print(entry.model_dump_json()[:-1] + f',"hash":"{entry.hash}"}}')
    broken = broken_at(entries)
    if broken is not None:
        print(
            f"stationmaster: entry {broken} does not follow the one before it: the audit of "
            f"channel {channel_id} was changed",
            file=sys.stderr,
        )
        return 1
    return 0

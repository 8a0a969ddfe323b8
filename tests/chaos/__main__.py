"""Play the two sweeps: the product is stopped, or fails, at each point of a run's life.

    python -m tests.chaos kills faults                all points: hours on two cores
    python -m tests.chaos kills --only TEXT           those whose name contains TEXT
    python -m tests.chaos kills --shard 2/5           the second fifth of its points
    python -m tests.chaos kills faults --json FILE    and write what was found to FILE

`kills` stops the three workflows in each state; `faults` lets each call of AWS and Kubernetes go
wrong in each way. Nothing may be left. Prints one line a figure. The exit code is 0 when nothing
was found, 1 when something was, 2 for a bad command line.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.machine import describe_machine
from tests.chaos.play import SWEEPS, WHOLE, Shard, figures_of, last_line, play_sweep, points_with


def main(argv: Sequence[str] | None = None) -> int:
    """Play the named sweeps."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    shard = _shard(parser, arguments)
    # What the product logs belongs to it; the figures alone go to the terminal.
    logging.basicConfig(level=logging.ERROR)
    machine = describe_machine()
    print("  ".join(f"{key}={value}" for key, value in machine.items()))
    figures, points = [], {}
    for name in arguments.names:
        played = play_sweep(name, only=arguments.only, shard=shard)
        print(last_line(name, played), flush=True)
        for figure in figures_of(name, played):
            print(figure.as_line(), flush=True)
            figures.append(figure.as_json())
        points[name] = [each.as_json() for each in played]
    if arguments.json:
        document = {"machine": machine, "figures": figures, "points": points}
        arguments.json.write_text(json.dumps(document, indent=2) + "\n")
    return 1 if any(each["findings"] for played in points.values() for each in played) else 0


def _shard(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> Shard:
    try:
        shard = Shard.parse(arguments.shard) if arguments.shard else WHOLE
    except ValueError as exc:
        parser.error(f"--shard: {exc}")
    for name in arguments.names:
        if not points_with(name, arguments.only):
            parser.error(f'--only: no point of the sweep {name} contains "{arguments.only}"')
        if not points_with(name, arguments.only, shard):
            parser.error(f"--shard: part {arguments.shard} of the sweep {name} has no points")
    return shard


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos", description="Play the sweeps of docs/testing.md."
    )
    parser.add_argument("names", nargs="+", choices=tuple(SWEEPS), metavar="kills|faults")
    parser.add_argument("--only", default="", metavar="TEXT", help="points whose name contains it")
    parser.add_argument("--shard", default="", metavar="N/OF", help="the Nth of so many parts")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write what was found here")
    return parser


if __name__ == "__main__":
    sys.exit(main())

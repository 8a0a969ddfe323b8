"""Measure the project's figures.

    python -m bench                       all of them, about five minutes on two cores
    python -m bench relay trainer         some of them
    python -m bench --json figures.json   and write them to a file
    python -m bench gpu --torchtitan PY   on a GPU, beside torchtitan as the Python PY has it
    python -m bench kills faults          the two sweeps, about an hour; only when they are named
    python -m bench kills --only TEXT     those of its points whose name contains TEXT
    python -m bench kills --shard 2/5     the second fifth of its points

Prints one line a figure: name, measured, target, pass or over. The exit code is 0 when every
benchmark could be measured, over its limit or not, or is not for this machine; 1 when one failed or
a sweep found something, 2 for a bad command line.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.benchmarks import BENCHMARKS, SWEEPS
from bench.figures import Figure, NotHere
from bench.machine import describe_machine, load_average


def main(argv: Sequence[str] | None = None) -> int:
    """Run the named benchmarks, or all."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    if arguments.only or arguments.shard:
        _check_points(parser, arguments)
    # What the measured parts log belongs to them; the figures alone go to the terminal.
    logging.basicConfig(level=logging.ERROR)
    machine = describe_machine()
    print("  ".join(f"{key}={value}" for key, value in machine.items()))
    figures: list[Figure] = []
    failed: list[str] = []
    left_out: dict[str, str] = {}
    if arguments.torchtitan:
        os.environ["TORCHTITAN_PYTHON"] = arguments.torchtitan
    points: dict[str, list[dict[str, Any]]] = {}
    for name in arguments.names or BENCHMARKS:
        try:
            if name in SWEEPS:
                measured, points[name] = _sweep(name, arguments.only, arguments.shard)
            else:
                measured = BENCHMARKS[name].measure()
        except NotHere as reason:
            print(f"  {name}: not measured here: {reason}", flush=True)
            left_out[name] = str(reason)
            continue
        except Exception:
            # The boundary of the program: one failed benchmark must not hide the figures of others.
            traceback.print_exc()
            failed.append(name)
            continue
        for figure in measured:
            print(figure.as_line(), flush=True)
        figures += measured
        print(f"  {name}: load average {load_average():.2f}", flush=True)
    if failed:
        print(f"could not be measured: {', '.join(failed)}")
    if arguments.json:
        document = {
            "machine": machine,
            "figures": [figure.as_json() for figure in figures],
            "not_measured": failed,
            "not_for_this_machine": left_out,
            "points": points,
        }
        arguments.json.write_text(json.dumps(document, indent=2) + "\n")
    found = any(each["findings"] for played in points.values() for each in played)
    return 1 if failed or found else 0


def _check_points(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    from bench.sweeps.play import WHOLE, Shard, points_with  # as in _sweep

    option = "only" if arguments.only else "shard"
    said = f'--{option} "{vars(arguments)[option]}"'
    sweeps = [name for name in arguments.names if name in SWEEPS]
    if not sweeps:
        parser.error(f"{said} chooses points of a sweep: name {' or '.join(SWEEPS)}")
    try:
        shard = Shard.parse(arguments.shard) if arguments.shard else WHOLE
    except ValueError as exc:
        parser.error(f"--shard: {exc}")
    for name in sweeps:
        if not points_with(name, arguments.only):
            parser.error(f'--only: no point of the sweep {name} contains "{arguments.only}"')
        if not points_with(name, arguments.only, shard):
            parser.error(f"--shard: part {arguments.shard} of the sweep {name} has no points")


def _sweep(name: str, only: str, shard: str) -> tuple[Sequence[Figure], list[dict[str, Any]]]:
    # Imported here: it loads the whole product and its emulated account.
    from bench.sweeps.play import WHOLE, Shard, figures_of, last_line, play_sweep

    played = play_sweep(name, only=only, shard=Shard.parse(shard) if shard else WHOLE)
    print(last_line(name, played), flush=True)
    return figures_of(name, played), [each.as_json() for each in played]


def _name(text: str) -> str:
    known = (*BENCHMARKS, *SWEEPS)
    if text not in known:
        raise argparse.ArgumentTypeError(f'"{text}" is none of {", ".join(known)}')
    return text


def _parser() -> argparse.ArgumentParser:
    names = "\n".join(f"  {one.name:<14}{one.summary}" for one in BENCHMARKS.values())
    sweeps = "\n".join(f"  {name:<14}{summary}" for name, summary in SWEEPS.items())
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Measure the figures of docs/figures.md.",
        epilog=f"benchmarks:\n{names}\nsweeps, only when they are named:\n{sweeps}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", type=_name, help="see below; all")
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="sweeps: the points whose name contains it"
    )
    parser.add_argument(
        "--shard", default="", metavar="N/OF", help="sweeps: the Nth of so many equal parts"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures here")
    parser.add_argument(
        "--torchtitan",
        metavar="PYTHON",
        help="gpu: the Python that torchtitan is installed for (default: this one)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())

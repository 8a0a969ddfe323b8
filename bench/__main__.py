"""Measure the project's figures.

    python -m bench                       all of them, about five minutes on two cores
    python -m bench relay trainer         some of them
    python -m bench --json figures.json   and write them to a file
    python -m bench gpu --torchtitan PY   on a GPU, beside torchtitan as the Python PY has it

Prints one line a figure: name, measured, target, pass or over. The exit code is 0 when every
benchmark could be measured, over its limit or not, or is not for this machine; 1 when one failed, 2
for a bad command line.
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

from bench.benchmarks import BENCHMARKS
from bench.figures import Figure, NotHere
from bench.machine import describe_machine, load_average


def main(argv: Sequence[str] | None = None) -> int:
    """Run the named benchmarks, or all."""
    arguments = _parser().parse_args(argv)
    # What the measured parts log belongs to them; the figures alone go to the terminal.
    logging.basicConfig(level=logging.ERROR)
    machine = describe_machine()
    print("  ".join(f"{key}={value}" for key, value in machine.items()))
    figures: list[Figure] = []
    failed: list[str] = []
    left_out: dict[str, str] = {}
    if arguments.torchtitan:
        os.environ["TORCHTITAN_PYTHON"] = arguments.torchtitan
    for name in arguments.names or BENCHMARKS:
        try:
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
        }
        arguments.json.write_text(json.dumps(document, indent=2) + "\n")
    return 1 if failed else 0


def _name(text: str) -> str:
    if text not in BENCHMARKS:
        raise argparse.ArgumentTypeError(f'"{text}" is none of {", ".join(BENCHMARKS)}')
    return text


def _parser() -> argparse.ArgumentParser:
    names = "\n".join(f"  {one.name:<14}{one.summary}" for one in BENCHMARKS.values())
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Measure the figures of docs/figures.md.",
        epilog=f"benchmarks:\n{names}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", type=_name, help="see below; all")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures here")
    parser.add_argument(
        "--torchtitan",
        metavar="PYTHON",
        help="gpu: the Python that torchtitan is installed for (default: this one)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())

"""Measure the project's figures.

    python -m bench                       all of them, about five minutes on two cores
    python -m bench saving trainer        some of them
    python -m bench gpu --torchtitan PY   on a GPU, beside torchtitan as the Python PY has it

Prints one line a figure: name, measured, target, pass or over. The exit code is 0 when every
benchmark could be measured, over its limit or not, or is not for this machine; 1 when one failed, 2
for a bad command line.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import platform
import subprocess
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Final

from bench.figures import NotHere

# By name, in their order: module and function, and a summary. A module is imported when its
# benchmark runs: some load torch, or a whole AWS emulation, and none may slow down the next.
BENCHMARKS: Final = {
    "bot-import": ("bot.measure_import", "CPU of a cold start's imports"),
    "bot-handling": ("bot.measure_handling", "20 warm functions at once"),
    "critical-path": (
        "critical_path.measure_critical_path",
        "request to first step against what scripts take, simulated",
    ),
    "relay-load": ("relay_load.measure_relay_load", "100 pods, a kill and a bus that is away"),
    "data": ("data.measure_data", "tokenise and pack, load"),
    "checkpoint": ("trainer.measure_checkpoints", "stall of a save"),
    "saving": ("saver.measure_saving", "saver against plain uploads"),
    "trainer": ("trainer.measure_trainer", "trainer against a bare loop"),
    "recovery": ("recovery.measure_recovery", "from a death to the next step"),
    "gpu": ("gpu.measure_gpu", "Llama 3.2 1B beside torchtitan, on a GPU"),
    "main-job": ("job.measure_job", "a run from command to receipt"),
    "slack-calls": ("job.measure_slack_calls", "edits a minute of that run"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the named benchmarks, or all."""
    arguments = _parser().parse_args(argv)
    # What the measured parts log belongs to them; the figures alone go to the terminal.
    logging.basicConfig(level=logging.ERROR)
    machine = describe_machine()
    print("  ".join(f"{key}={value}" for key, value in machine.items()))
    failed: list[str] = []
    if arguments.torchtitan:
        os.environ["TORCHTITAN_PYTHON"] = arguments.torchtitan
    for name in arguments.names or BENCHMARKS:
        module, function = BENCHMARKS[name][0].split(".")
        try:
            measured = getattr(importlib.import_module(f"bench.{module}"), function)()
        except NotHere as reason:
            print(f"  {name}: not measured here: {reason}", flush=True)
            continue
        except Exception:
            # The boundary of the program: one failed benchmark must not hide the figures of others.
            traceback.print_exc()
            failed.append(name)
            continue
        for figure in measured:
            print(figure.as_line(), flush=True)
        # Above the number of cores, wall clocks are too slow.
        print(f"  {name}: load average {os.getloadavg()[0]:.2f}", flush=True)
    if failed:
        print(f"could not be measured: {', '.join(failed)}")
    return 1 if failed else 0


def _name(text: str) -> str:
    if text not in BENCHMARKS:
        raise argparse.ArgumentTypeError(f'"{text}" is none of {", ".join(BENCHMARKS)}')
    return text


def _parser() -> argparse.ArgumentParser:
    names = "\n".join(f"  {name:<14}{summary}" for name, (_, summary) in BENCHMARKS.items())
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Measure the figures of docs/figures.md.",
        epilog=f"benchmarks:\n{names}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", type=_name, help="see below; all")
    parser.add_argument(
        "--torchtitan",
        metavar="PYTHON",
        help="gpu: the Python that torchtitan is installed for (default: this one)",
    )
    return parser


def describe_machine() -> dict[str, object]:
    """Cores, processor, memory, versions, and how loaded the machine is at the moment."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    commit = ["git", "rev-parse", "--short", "HEAD"]
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": cores,
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "python": platform.python_version(),
        "torch": version("torch"),
        "commit": subprocess.check_output(commit, cwd=Path(__file__).parent, text=True).strip(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
    }


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


if __name__ == "__main__":
    sys.exit(main())

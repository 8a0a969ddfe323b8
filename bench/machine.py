"""Says on what machine figures were measured, so that they can be compared with others.

Called by `bench.__main__`. It must not import torch: its version is read from the metadata.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def describe_machine() -> dict[str, object]:
    """Cores, processor, memory, versions, and how loaded the machine is at the moment."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": cores,
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "python": platform.python_version(),
        "torch": _version("torch"),
        "commit": _commit(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
    }


def load_average() -> float:
    """Return that of the last minute: above the number of cores, wall clocks are too slow."""
    return os.getloadavg()[0]


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _commit() -> str:
    git = shutil.which("git")
    if git is None:
        return "unknown"
    answer = subprocess.run(
        [git, "rev-parse", "--short", "HEAD"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return answer.stdout.strip() or "unknown"

"""Says on what machine figures were measured, so that they can be compared with others.

Called by `bench.__main__`. It must not import torch: its version is read from the metadata.
"""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path


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

"""python -m training.node_facts

Prints one line of JSON with what this container sees of its node: nvidia-smi's table, the EFA
devices of libfabric, the limit of locked memory, kernel modules, and the versions of NCCL and of
its plugin. It judges nothing, so it ends with exit code 0 whatever it finds. The check `gpu-health`
runs it.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

# Fields of nvidia-smi --query-gpu, and a second name where older drivers have another. Drivers do
# not know all of them: only what --help-query-gpu lists is asked for. Source: the catalogue of
# utkuozdemir/nvidia_gpu_exporter, compared there with driver 590.48.01 on an H100 (2026-11-23).
FIELDS: Final[tuple[tuple[str, ...], ...]] = (
    ("index",),
    ("uuid",),
    ("driver_version",),
    ("ecc.mode.current",),
    ("ecc.errors.uncorrected.volatile.total",),
    ("mig.mode.current",),
    ("pstate",),
    ("temperature.gpu",),
    ("clocks_event_reasons.active", "clocks_throttle_reasons.active"),
    ("retired_pages.pending",),
    ("remapped_rows.pending",),
    ("remapped_rows.failure",),
    ("gpu_recovery_action",),
)
# What every driver knows; asked for alone where the list cannot be read.
_LEAST_FIELDS: Final = ("index", "uuid", "driver_version")
# GPUs and EFA reach each other's memory through one of these, or through dma-buf without any.
MODULES: Final = ("efa", "efa_nv_peermem", "gdrdrv", "nvidia", "nvidia_peermem")
# Where installers put aws-ofi-nccl. Source: EFA installer 1.38 and later, NGC's containers,
# aws-ofi-nccl's own instructions.
PLUGIN_FOLDERS: Final = (
    "/opt/amazon/ofi-nccl/lib",
    "/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu",
    "/opt/amazon/ofi-nccl/lib64",
    "/opt/amazon/aws-ofi-nccl/lib",
    "/opt/aws-ofi-nccl/lib",
    "/opt/aws-ofi-nccl/install/lib",
)
_PLUGIN_VERSION: Final = re.compile(rb"aws-ofi-nccl (\d+\.\d+\.\d+)")
# A driver in trouble can keep nvidia-smi waiting for ever.
_COMMAND_S: Final = 60
_MAX_OUTPUT: Final = 8000
# The list of fields is read here and not passed on. Driver 580 prints 32,472 characters.
_MAX_HELP: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command printed; `exit_code` is None where it is not installed or did not end."""

    exit_code: int | None
    output: str


def ask(command: Sequence[str], *, most: int = _MAX_OUTPUT) -> Answer:
    """Run a command and keep the beginning of what it prints, its complaints behind the rest."""
    if shutil.which(command[0]) is None:
        return Answer(None, f"{command[0]} is not in the container")
    try:
        ended = subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_COMMAND_S,
        )
    except subprocess.TimeoutExpired:
        return Answer(None, f"{command[0]} did not end within {_COMMAND_S} s")
    return Answer(ended.returncode, (ended.stdout + ended.stderr)[:most])


def known_fields(help_text: str) -> list[str]:
    """List the names of FIELDS in the output of nvidia-smi --help-query-gpu, in their order."""
    listed = set(re.findall(r'"([\w.]+)"', help_text))
    chosen = (next((name for name in names if name in listed), None) for names in FIELDS)
    found = [name for name in chosen if name is not None]
    return found if set(_LEAST_FIELDS) <= set(found) else list(_LEAST_FIELDS)


def efa_devices(fi_info: str) -> list[str]:
    """List EFA devices in the output of fi_info -p efa, which lists each several times."""
    domains = re.findall(r"^\s*domain:\s*(\S+)", fi_info, re.MULTILINE)
    return sorted({re.sub(r"-(rdm|dgrm|direct)$", "", domain) for domain in domains})


def loaded_modules(proc_modules: str) -> list[str]:
    """List those of MODULES that the text of /proc/modules names."""
    loaded = {line.split(maxsplit=1)[0] for line in proc_modules.splitlines() if line.strip()}
    return [name for name in MODULES if name in loaded]


def plugin_version(folders: Iterable[str] = PLUGIN_FOLDERS) -> str:
    """Return the version that the first libnccl-net*.so of aws-ofi-nccl names, or ""."""
    for folder in folders:
        for library in sorted(Path(folder).glob("libnccl-net*.so*")):
            match = _PLUGIN_VERSION.search(library.read_bytes())
            if match:
                return match[1].decode()
    return ""


def nccl_version(distributions: Iterable[metadata.Distribution]) -> str:
    """Return the version of NCCL that PyTorch's wheels brought, or ""."""
    for distribution in distributions:
        if (distribution.metadata["Name"] or "").startswith("nvidia-nccl-cu"):
            return distribution.version
    return ""


def _nvidia_smi() -> dict[str, object]:
    """Return the table of this container's GPUs, and which fields its columns are."""
    fields = known_fields(ask(["nvidia-smi", "--help-query-gpu"], most=_MAX_HELP).output)
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    if visible := os.environ.get("CUDA_VISIBLE_DEVICES", ""):
        command.append(f"--id={visible}")
    return {"fields": fields, **asdict(ask(command))}


def _efa() -> dict[str, object]:
    answer = ask(["fi_info", "-p", "efa"])
    return {"devices": efa_devices(answer.output), **asdict(answer), "output": answer.output[:500]}


def _modules() -> list[str] | None:
    try:
        return loaded_modules(Path("/proc/modules").read_text())
    except OSError:
        return None


def main() -> int:
    locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    facts = {
        "stationmaster": 1,
        "kind": "node_facts",
        "nvidia_smi": _nvidia_smi(),
        "efa": _efa(),
        "locked_memory_bytes": None if locked == resource.RLIM_INFINITY else locked,
        "modules": _modules(),
        "versions": {
            "nccl": nccl_version(metadata.distributions()),
            "ofi": plugin_version(),
        },
    }
    sys.stdout.write(json.dumps(facts) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

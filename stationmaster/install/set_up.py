"""What `make setup` and `make demo` install, step by step, and how they know that it is done.

One environment, .venv, serves both. Each kind of set-up has a marker file in it, with a fingerprint
of everything that decides what gets installed; where the fingerprint is the same nothing is done.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stationmaster.install.installers import CONSTRAINTS, InstallFailed, choose_installer, install

VENV: Final = Path(".venv")
PYTHON: Final = VENV / "bin" / "python"


@dataclass(frozen=True)
class Kind:
    """A set-up: an extra of pyproject.toml, and the free disk space that it needs."""

    purpose: str
    extra: str
    marker: str
    needed_gb: float


# Measured with the CPU build of torch: 1.4 and 2.7 GB, and the same again while it is unpacked.
LOCAL: Final = Kind("local mode", extra="local", marker=".ready-local", needed_gb=2)
EVERYTHING: Final = Kind("development", extra="dev", marker=".ready", needed_gb=4)
KINDS: Final = {"local": LOCAL, "everything": EVERYTHING}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python3 -m stationmaster.install", description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--installer", choices=("uv", "pip"), default="uv")
    arguments = parser.parse_args()
    try:
        set_up(KINDS[arguments.kind], installer=arguments.installer)
    except (InstallFailed, OSError) as exc:
        print(f"error: {exc}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; the same command continues the set-up", file=sys.stderr)
        return 130
    return 0


def set_up(kind: Kind, *, installer: str) -> None:
    """Install what the kind needs, unless that is done.

    Raises:
        InstallFailed: one sentence for the person who waits.
    """
    fingerprint = fingerprint_of()
    if is_done(kind, fingerprint):
        return
    started = time.monotonic()
    _say(f"Setting up {VENV} for {kind.purpose}; this happens once.")
    _check_space(kind)
    _make_environment()
    uv = choose_installer(PYTHON, wanted=installer, report=lambda line: _say(f"  2/3 {line}"))
    _say("  3/3 packages: torch is most of the download")
    requirements = ["--editable", f".[{kind.extra}]"]
    install(PYTHON, requirements, uv=uv, report=lambda line: _say(f"      {line}"))
    (VENV / kind.marker).write_text(fingerprint)
    _say(f"Set-up done after {time.monotonic() - started:.0f} s.")


def fingerprint_of(
    pyproject: Path = Path("pyproject.toml"), constraints: Path = Path(CONSTRAINTS)
) -> str:
    """Return what decides which packages are installed and how; a tool's settings do not count."""
    project = tomllib.loads(pyproject.read_text())
    parts = [
        project["project"],
        project["build-system"],
        project["tool"]["setuptools"],
        constraints.read_text(),
    ]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def is_done(kind: Kind, fingerprint: str, *, venv: Path = VENV) -> bool:
    """Say whether this set-up, or the one that contains it, was completed with this fingerprint."""
    if not (venv / "bin" / "python").exists():
        return False
    markers = [venv / name for name in {kind.marker, EVERYTHING.marker}]
    return any(marker.exists() and marker.read_text() == fingerprint for marker in markers)


def _make_environment() -> None:
    version = ".".join(str(part) for part in sys.version_info[:3])
    if PYTHON.exists():
        there = _version_of(PYTHON)
        if there.split(".")[:2] != version.split(".")[:2]:
            raise InstallFailed(
                f"{VENV} is made with Python {there}, and Python {version} was asked for: remove "
                f"it first (rm -r {VENV})"
            )
        _say(f"  1/3 Python {there}: the environment in {VENV}")
        return
    _say(f"  1/3 Python {version}: a new environment in {VENV}")
    made = subprocess.run(
        [sys.executable, "-m", "venv", "--clear", VENV], check=False, capture_output=True, text=True
    )
    if made.returncode:
        shutil.rmtree(VENV, ignore_errors=True)
        raise InstallFailed(_why_no_environment(made.stdout + made.stderr))


def _why_no_environment(output: str) -> str:
    if "ensurepip" in output or "No module named venv" in output:
        package = f"python{sys.version_info[0]}.{sys.version_info[1]}-venv"
        return (
            f"{sys.executable} cannot make virtual environments: install its venv module "
            f"(Debian and Ubuntu: apt install {package})"
        )
    return f"{sys.executable} -m venv {VENV} failed: {output.strip() or 'no message'}"


def _version_of(python: Path) -> str:
    asked = "import platform; print(platform.python_version())"
    answer = subprocess.run([python, "-c", asked], check=False, capture_output=True, text=True)
    if answer.returncode:
        raise InstallFailed(f"{python} does not run: remove {VENV} (rm -r {VENV}) and start again")
    return answer.stdout.strip()


def _check_space(kind: Kind) -> None:
    free_gb = shutil.disk_usage(".").free / 1e9
    if free_gb < kind.needed_gb:
        raise InstallFailed(
            f"{free_gb:.1f} GB are free on the disk of {Path.cwd()}, and {kind.needed_gb:g} GB "
            "are needed: free some space, then run the same command again"
        )


def _say(line: str) -> None:
    print(line, flush=True)

"""python3 -m stationmaster.install.interpreters tests/domain tests/rendering

Runs fast tests with one other supported Python of this machine: the one whose version is farthest
from this one's. It gets a small environment inside .venv with the packages of the extra
`fast-tests`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from stationmaster.install.installers import InstallFailed, choose_installer, install
from stationmaster.install.set_up import PYTHON, VENV, fingerprint_of

SUPPORTED: Final = ((3, 11), (3, 12), (3, 13))
_MARKER: Final = ".ready"


def main() -> int:
    """Test with the farthest other Python; return 1 when a test or the installation fails."""
    others = others_than(sys.version_info[:2])
    for name in others:
        if python := find_python(name):
            break
    else:
        print(
            f"neither Python {' nor '.join(others)} is on this machine: tested with none but this"
        )
        return 0
    print(f"Python {name}: {python}", flush=True)
    try:
        environment = _environment(python, VENV / "other" / name)
    except InstallFailed as exc:
        print(f"error: {exc}", file=sys.stderr)
        return 1
    how = ["-q", "-p", "no:cacheprovider", "-m", "not thorough"]
    tested = subprocess.run([environment, "-m", "pytest", *how, *sys.argv[1:]], check=False)
    return int(tested.returncode != 0)


def others_than(version: tuple[int, int]) -> list[str]:
    """Return the other supported versions, the farthest first."""
    others = [each for each in SUPPORTED if each != version]
    others.sort(key=lambda each: -abs(each[1] - version[1]))
    return [".".join(map(str, each)) for each in others]


def find_python(name: str) -> str | None:
    """Find Python NAME: of pyenv's versions, whose shims may not run, the newest; then on PATH."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    of_pyenv = sorted(map(str, root.glob(f"versions/{name}.*/bin")), reverse=True)
    return shutil.which(f"python{name}", path=os.pathsep.join([*of_pyenv, os.environ["PATH"]]))


def _environment(python: str, folder: Path) -> Path:
    """Make or update the environment; gives its Python."""
    fingerprint = fingerprint_of()
    marker = folder / _MARKER
    inside = folder / "bin" / "python"
    if inside.exists() and marker.exists() and marker.read_text() == fingerprint:
        return inside
    # Nothing is reported: the environments are small.
    uv = choose_installer(PYTHON, wanted="uv", report=lambda _line: None)
    # uv installs from outside; pip has to be inside.
    make: list[str | Path] = [python, "-m", "venv", "--clear"]
    make += ["--without-pip", folder] if uv else [folder]
    made = subprocess.run(make, check=False, capture_output=True, text=True)
    if made.returncode:
        raise InstallFailed(f"{python} cannot make an environment: {made.stdout}{made.stderr}")
    install(inside, ["--editable", ".[fast-tests]"], uv=uv, report=lambda _line: None)
    marker.write_text(fingerprint)
    return inside


if __name__ == "__main__":
    sys.exit(main())

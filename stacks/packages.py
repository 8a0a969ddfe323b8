"""What goes into a function's package: our folders, third-party requirements, a fingerprint.

It knows nothing of the CDK, so it is tested without.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from lambdas.registry import Package

ROOT: Final = Path(__file__).parent.parent
PYTHON_VERSION: Final = "3.13"
# What Amazon Linux 2023 (glibc 2.34) runs, on the architecture that the tests run on: the wheels
# that were tested are those that are shipped, and what arm64 would save is cents a run.
PLATFORMS: Final = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")

# How the project's extras include each other in pyproject.toml.
_OWN_EXTRAS: Final = re.compile(r"stationmaster\[([a-z,]+)\]")
FOLDERS: Final = {
    Package.LAMBDAS: ("stationmaster", "lambdas", "manifests"),
    Package.BOT: ("stationmaster", "bot"),
}
# Parts of `stationmaster` that run elsewhere than in functions.
NOT_IN_FUNCTIONS: Final = ("cli", "install", "local", "relay")
# What nothing here imports: the asynchronous twin of the Kubernetes client, 40 MB, and all of
# Plotly, 70 MB, but the script that pages embed.
LEFT_OUT: Final = ("kubernetes/aio/", "plotly/", "narwhals/")
_CARRIED: Final = "plotly/package_data/plotly.min.js"


def requirements(package: Package, pyproject: dict[str, Any]) -> list[str]:
    """List third-party requirements of a package: the project's own and those of its extra."""
    extras = pyproject["project"]["optional-dependencies"]

    def expand(requirement: str) -> Iterator[str]:
        own = _OWN_EXTRAS.fullmatch(requirement)
        if own is None:
            yield requirement
            return
        for extra in own[1].split(","):
            for nested in extras[extra]:
                yield from expand(nested)

    wanted = [*pyproject["project"]["dependencies"], *extras[package.value]]
    return sorted({each for requirement in wanted for each in expand(requirement)})


def install(package: Package, output_dir: Path) -> None:
    """Fill `output_dir` with wheels for Lambda's platform and our folders beside them.

    boto3 is carried too: the runtime's own changes under a deployed function, ours was tested.
    """
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "--quiet", "--no-compile"),
            *("--disable-pip-version-check", "--target", str(output_dir)),
            *(f"--platform={platform}" for platform in PLATFORMS),
            *("--python-version", PYTHON_VERSION),
            *("--only-binary", ":all:", "--constraint", str(ROOT / "constraints.txt")),
            *requirements(package, pyproject),
        ],
        check=True,
    )
    for path in [*output_dir.rglob("*")]:
        if path.is_file() and is_left_out(path.relative_to(output_dir).as_posix()):
            path.unlink()
    for folder in FOLDERS[package]:
        for path in files_of(folder):
            target = output_dir / path.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)


def is_left_out(name: str) -> bool:
    """Say whether a file of a library, by its place in the package, is not carried."""
    return name.startswith(LEFT_OUT) and name != _CARRIED


def fingerprint(package: Package) -> str:
    """Digest everything that decides what `install` writes."""
    digest = hashlib.sha256()
    paths = [ROOT / "constraints.txt", ROOT / "pyproject.toml", ROOT / "stacks/packages.py"]
    for folder in FOLDERS[package]:
        paths += files_of(folder)
    for path in paths:
        digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def files_of(folder: str) -> list[Path]:
    """List the files of one of our folders that a function carries, sorted."""
    elsewhere = [ROOT / "stationmaster" / part for part in NOT_IN_FUNCTIONS]
    return sorted(
        path
        for path in (ROOT / folder).rglob("*")
        if path.is_file()
        and "__pycache__" not in path.parts
        and not any(path.is_relative_to(part) for part in elsewhere)
    )

"""How large the functions' packages are, beside what Lambda takes.

They are those of the distributions that are installed here; the pins of a deployment are the same,
so the two differ by what a wheel of another Python has more or less. `make synth` prints it, and a
test holds it.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Mapping
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from lambdas.registry import Package
from stacks.packages import FOLDERS, PYTHON_VERSION, ROOT, files_of, is_left_out, requirements

# Source: Lambda developer guide, "Lambda quotas": 250 MB unzipped, layers included.
LAMBDA_TAKES_MB: Final = 250
# What a package may have grown to before somebody looks at what it carries.
LIMITS_MB: Final = {Package.LAMBDAS: 95, Package.BOT: 75}
_MB: Final = 1024 * 1024
# Where functions run, as markers of requirements see it.
_THERE: Final = {
    "python_version": PYTHON_VERSION,
    "python_full_version": f"{PYTHON_VERSION}.0",
    "sys_platform": "linux",
    "platform_system": "Linux",
    "platform_machine": "x86_64",
    "os_name": "posix",
}

Files = Mapping[str, Path]


def installed_files(package: Package) -> Files:
    """List every file of the package in this environment, by its place in the package."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    found: dict[str, Path] = {}
    for carried in _closure(requirements(package, pyproject)).values():
        for file in carried.files or ():
            path = Path(str(carried.locate_file(file)))
            # Scripts lie outside of the folder of modules; each Python compiles for itself.
            if ".." in file.parts or is_left_out(str(file)):
                continue
            if path.suffix != ".pyc" and path.is_file():
                found[str(file)] = path
    for folder in FOLDERS[package]:
        found |= {str(path.relative_to(ROOT)): path for path in files_of(folder)}
    return found


def unzipped_mb(files: Files) -> float:
    """Sum up what Lambda counts."""
    return sum(path.stat().st_size for path in files.values()) / _MB


def _closure(wanted: list[str]) -> dict[str, Distribution]:
    """Collect what the requirements bring with them, by name."""
    found: dict[str, Distribution] = {}
    texts = list(wanted)
    for requirement in map(Requirement, texts):  # which grows meanwhile
        carried = distribution(requirement.name)
        found[canonicalize_name(requirement.name)] = carried
        environments = [{**_THERE, "extra": each} for each in ("", *requirement.extras)]
        for text in carried.requires or ():
            marker = Requirement(text).marker
            is_needed = marker is None or any(map(marker.evaluate, environments))
            if is_needed and text not in texts:
                texts.append(text)
    return found


def main() -> int:
    """Print a line for each package; returns 1 where one is over its limit."""
    over = False
    print(f"{'package':<9}{'unzipped':>10}{'limit':>8}{'Lambda':>8}")
    for package in Package:
        size, limit = unzipped_mb(installed_files(package)), LIMITS_MB[package]
        print(f"{package.value:<9}{size:>7.1f} MB{limit:>5} MB{LAMBDA_TAKES_MB:>5} MB")
        over |= size > limit
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())

"""What a function carries: our packages and their pinned dependencies, put together without Docker.

Each registry Package is one asset, shared by all functions of that package. boto3 is carried too,
although the runtime has one: the runtime's changes under a deployed function, ours was tested.
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

import aws_cdk as cdk
import jsii
from aws_cdk import aws_lambda as lambda_

from lambdas.registry import Package

ROOT: Final = Path(__file__).parent.parent.parent
RUNTIME: Final = lambda_.Runtime.PYTHON_3_13
_PYTHON_VERSION: Final = "3.13"
# The architecture that the tests run on, so that the wheels that were tested are those that are
# shipped; what arm64 would save is cents a run.
ARCHITECTURE: Final = lambda_.Architecture.X86_64
_PLATFORM: Final = "manylinux2014_x86_64"

# How the project's extras include each other in pyproject.toml.
_OWN_EXTRAS: Final = re.compile(r"stationmaster\[([a-z,]+)\]")
_FOLDERS: Final = {
    Package.LAMBDAS: ("stationmaster", "lambdas", "manifests"),
    Package.BOT: ("stationmaster", "bot"),
}
_IGNORED: Final = shutil.ignore_patterns("__pycache__", "*.pyc")


def code_of(package: Package) -> lambda_.Code:
    """The code asset of a package; its hash covers our files and the pins, not the time."""
    return lambda_.Code.from_asset(
        str(ROOT),
        asset_hash=_fingerprint(package),
        asset_hash_type=cdk.AssetHashType.CUSTOM,
        bundling=cdk.BundlingOptions(
            image=RUNTIME.bundling_image,
            command=["false"],  # never in Docker: when pip fails the synthesis fails
            local=PipBundling(package),
        ),
    )


def requirements(package: Package, pyproject: dict[str, Any]) -> list[str]:
    """Third-party requirements of a package: the project's own and those of its extra."""
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


@jsii.implements(cdk.ILocalBundling)
class PipBundling:
    """Installs wheels for Lambda's platform and copies our packages beside them."""

    def __init__(self, package: Package) -> None:
        self._package = package

    def try_bundle(self, output_dir: str, *_args: Any, **_kwargs: Any) -> bool:
        """Fill `output_dir`; called by the CDK, which treats False as "use Docker"."""
        pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
        subprocess.run(
            [
                *(sys.executable, "-m", "pip", "install", "--quiet", "--no-compile"),
                *("--disable-pip-version-check", "--target", output_dir),
                *("--platform", _PLATFORM, "--python-version", _PYTHON_VERSION),
                *("--only-binary", ":all:", "--constraint", str(ROOT / "constraints.txt")),
                *requirements(self._package, pyproject),
            ],
            check=True,
        )
        for folder in _FOLDERS[self._package]:
            shutil.copytree(ROOT / folder, Path(output_dir) / folder, ignore=_IGNORED)
        return True


def _fingerprint(package: Package) -> str:
    digest = hashlib.sha256()
    paths = [ROOT / "constraints.txt", ROOT / "pyproject.toml"]
    for folder in _FOLDERS[package]:
        files = (path for path in (ROOT / folder).rglob("*") if path.is_file())
        paths += sorted(path for path in files if "__pycache__" not in path.parts)
    for path in paths:
        digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()

"""The code assets of the functions, one for each Package, put together without Docker."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Any, Final

import aws_cdk as cdk
import jsii
from aws_cdk import aws_lambda as lambda_

from lambdas.registry import Package
from stacks.packages import ROOT, fingerprint, install

# Both must say the same as PYTHON_VERSION and PLATFORMS of `packages`.
RUNTIME: Final = lambda_.Runtime.PYTHON_3_13
# The rules of channels, beside the code: read without a call, and deployed with it.
RULES_FILE: Final = "rules.json"
ARCHITECTURE: Final = lambda_.Architecture.X86_64


def code_of(package: Package, rules: str = "") -> lambda_.Code:
    """Make the code asset of a package; its hash covers our files and the pins, not the time.

    Args:
        rules: what RULES_FILE is to hold; without it there is none.
    """
    hashed = hashlib.sha256(f"{_fingerprint(package)}{rules}".encode()).hexdigest()
    return lambda_.Code.from_asset(
        str(ROOT),
        asset_hash=hashed,
        asset_hash_type=cdk.AssetHashType.CUSTOM,
        bundling=cdk.BundlingOptions(
            image=RUNTIME.bundling_image,
            command=["false"],  # never in Docker: when pip fails the synthesis fails
            local=PipBundling(package, rules),
        ),
    )


# All functions of a package ask for it, and reading our files takes some tenths of a second.
_fingerprint = cache(fingerprint)


@jsii.implements(cdk.ILocalBundling)
class PipBundling:
    """Hands the CDK's request for a bundle on to `packages.install`."""

    def __init__(self, package: Package, rules: str) -> None:
        self._package = package
        self._rules = rules

    def try_bundle(self, output_dir: str, *_args: Any, **_kwargs: Any) -> bool:
        """Fill `output_dir`; called by the CDK, which treats False as "use Docker"."""
        install(self._package, Path(output_dir))
        if self._rules:
            (Path(output_dir) / RULES_FILE).write_text(self._rules)
        return True

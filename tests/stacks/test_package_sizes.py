"""How large the functions' packages are: far from what Lambda refuses, and nothing joins unseen."""

from __future__ import annotations

import pytest

from lambdas.registry import Package
from stacks.package_sizes import LAMBDA_TAKES_MB, LIMITS_MB, installed_files, unzipped_mb

# Imported by the functions of each package, and by no other; of a layer there is none.
CARRIED = {
    Package.LAMBDAS: {
        "kubernetes",
        "botocore",
        "aws_lambda_powertools",
        "aws_xray_sdk",
        "pydantic",
    },
    Package.BOT: {"slack_bolt", "slack_sdk", "PIL", "botocore", "aws_xray_sdk", "pydantic"},
}
NOT_CARRIED = {"torch", "moto", "aws_cdk", "transformers", "pytest", "tests", "local", "training"}


@pytest.mark.parametrize("package", Package)
def test_package_is_below_its_limit_and_has_what_its_functions_import(package: Package) -> None:
    files = installed_files(package)

    folders = {name.partition("/")[0] for name in files}
    assert CARRIED[package] <= folders
    assert not NOT_CARRIED & folders
    assert not [name for name in files if name.startswith("kubernetes/aio/")]
    assert unzipped_mb(files) < LIMITS_MB[package] < LAMBDA_TAKES_MB / 2

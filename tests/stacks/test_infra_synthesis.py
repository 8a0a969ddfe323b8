"""The templates as a whole, and what is put into the functions' packages.

That the AwsSolutions rules pass is part of the fixture: synthesis fails on a finding.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from infra_templates import Template
from syntheses import VARIANTS

from lambdas.registry import Package
from stacks import packages
from stacks.package_sizes import LAMBDA_TAKES_MB, LIMITS_MB, installed_files, unzipped_mb

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize("variant", VARIANTS)
def test_templates_pass_cfn_lint(variant: str, syntheses: Path) -> None:
    finished = subprocess.run(
        [
            *(str(Path(sys.executable).parent / "cfn-lint"), "--format", "parseable"),
            # W3005: the CDK writes DependsOn where a reference already says so; it does no harm.
            # W3010: zones are named because somebody's cdk.json names them.
            *("--ignore-checks", "W3005", "W3010", "--"),
            *sorted(str(path) for path in (syntheses / variant).glob("*.template.json")),
        ],
        capture_output=True,
        text=True,
        check=False,
    )

    assert finished.returncode == 0, finished.stdout[-4000:] + finished.stderr[-2000:]


@pytest.mark.parametrize(("careless", "rule"), [("queue", "AwsSolutions-SQS4"), ("group", "F3031")])
def test_app_refuses_what_breaks_the_rules(careless: str, rule: str, syntheses: Path) -> None:
    assert rule in json.loads((syntheses / "refused.json").read_text())[careless]


def test_application_has_the_six_stacks(templates: dict[str, Template]) -> None:
    assert set(templates) == {"network", "data", "images", "workflow", "bot", "observability"}


def test_nothing_that_stays_has_a_name_which_the_next_deployment_would_want(
    templates: dict[str, Template],
) -> None:
    """After `cdk destroy`, `cdk deploy` makes new ones beside what was kept."""
    kept = {
        f"{stack}/{name}": resource
        for stack, template in templates.items()
        for name, resource in template["Resources"].items()
        if resource.get("DeletionPolicy", "Delete") == "Retain"
    }

    assert {each["Type"] for each in kept.values()} == {
        "AWS::DynamoDB::Table",
        "AWS::KMS::Key",
        "AWS::S3::Bucket",
        "AWS::S3::BucketPolicy",
        "AWS::SecretsManager::Secret",
    }
    for name, resource in kept.items():
        named = {key for key in resource["Properties"] if key in ("Name", "AliasName")}
        named |= {
            key for key in resource["Properties"] if key.endswith(("TableName", "BucketName"))
        }
        assert not named, name


def test_templates_name_no_account_or_region(templates: dict[str, Template]) -> None:
    text = json.dumps(templates)

    assert "123456789012" not in text
    assert "us-west-2" not in text
    assert "us-east-1" not in text


@pytest.mark.parametrize("package", list(Package))
def test_requirements_of_a_function_leave_torch_out(package: Package) -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())

    wanted = packages.requirements(package, pyproject)

    assert not [each for each in wanted if each.startswith(("torch", "stationmaster", "aws-cdk"))]
    assert [each for each in wanted if each.startswith("boto3")]
    assert [each for each in wanted if each.startswith("pydantic")]


def test_fingerprint_changes_with_a_file_of_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (
        "constraints.txt",
        "pyproject.toml",
        "stacks/packages.py",
        "bot/app.py",
        "relay/app.py",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("one")
    monkeypatch.setattr(packages, "ROOT", tmp_path)
    before = packages.fingerprint(Package.BOT)

    (tmp_path / "relay/app.py").write_text("two")
    after_a_foreign_file = packages.fingerprint(Package.BOT)
    (tmp_path / "bot/app.py").write_text("two")
    after_its_own_file = packages.fingerprint(Package.BOT)

    assert after_a_foreign_file == before
    assert after_its_own_file != before


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
    of_plotly = [name for name in files if name.startswith("plotly/")]
    assert of_plotly == ["plotly/package_data/plotly.min.js"] * (package is Package.BOT)
    assert unzipped_mb(files) < LIMITS_MB[package] < LAMBDA_TAKES_MB / 2

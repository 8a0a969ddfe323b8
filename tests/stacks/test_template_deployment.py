"""Local mode's two ways to the same deployment: from the registry, and from what is synthesized."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from lambdas import registry
from stationmaster.local.account_policies import committed_policies
from stationmaster.local.aws import Deployment, DeploymentSpec, LocalAws
from stationmaster.local.aws.deployment import substitute
from stationmaster.local.aws.iam.policies import Statement, read_statement
from stationmaster.local.mode import DEPLOYMENT, REPOSITORY
from stationmaster.local.product import product
from stationmaster.settings import Settings
from tests.support.templates.deployment import TemplateDeployment
from tests.support.templates.reading import read_templates

REGION = "us-west-2"
BUCKET = "artifacts"
# Statements about what this deployment configures none of: buckets, also those that FSx links, and
# existing clusters.
CONFIGURED = ("${dataset-bucket}", "${eks-cluster}", "s3.data-source.lustre.fsx.amazonaws.com")


@pytest.fixture(scope="module")
def synthesized(assembly: Path) -> TemplateDeployment:
    made = TemplateDeployment(
        read_templates(assembly), account_id=LocalAws.account_id, region=REGION
    )
    base = made.base()
    assert base.network is not None
    made.know(
        Deployment(
            vpc_id="vpc-1",
            subnet_ids=[f"subnet-{number}" for number, _ in enumerate(base.network.subnets)],
            secret_arns={name: f"arn:of:{name}" for name in base.secrets},
        )
    )
    return made


@pytest.fixture(scope="module")
def ways(synthesized: TemplateDeployment) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is deployed from the registry and from the templates, in the registry's names."""
    settings = Settings.from_environment(synthesized.variables())
    listed = product(
        settings.to_environment(),
        deployment=DEPLOYMENT,
        artifacts_bucket=BUCKET,
        repository=REPOSITORY,
    )
    read = synthesized.product({})
    return plain(listed, settings), plain(read, settings)


def plain(spec: DeploymentSpec, settings: Settings) -> dict[str, Any]:
    """A spec as one text with the names that both have in common, by name in each part."""
    arn = f"arn:aws:lambda:{REGION}:{LocalAws.account_id}:function:"
    arns = {function.name: arn + function.name for function in spec.functions}
    text = json.dumps(
        {
            **asdict(spec),
            "network": None,
            "state_machines": [
                {
                    "name": each.name,
                    "definition": json.loads(substitute(each.definition, arns, name=each.name)),
                }
                for each in spec.state_machines
            ],
        },
        sort_keys=True,
    )
    ours = {
        settings.table_name: DEPLOYMENT,
        settings.artifacts_bucket: BUCKET,
        settings.bus_name: DEPLOYMENT,
    }
    for theirs, name in ours.items():
        text = text.replace(f'"{theirs}"', f'"{name}"')
    for name in (*(each.name for each in registry.FUNCTIONS), *registry.MACHINES):
        text = text.replace(f'"{DEPLOYMENT}-{name}"', f'"{name}"')
        text = text.replace(f':{DEPLOYMENT}-{name}"', f':{name}"')
    return json.loads(text)


def by_name(parts: list[dict[str, Any]], key: str = "name") -> dict[str, dict[str, Any]]:
    return {part[key]: part for part in parts}


@pytest.mark.parametrize("part", ["functions", "state_machines", "tables", "buckets", "streams"])
def test_both_ways_deploy_equal(part: str, ways: tuple[dict[str, Any], dict[str, Any]]) -> None:
    listed, read = ways
    key = "function" if part == "streams" else "name"

    assert by_name(read[part], key) == by_name(listed[part], key)
    assert listed[part]


@pytest.mark.parametrize("part", ["queues", "buses", "schedule_groups"])
def test_both_ways_deploy_equal_names(
    part: str, ways: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    listed, read = ways

    assert sorted(read[part]) == sorted(listed[part])
    assert listed[part]


def test_both_ways_call_functions_equally(ways: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """CloudFormation makes up the names of rules and schedules, so these are not compared."""
    for part, key in (("rules", "event_pattern"), ("schedules", "rate_s"), ("routes", "path")):
        listed, read = (
            sorted(json.dumps(_nameless(each), sort_keys=True) for each in way[part])
            for way in ways
        )
        assert read == listed, key


def _nameless(part: dict[str, Any]) -> dict[str, Any]:
    """Without its name, and without the machines of the account that a rule is limited to."""
    part = {key: int(value) if key == "rate_s" else value for key, value in part.items()}
    pattern = part.get("event_pattern", {})
    if machines := pattern.get("detail", {}).pop("stateMachineArn", None):
        assert {arn.rpartition(":")[2] for arn in machines} == {*registry.MACHINES}
    return {key: value for key, value in part.items() if key != "name"}


def test_both_ways_give_roles_equal_rights(synthesized: TemplateDeployment) -> None:
    committed = json.loads(committed_policies(REPOSITORY))
    listed = {path.partition("/Roles/")[2]: role for path, role in committed.items()}
    read = {name: role for role in synthesized.roles() for name in role.functions}

    assert set(read) == {f"{DEPLOYMENT}-{each.name}" for each in registry.FUNCTIONS}
    for function in registry.FUNCTIONS:
        role, theirs = listed[function.name], read[f"{DEPLOYMENT}-{function.name}"]
        needed = {rights(left) for each in role["statements"] if (left := unconfigured(each))}
        assert {rights(each) for each in theirs.document["statements"]} == needed, function.name
        assert [each["Principal"] for each in theirs.document["trust"]] == [
            each["Principal"] for each in role["trust"]
        ]


def unconfigured(statement: dict[str, Any]) -> dict[str, Any] | None:
    """A statement without the resources that this deployment names none of; None without any."""
    if any(name in json.dumps(statement.get("Condition")) for name in CONFIGURED):
        return None
    written = statement["Resource"]
    resources = written if isinstance(written, list) else [written]
    left = [each for each in resources if not any(name in each for name in CONFIGURED)]
    return {**statement, "Resource": left} if left else None


def rights(statement: dict[str, Any]) -> tuple[Any, ...]:
    """A statement without names, which differ; the local IAM can evaluate it."""
    read: Statement = read_statement(_without_placeholders(statement), {})
    keys = sorted((each.operator, each.key) for each in read.conditions)
    return read.effect, tuple(sorted(read.actions)), len(read.resources), tuple(keys)


def _without_placeholders(statement: dict[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(statement).replace("${", "$("))

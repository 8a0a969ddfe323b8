"""A deployment in an organization that asks for a boundary, a path and tags, from its own file."""

from __future__ import annotations

import json
import os
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from infra_templates import Resource, as_list, of_type, templates_of, text_of
from syntheses import PRIVATE

from stacks.chosen_settings import chosen_config
from stacks.config import StageConfig
from stationmaster.settings import Settings


@pytest.fixture(scope="session")
def private(syntheses: Path) -> dict[str, Resource]:
    """The resources of a deployment with PRIVATE."""
    templates = templates_of(syntheses / "private").items()
    return {f"{stack}/{k}": v for stack, each in templates for k, v in each["Resources"].items()}


@pytest.fixture(scope="session")
def roles(private: dict[str, Resource]) -> list[Resource]:
    return [*of_type(private, "AWS::IAM::Role").values()]


def test_every_role_has_the_boundary_the_path_and_the_tags(
    roles: list[Resource], resources: dict[str, Resource]
) -> None:
    for role in roles:
        properties = role["Properties"]
        assert properties["PermissionsBoundary"] == PRIVATE["permissions_boundary"]
        assert properties["Path"] == "/teams/ml/"
        tags = {each["Key"]: each["Value"] for each in properties["Tags"]}
        assert (tags["CostCenter"], tags["Owner"]) == ("42", "ml team=a")
    for role in of_type(resources, "AWS::IAM::Role").values():  # of a deployment without them
        assert not {"PermissionsBoundary", "Path"} & role["Properties"].keys()


def test_functions_still_let_their_own_roles_and_no_others_into_clusters(
    private: dict[str, Resource], roles: list[Resource]
) -> None:
    (variables,) = (
        each["Properties"]["Environment"]["Variables"]
        for each in of_type(private, "AWS::Lambda::Function").values()
        if each["Properties"]["FunctionName"] == "stationmaster-ensure-cluster"
    )
    settings = Settings.from_environment({key: text_of(value) for key, value in variables.items()})
    (allowed,) = {
        text_of(pattern)
        for policy in of_type(private, "AWS::IAM::Policy").values()
        for statement in policy["Properties"]["PolicyDocument"]["Statement"]
        if "eks:CreateAccessEntry" in as_list(statement["Action"])
        for pattern in statement["Condition"]["ArnLike"]["eks:principalArn"]
    }
    named = {text_of(role["Properties"].get("RoleName", "")) for role in roles}

    assert allowed == "arn:{Partition}:iam::{AccountId}:role/teams/ml/stationmaster-*-{Region}"
    for arn in settings.cluster_access_role_arns:
        assert fnmatchcase(arn, allowed)
        assert arn.rpartition("/")[2] in named
    assert settings.shared_tags["CostCenter"] == "42"
    # A service's own role is at the service's path, whatever ours are at.
    assert "/ml/aws-service-role" not in json.dumps(private)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, r"settings ~/f.json cannot be read: No such file or directory"),
        (b"{", r"settings ~/f.json is no JSON: Expecting property name"),
        (b'{"vpc": 1}', r"settings ~/f.json: vpc: Extra inputs are not permitted"),
        (b"\xff", r"settings ~/f.json cannot be read: 'utf-8' codec"),
        ("", "settings=: expected a file or ssm:/NAME"),
        ({"a": 1}, "settings={'a': 1}: expected a file or ssm:/NAME"),
        ("ssm:/a", "settings ssm:/a: AWS is not set up: .*set AWS_REGION or AWS_PROFILE"),
    ],
)
def test_settings_that_cannot_be_taken_are_one_sentence(
    text: object, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [each for each in os.environ if each.startswith(("AWS_", "CDK_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    if isinstance(text, bytes):
        (tmp_path / "f.json").write_bytes(text)
    where = "~/f.json" if text is None or isinstance(text, bytes) else text

    with pytest.raises(ValueError, match=f"^{said}"):
        chosen_config({"settings": where}.get)


def test_settings_file_replaces_the_object_of_cdk_json(tmp_path: Path) -> None:
    (tmp_path / "prod.json").write_text('{"image_tag": "0.2.0"}')
    context = {"settings": str(tmp_path / "prod.json"), "stationmaster": {"deployment": "other"}}

    assert chosen_config(context.get) == StageConfig(image_tag="0.2.0")

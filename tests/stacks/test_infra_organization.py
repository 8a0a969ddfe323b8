"""A deployment in an organization that asks for a boundary, a path and tags, from its own file."""

from __future__ import annotations

import json
import os
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
from infra_templates import Resource, Template, as_list, of_type, templates_of, text_of
from syntheses import PRIVATE

from stacks.chosen_settings import chosen_config
from stacks.config import StageConfig, read_config
from stationmaster.settings import Settings


@pytest.fixture(scope="session")
def private(syntheses: Path) -> dict[str, Template]:
    """Templates of a deployment with PRIVATE, by the name of their stack."""
    return templates_of(syntheses / "private")


@pytest.fixture(scope="session")
def roles(private: dict[str, Template]) -> dict[str, Resource]:
    return {
        f"{stack}/{name}": role
        for stack, template in private.items()
        for name, role in of_type(template["Resources"], "AWS::IAM::Role").items()
    }


def test_every_role_has_the_boundary_the_path_and_the_tags(roles: dict[str, Resource]) -> None:
    assert {name.partition("/")[0] for name in roles} >= {"network", "images", "workflow", "bot"}
    for name, role in roles.items():
        properties = role["Properties"]
        assert properties["PermissionsBoundary"] == PRIVATE["permissions_boundary"], name
        assert properties["Path"] == "/teams/ml/", name
        tags = {each["Key"]: each["Value"] for each in properties["Tags"]}
        assert (tags["CostCenter"], tags["Owner"]) == ("42", "ml team=a"), name


def test_without_them_no_role_names_one(resources: dict[str, Resource]) -> None:
    for role in of_type(resources, "AWS::IAM::Role").values():
        assert not {"PermissionsBoundary", "Path"} & role["Properties"].keys()


def test_functions_still_let_their_own_roles_and_no_others_into_clusters(
    private: dict[str, Template], roles: dict[str, Resource]
) -> None:
    resources = private["workflow"]["Resources"]
    (variables,) = (
        each["Properties"]["Environment"]["Variables"]
        for each in of_type(resources, "AWS::Lambda::Function").values()
        if each["Properties"]["FunctionName"] == "stationmaster-ensure-cluster"
    )
    settings = Settings.from_environment({key: text_of(value) for key, value in variables.items()})
    (allowed,) = {
        text_of(pattern)
        for kind in ("AWS::IAM::Policy", "AWS::IAM::ManagedPolicy")
        for policy in of_type(resources, kind).values()
        for statement in policy["Properties"]["PolicyDocument"]["Statement"]
        if "eks:CreateAccessEntry" in as_list(statement["Action"])
        for pattern in statement["Condition"]["ArnLike"]["eks:principalArn"]
    }
    made = {
        f"arn:{{Partition}}:iam::{{AccountId}}:role{each['Properties']['Path']}"
        f"{text_of(each['Properties']['RoleName'])}"
        for each in roles.values()
        if "RoleName" in each["Properties"]
    }

    assert allowed == "arn:{Partition}:iam::{AccountId}:role/teams/ml/stationmaster-*-{Region}"
    assert set(settings.cluster_access_role_arns) <= made
    assert all(fnmatchcase(each, allowed) for each in settings.cluster_access_role_arns)
    assert settings.shared_tags["CostCenter"] == "42"
    # A service's own role is at the service's path, whatever ours are at.
    assert '"role/teams/ml/aws-service-role' not in json.dumps(resources)


@pytest.mark.parametrize(
    ("context", "said"),
    [
        ({"permissions_boundary": "limits"}, "permissions_boundary: String should match"),
        ({"role_path": "teams/ml"}, "role_path: String should match"),
        ({"role_path": f"/{'p' * 63}/"}, "role_path: String should have at most 64"),
        ({"tags": ["CostCenter"]}, "tags.0: String should match"),
        ({"tags": ["a=b,c"]}, "tags.0: String should match"),
        ({"tags": ["Stationmaster:deployment=x"]}, '"Stationmaster:deployment" is a tag that'),
        ({"tags": ["Name=x"]}, '"Name" is a tag that AWS or Stationmaster sets'),
        ({"tags": ["a=1", "a=2"]}, '"a" is given twice'),
        ({"tags": [f"{n}={'v' * 90}" for n in range(12)]}, "shorten tags"),
    ],
)
def test_what_no_role_can_have_is_refused(context: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match="object stationmaster") as caught:
        read_config(context)

    assert said in str(caught.value)


def chosen(where: object) -> StageConfig:
    return chosen_config({"settings": where, "stationmaster": {"deployment": "other"}}.get)


def test_settings_file_replaces_the_object_of_cdk_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "prod.json").write_text('{"image_tag": "0.2.0"}')
    monkeypatch.setenv("HOME", str(tmp_path))

    assert chosen("~/prod.json") == StageConfig(image_tag="0.2.0")
    assert chosen(None).deployment == "other"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, r"settings \S+f.json cannot be read: No such file or directory"),
        ("{", r"settings \S+f.json is no JSON: Expecting property name"),
        ("[]", r"settings \S+f.json: expected a JSON object of settings"),
        ('{"vpc": 1}', r"settings \S+f.json: vpc: Extra inputs are not permitted"),
        ('{"image_tag": 1}', r"settings \S+f.json: image_tag: Input should be a valid string"),
        (b"\xff", r"settings \S+f.json cannot be read: 'utf-8' codec"),
    ],
)
def test_settings_file_that_cannot_be_taken_is_one_sentence(
    text: str | bytes | None, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "f.json"
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())

    with pytest.raises(ValueError, match=f"^{said}") as caught:
        chosen(str(path))

    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("where", ["", "ssm:", {"a": 1}, True])
def test_settings_that_name_no_file_are_refused(where: object) -> None:
    with pytest.raises(ValueError, match="expected a file or ssm:/NAME"):
        chosen(where)


def test_settings_of_a_parameter_are_read_with_one_clear_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [each for each in os.environ if each.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)

    with pytest.raises(ValueError, match="set AWS_REGION or AWS_PROFILE"):
        chosen("ssm:/stationmaster/settings")

"""Settings: written and read back, what is missing is named, and docs/settings.md has them all."""

import re
from pathlib import Path

import pytest
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from stacks.config import StageConfig
from stationmaster.domain.errors import PermanentError
from stationmaster.settings import PREFIX, Settings

FULL = Settings(
    region="us-west-2",
    table_name="t",
    bus_name="b",
    subnet_ids=("subnet-1", "subnet-2"),
    plugin_timeout_s=12.5,
    emulated_speed=720.0,
)


@pytest.mark.parametrize("settings", [FULL, Settings(region="r", table_name="t", bus_name="b")])
def test_settings_survive_the_environment(settings):
    assert Settings.from_environment(settings.to_environment()) == settings


ROLES = tuple(f"arn:aws:iam::123456789012:role/stationmaster-{x}-eu" for x in ("a", "ab", "b", ""))


@pytest.mark.parametrize(
    "items",
    [
        ROLES,
        ROLES[:2],
        (*ROLES, "arn:aws:iam::210987654321:user/somebody"),
        tuple("x" * 60 + "y" * length for length in range(5)),
        ("b" * 200, "b" * 200),
        ("b" * 200,),
        ("",) * 2,
    ],
)
def test_lists_survive_the_environment(items):
    settings = FULL.model_copy(update={"kubectl_role_arns": items})

    read = Settings.from_environment(settings.to_environment()).kubectl_role_arns

    assert read == tuple(item for item in items if item)


def test_long_list_has_its_shared_parts_once():
    variables = FULL.model_copy(update={"kubectl_role_arns": ROLES}).to_environment()

    assert variables["STATIONMASTER_KUBECTL_ROLE_ARNS"] == (
        "arn:aws:iam::123456789012:role/stationmaster-{a,ab,b,}-eu"
    )


def test_list_of_values_that_the_cdk_fills_in_is_not_cut():
    tokens = tuple(f"${{Token[TOKEN.{'1' * 60}{number}]}}" for number in range(9))
    variables = FULL.model_copy(update={"kubectl_role_arns": tokens}).to_environment()

    assert variables["STATIONMASTER_KUBECTL_ROLE_ARNS"] == ",".join(tokens)


def test_settings_take_the_region_from_aws_when_they_have_none():
    found = Settings.from_environment(
        {"AWS_REGION": "eu-west-1", "STATIONMASTER_TABLE_NAME": "t", "STATIONMASTER_BUS_NAME": "b"}
    )

    assert found.region == "eu-west-1"


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"AWS_REGION": "r", "STATIONMASTER_BUS_NAME": "b"}, "STATIONMASTER_TABLE_NAME"),
        (FULL.to_environment() | {"STATIONMASTER_PLUGIN_TIMEOUT_S": "soon"}, "PLUGIN_TIMEOUT_S"),
    ],
    ids=["missing", "malformed"],
)
def test_settings_with_a_bad_variable_name_it(variables, words):
    with pytest.raises(PermanentError, match=words):
        Settings.from_environment(variables)


DOCUMENT = (Path(__file__).parents[2] / "docs" / "settings.md").read_text()
ROW = re.compile(r"^\| `(\w+)` \| (.+?) \| .{10,} \|$", re.MULTILINE)


def documented(heading: str) -> dict[str, str]:
    """Names and defaults in the table under a heading."""
    section = DOCUMENT.split(f"## {heading}")[1].split("\n## ")[0]
    return dict(ROW.findall(section))


def declared(model: type[BaseModel], prefix: str = "") -> dict[str, str]:
    fields = model.model_fields.items()
    upper = str.upper if prefix else str
    return {prefix + upper(name): in_words(field) for name, field in fields}


def in_words(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if isinstance(field.default, bool):
        return f"`{str(field.default).lower()}`"  # as cdk.json and the environment write it
    return f"`{field.default}`" if field.default not in ("", (), {}, None) else "empty"


def test_every_variable_of_the_settings_is_documented_with_its_default() -> None:
    assert documented("The functions") == declared(Settings, PREFIX)


def test_every_field_of_the_cdk_context_is_documented_with_its_default() -> None:
    assert documented("The deployment") == declared(StageConfig)

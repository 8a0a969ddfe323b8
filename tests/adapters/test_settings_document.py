"""docs/settings.md has a row for each setting, with its default, and none for a former one."""

from __future__ import annotations

import re
from pathlib import Path

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from stacks.config import StageConfig
from stationmaster.settings import PREFIX, Settings

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

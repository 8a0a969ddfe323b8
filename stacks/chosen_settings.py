"""Which settings a synthesis takes: those of cdk.json, or what `-c settings=` names."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from stacks.config import StageConfig, read_config
from stationmaster.domain.errors import StationmasterError

_SSM: Final = "ssm:"


def chosen_config(context: Callable[[str], Any]) -> StageConfig:
    """Read what the context's `settings` names, or else its object `stationmaster`.

    Raises:
        ValueError: one sentence that says where, what is wrong, and what was expected.
    """
    where = context("settings")
    if where is None:
        return read_config(context("stationmaster"))
    if not isinstance(where, str) or not where.removeprefix(_SSM).strip():
        raise ValueError(
            f"settings={where}: expected a file or ssm:/NAME, as in cdk deploy -c settings=FILE"
        )
    name = where.removeprefix(_SSM)
    text = _parameter(name) if where.startswith(_SSM) else _file(where)
    try:
        written = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise ValueError(f"settings {where} is no JSON: {exc}") from exc
    if not isinstance(written, dict):
        raise ValueError(
            f'settings {where}: expected a JSON object of settings, {{"image_tag": ...}}'
        )
    return read_config(written, source=f"settings {where}")


def _file(where: str) -> str:
    try:
        return Path(where).expanduser().read_text(encoding="utf-8")
    except (OSError, RuntimeError, ValueError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else exc
        raise ValueError(f"settings {where} cannot be read: {why}") from exc


def _parameter(name: str) -> str:
    from stationmaster.aws.calls import aws_call, make_client  # an account is asked for these only

    try:
        # The CDK's command line knows the region of its profile, and hands it over.
        client = make_client("ssm", region=os.environ.get("CDK_DEFAULT_REGION"))
        with aws_call("asking SSM"):
            answer = client.get_parameter(Name=name, WithDecryption=True)
    except StationmasterError as exc:
        raise ValueError(f"settings {_SSM}{name}: {exc}") from exc
    return str(answer["Parameter"]["Value"])

"""What `stationmaster secret` does: it fills in and rotates a secret with what stdin holds.

A value is never an argument, which other users of the machine see, and is never printed.
"""

from __future__ import annotations

import argparse
import getpass
import json
import re
import sys
from collections.abc import Mapping
from typing import Any, Final

from stationmaster.aws.secrets import HuggingFaceCredentials, SlackCredentials
from stationmaster.cli.deployed import bot_settings
from stationmaster.domain.errors import BadCommand, TransientError
from stationmaster.services import Services
from stationmaster.turns import turn

_MOST: Final = 16_384
_PATIENCE_S: Final = 30.0
_TEAMS: Final = re.compile(r"[TE][A-Z0-9]{2,30}")
_WORD: Final = ("a word of printable characters", r"([!-~]{1,2000})?")
_URL: Final = ("https://HOST", r"(https?://[!-~]{1,500})?")
_HEX: Final = ("32 hex digits", r"[0-9a-f]{32}")
# Of each kind: its fields, what they look like in words, and as a pattern. A line that is no JSON
# is the first of them.
_FIELDS: Final[Mapping[str, Mapping[str, tuple[str, str]]]] = {
    "slack": {
        "bot_token": ("xoxb-...", r"xox[be][-.][\w.-]{8,500}"),
        "signing_secret": _HEX,
        "app_token": ("xapp-...", r"xapp-[\w-]{8,500}"),
        "client_id": ("two numbers with a dot between them", r"[0-9]{1,30}\.[0-9]{1,30}"),
        "client_secret": _HEX,
        "refresh_token": ("xoxe-...", r"xoxe-[\w-]{8,500}"),
        "installs": ('["T...", "E..."]', ""),  # a list
    },
    "huggingface": {"token": ("hf_...", r"(hf_[A-Za-z0-9]{8,200})?")},
    "wandb": {"WANDB_API_KEY": _WORD, "WANDB_BASE_URL": _URL},
    "mlflow": {"MLFLOW_TRACKING_URI": _URL, "MLFLOW_TRACKING_TOKEN": _WORD},
}


def secret(arguments: argparse.Namespace) -> int:
    """Write the fields that stdin has, and print which these are."""
    kind = arguments.kind
    new = _read_fields(kind, _stdin(kind))
    services = Services(bot_settings(arguments))
    settings, fill_in = services.settings, services.secrets.fill_in
    if kind == "slack":
        with turn(services, patience_s=_PATIENCE_S) as is_ours:  # or a rotation could undo it
            if not is_ours:
                raise TransientError("the deployment writes to Slack for long; type it again")
            changed = fill_in(settings.slack_secret_id, new, SlackCredentials)
    else:
        changed = fill_in(settings.hugging_face_secret_id, new, HuggingFaceCredentials)
    for name, how in changed.items():
        print(f"{name}: {how}")
    return 0


def _stdin(kind: str) -> str:
    if sys.stdin.isatty():
        return getpass.getpass(f"{next(iter(_FIELDS[kind]))}, or JSON of fields in one line: ")
    text = sys.stdin.buffer.read(_MOST + 1)
    if len(text) > _MOST:
        raise BadCommand(f"stdin has more than {_MOST} bytes; expected {_expected(kind)}")
    return text.decode(errors="replace")


def _read_fields(kind: str, text: str) -> dict[str, Any]:
    """Read the fields of a kind of secret; none of what is wrong is repeated.

    Raises:
        BadCommand: naming the field, and what is expected.
    """
    text, fields = text.strip(), _FIELDS[kind]
    if text.startswith("{"):
        try:
            values = json.loads(text)
        except (ValueError, RecursionError):
            raise BadCommand(f"stdin has no JSON; expected {_expected(kind)}") from None
    else:
        values = {next(iter(fields)): text} if text else {}
    if not values:
        raise BadCommand(f"stdin has no value; expected {_expected(kind)}")
    for name, value in values.items():
        if name not in fields:
            raise BadCommand(f'"{name[:40]}" is no field here; expected {_expected(kind)}')
        words, pattern = fields[name]
        if not _looks_right(value, pattern):
            raise BadCommand(f"{name} does not look like one; expected {words}")
    return dict(values)


def _looks_right(value: object, pattern: str) -> bool:
    if not pattern:
        return isinstance(value, list) and all(
            isinstance(each, str) and _TEAMS.fullmatch(each) for each in value
        )
    return isinstance(value, str) and re.fullmatch(pattern, value, re.ASCII) is not None


def _expected(kind: str) -> str:
    first, *others = _FIELDS[kind]
    more = f" (others: {', '.join(others)})" if others else ""
    return f'the {first} alone, or JSON, {{"{first}": "..."}}{more}'

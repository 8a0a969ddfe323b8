"""`stationmaster secret`: what stdin has is checked, merged and never printed."""

from __future__ import annotations

import io
import json
import sys
from typing import Any

import pytest

from stationmaster.aws.table import table_definition
from stationmaster.cli import secret
from stationmaster.cli.main import main
from stationmaster.local.aws import LocalAws
from stationmaster.services import Services
from stationmaster.settings import Settings

SIGNING = "0" * 32


@pytest.fixture
def fill(aws: LocalAws, monkeypatch: pytest.MonkeyPatch) -> Any:
    client = aws.client("secretsmanager")
    name = f"ours-{len(client.list_secrets()['SecretList'])}"
    arn = client.create_secret(Name=name)["ARN"]
    ids = {"slack_secret_id": arn, "hugging_face_secret_id": arn}
    aws.client("dynamodb").create_table(**table_definition(name))
    own = Settings(region=aws.region, table_name=name, bus_name="b", **ids)
    monkeypatch.setattr(secret, "bot_settings", lambda _: own)
    for name, value in aws.environment().items():
        monkeypatch.setenv(name, value)

    def act(kind: str, text: str) -> int:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        return main(["secret", kind])

    act.read = lambda: json.loads(client.get_secret_value(SecretId=arn)["SecretString"])  # type: ignore[attr-defined]
    act.services = Services(own)  # type: ignore[attr-defined]
    return act


def test_slack_secret_is_not_written_while_its_token_may_be_rotated(
    fill: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    writer, now = fill.services.slack_writer, fill.services.now()
    monkeypatch.setattr(secret, "_PATIENCE_S", 0)
    first = json.dumps({"bot_token": "xoxb-old-12345678", "signing_secret": SIGNING})

    assert writer.take("a rotation", now=now)
    assert fill("slack", first) == 1
    assert "writes to Slack for long; type it again" in capsys.readouterr().err
    writer.give_back("a rotation")
    assert fill("slack", first) == 0


def test_rotated_value_leaves_the_other_fields(fill: Any, capsys: Any) -> None:
    assert fill("slack", "xoxb-new-12345678\n") == 1  # nothing to sign with yet
    assert "signing_secret would be missing" in capsys.readouterr().err

    first = {"bot_token": "xoxb-old-12345678", "signing_secret": SIGNING}
    for text in (json.dumps(first), "xoxb-new-12345678", json.dumps({"signing_secret": SIGNING})):
        assert fill("slack", text) == 0

    assert fill.read() == {"bot_token": "xoxb-new-12345678", "signing_secret": SIGNING}
    printed = capsys.readouterr().out
    assert fill("huggingface", "hf_abcdefgh") == fill("wandb", "key") == 0
    assert fill.read() | {"token": "hf_abcdefgh", "WANDB_API_KEY": "key"} == fill.read()
    assert printed.splitlines()[-2:] == ["bot_token: set", "signing_secret: as it was"]
    assert "xoxb" not in printed


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        ("slack", "", "stdin has no value; expected the bot_token alone, or JSON"),
        ("slack", "{private", "stdin has no JSON; expected"),
        ("slack", '{"teams": {}}', '"teams" is no field here'),
        ("slack", '{"installs": ["private"]}', "installs does not look like one"),
        ("mlflow", "p" * 20_000, "more than 16384 bytes"),
    ],
)
def test_what_is_no_secret_is_refused_and_not_repeated(
    kind: str, text: str, said: str, fill: Any, capsys: Any
) -> None:
    assert fill(kind, text) == 2

    error = capsys.readouterr().err
    assert said in error
    assert "private" not in error

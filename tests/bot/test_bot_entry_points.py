"""What the deployed functions load, and the manifest that the Slack app is created from."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from stationmaster.cli.slack_manifest import app_manifest
from stationmaster.domain.commands.table import COMMAND, SUBCOMMANDS

URL = "https://example.com/slack/events"


@pytest.mark.parametrize("module", ["bot.lambda_handler", "bot.notifier_handler"])
def test_entry_point_loads_nothing_that_it_does_not_need(module):
    script = f"import json, sys, {module}; print(json.dumps(list(sys.modules)))"

    answer = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=1800
    )

    loaded = {name.partition(".")[0] for name in json.loads(answer.stdout)}
    assert "stationmaster" in loaded
    assert loaded & {"kubernetes", "torch", "PIL", "aws_xray_sdk", "moto", "starlette"} == set()
    if module == "bot.lambda_handler":  # a person waits for its cold start
        assert "aws_lambda_powertools" not in loaded


def test_manifest_declares_the_command_and_the_buttons_at_the_url():
    manifest = app_manifest(URL)

    command = manifest["features"]["slash_commands"][0]
    assert (command["command"], command["url"]) == (COMMAND, URL)
    assert [word for word in SUBCOMMANDS if word not in command["usage_hint"]] == []
    assert manifest["settings"]["interactivity"] == {"is_enabled": True, "request_url": URL}
    assert manifest["settings"]["socket_mode_enabled"] is False
    json.dumps(manifest)


def test_manifest_asks_for_no_scope_that_the_app_does_not_use():
    scopes = set(app_manifest(URL)["oauth_config"]["scopes"]["bot"])

    history = {f"{kind}:history" for kind in ("channels", "groups", "im", "mpim")}
    assert (
        scopes == {"commands", "chat:write", "files:write", "im:write", "usergroups:read"} | history
    )


@pytest.mark.parametrize("before", ["enable", "disable"])
def test_bot_function_freezes_what_it_imports_and_leaves_the_collector_as_it_was(before):
    script = (
        f"import gc; gc.{before}(); import bot.lambda_handler; "
        "print(gc.isenabled(), gc.get_freeze_count() > 0)"
    )

    found = subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True, text=True
    )

    assert found.stdout.split() == [str(before == "enable"), "True"], found.stderr

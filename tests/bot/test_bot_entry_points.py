"""What the deployed functions load, and the manifest that the Slack app is created from."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
from slack_sdk import WebClient

from bot import app
from bot.payloads import Event
from stationmaster.cli.slack_manifest import app_manifest
from stationmaster.domain.commands.table import COMMAND, SUBCOMMANDS

URL = "https://example.com/slack/events"


@pytest.mark.parametrize("module", ["bot.lambda_handler", "bot.notifier_handler"])
def test_entry_point_loads_nothing_that_it_does_not_need(module):
    script = f"import json, sys, {module}; print(json.dumps(list(sys.modules)))"

    answer = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=600
    )

    loaded = {name.partition(".")[0] for name in json.loads(answer.stdout)}
    assert "stationmaster" in loaded
    assert loaded & {"kubernetes", "torch", "PIL", "aws_xray_sdk", "moto", "starlette"} == set()
    if module == "bot.lambda_handler":  # a person waits for its cold start
        assert loaded & {"aws_lambda_powertools", "boto3", "urllib3", "yaml"} == set()


def test_manifest_declares_the_command_and_the_buttons_at_the_url():
    manifest = app_manifest(URL)

    command = manifest["features"]["slash_commands"][0]
    assert (command["command"], command["url"]) == (COMMAND, URL)
    assert [word for word in SUBCOMMANDS if word not in command["usage_hint"]] == []
    assert manifest["settings"]["interactivity"] == {"is_enabled": True, "request_url": URL}
    assert manifest["settings"]["event_subscriptions"]["request_url"] == URL
    assert manifest["settings"]["socket_mode_enabled"] is False
    json.dumps(manifest)


HISTORY = tuple(f"{kind}:history" for kind in ("channels", "groups", "im", "mpim"))
# The scopes that each method and event takes. Source: its page at https://docs.slack.dev/reference
SCOPES = {
    "app_home_opened": (),
    "app_mention": ("app_mentions:read",),
    "app_uninstalled": (),
    "message.im": ("im:history",),
    "auth_test": (),
    "chat_delete": ("chat:write",),
    "chat_postEphemeral": ("chat:write",),
    "chat_postMessage": ("chat:write",),
    "chat_update": ("chat:write",),
    "conversations_history": HISTORY,
    "conversations_open": ("im:write",),
    "conversations_replies": HISTORY,
    "files_upload_v2": ("files:write",),
    "oauth_v2_access": (),
    "tokens_revoked": (),
    "usergroups_users_list": ("usergroups:read",),
    "views_open": (),
    "views_publish": (),
    "views_update": (),
}
# A call of slack_sdk, or the method's name where it is called by that.
METHOD = re.compile(
    r"[cC]lient(?:\([^()]*\))?\.((?:[a-z]+_)+\w+)|[(]\"([a-z]+\.[a-z]+[A-Za-z.]*)\","
)
OF_NO_METHOD = {"api_call"}


@pytest.mark.parametrize("url", [URL, None])
def test_manifest_asks_for_exactly_the_scopes_that_the_app_uses(url):
    manifest = app_manifest(url)

    texts = [path.read_text() for name in ("bot", "stationmaster") for path in sources(name)]
    named = {"".join(found).replace(".", "_") for text in texts for found in METHOD.findall(text)}
    calls = {name for name in named - OF_NO_METHOD if name in WebClient.__dict__}
    assert "views_publish" in calls
    events = manifest["settings"]["event_subscriptions"]["bot_events"]
    kinds = get_args(Event.model_fields["event"].annotation)
    read = {kind for each in kinds for kind in get_args(each.model_fields["type"].annotation)}
    assert {each.partition(".")[0] for each in events} == read
    used = [*calls, *events]
    assert set(manifest["oauth_config"]["scopes"]["bot"]) == {
        "commands",
        *(scope for name in used for scope in SCOPES[name]),
    }


def sources(name):
    root = Path(app.__file__).parents[1] / name
    return [path for path in root.rglob("*.py") if "local" not in path.relative_to(root).parts]


def test_manifest_for_socket_mode_has_no_address():
    text = json.dumps(app_manifest(None))

    assert '"socket_mode_enabled": true' in text
    assert "url" not in text
    assert '"messages_tab_enabled": true' in text


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

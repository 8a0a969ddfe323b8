"""Bot tokens that end every 12 hours are renewed in time, by the notifier's tick."""

from __future__ import annotations

import json
import time
from typing import Any

import boto3
import pytest
from bot_world import BOT_TOKEN, REGION, SIGNING_SECRET
from recording_slack import RecordingSlack, Refusal

from bot.notifier_handler import handler

OLD = {"bot_token": BOT_TOKEN, "signing_secret": SIGNING_SECRET, "refresh_token": "xoxe-1"}
APP = {"client_id": "1.2", "client_secret": "c", "app_token": "xapp-1"}


pytestmark = pytest.mark.usefixtures("settings")


def tick(**secret: Any) -> dict[str, Any]:
    """Let a minute come with this secret; return it as it is then."""
    client = boto3.client("secretsmanager", REGION)
    if secret:
        client.put_secret_value(SecretId="slack", SecretString=json.dumps(secret))
    handler({}, None)
    return dict(json.loads(client.get_secret_value(SecretId="slack")["SecretString"]))


def test_token_that_ends_soon_is_rotated_once_and_the_rest_of_the_secret_stays(
    slack: RecordingSlack,
) -> None:
    teams = {"T0SECOND": {"bot_token": "xoxb-b", "refresh_token": "xoxe-b"}}
    kept = tick(**OLD, **APP, teams=teams)
    again = tick()

    (ends,) = {each["expires_at"] for each in (kept, kept["teams"]["T0SECOND"])}
    assert ends > time.time() + 40_000
    changed = {"bot_token": "xoxb-2", "refresh_token": "xoxe-2", "expires_at": ends}
    assert kept == again == OLD | APP | changed | {"teams": {"T0SECOND": changed}}
    used = [call.arguments["refresh_token"] for call in slack.of("oauth.v2.access")]
    assert used == ["xoxe-1", "xoxe-b"]


def test_token_that_another_process_has_rotated_is_not_rotated_again(
    slack: RecordingSlack,
) -> None:
    slack.refuse("oauth.v2.access", Refusal(error="internal_error"))
    tick(**OLD, **APP)

    tick(**OLD, **APP, expires_at=int(time.time()) + 43_000)

    assert slack.attempts.count("oauth.v2.access") == 1


@pytest.mark.parametrize("app", [APP, {}])
def test_token_that_slack_does_not_rotate_is_tried_again_and_stays(
    slack: RecordingSlack, app: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    slack.refuse("oauth.v2.access", Refusal(error="invalid_refresh_token"))

    assert tick(**OLD, **app) == OLD | app
    assert "bot token is not rotated" in caplog.messages
    assert tick(**OLD, **APP)["bot_token"] == "xoxb-2" or not app

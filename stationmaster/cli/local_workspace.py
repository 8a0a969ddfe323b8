"""`stationmaster local up --slack socket`: local mode in a workspace of slack.com, from a laptop.

The bot and the notifier talk to Slack, with the tokens of the environment; all else stays here.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from slack_sdk import WebClient
from slack_sdk.errors import SlackApiError

from stationmaster.local.mode import RealSlack
from stationmaster.local.stop_signals import StopSignals
from stationmaster.settings import Settings

_HOW: Final = "see docs/local-mode.md, In a real workspace"
_TOKENS: Final = {"SLACK_BOT_TOKEN": "xoxb-", "SLACK_APP_TOKEN": "xapp-"}
_API_URL: Final = "STATIONMASTER_SLACK_API_URL"
_MAIN: Final = "import sys; from stationmaster.cli.main import main; sys.exit(main())"
_LOOK_S: Final = 0.2


def real_slack() -> RealSlack:
    """Return the workspace of the environment's tokens, after asking Slack for it.

    Raises:
        ValueError: a token is missing, or Slack does not take it.
        OSError: Slack cannot be reached.
    """
    for name, begin in _TOKENS.items():
        if not os.environ.get(name, "").startswith(begin):
            raise ValueError(f"--slack socket: {name} has to be a token {begin}...; {_HOW}")
    bot_token, app_token = (os.environ[name] for name in _TOKENS)
    api_url = os.environ.get(_API_URL) or str(Settings.model_fields["slack_api_url"].default)
    try:
        found = WebClient(bot_token, base_url=api_url).auth_test()
    except SlackApiError as exc:
        code = exc.response.get("error")
        raise ValueError(f"--slack socket: Slack refuses SLACK_BOT_TOKEN ({code}); {_HOW}") from exc
    print(f"in the workspace {found.get('team')}: /invite @Stationmaster in a channel, then /train")
    return RealSlack(api_url, bot_token, app_token)


def serve_workspace(state_dir: Path, signals: StopSignals) -> int:
    """Run the bot beside local mode until somebody asks to stop; 1 where it ends before.

    It is the process of `stationmaster bot`, which says why it ends.
    """
    command = [sys.executable, "-c", _MAIN, "bot", "--socket", "--state-dir", str(state_dir)]
    with subprocess.Popen(command) as bot:
        while bot.poll() is None and not signals.asked():
            time.sleep(_LOOK_S)
        bot.terminate()
    return 0 if signals.asked() else 1

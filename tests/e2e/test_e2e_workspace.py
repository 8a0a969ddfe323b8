"""`stationmaster local up --slack socket`; a local Slack of its own stands for slack.com."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stationmaster.cli.main import main
from stationmaster.local.slack.server import LocalSlack
from stationmaster.local.slack_app import app_config
from tests.support.patience import PATIENCE_S

TOKENS = {"bot_token": "xoxb-of-slack-com", "app_token": "xapp-of-slack-com"}


@pytest.fixture
def workspace(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalSlack]:
    slack = LocalSlack(
        host_port=0,
        app=app_config(),
        signing_secret="nobody signs here",
        delivery_url="http://127.0.0.1:9/nobody-listens",
        answer_within_s=PATIENCE_S,
        **TOKENS,
    )
    slack.start()
    monkeypatch.setenv("STATIONMASTER_SLACK_API_URL", slack.api_url)
    for name, token in TOKENS.items():
        monkeypatch.setenv(f"SLACK_{name.upper()}", token)
    yield slack
    slack.stop()


@contextmanager
def up(state_dir: Path) -> Iterator[subprocess.Popen[str]]:
    program = Path(sys.executable).with_name("stationmaster")
    command = [program, "local", "up", "--slack", "socket", "--state-dir", str(state_dir)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:
        try:
            yield process
        finally:
            process.terminate()


def test_bot_and_notifier_talk_to_the_workspace(workspace: LocalSlack, tmp_path: Path) -> None:
    with up(tmp_path / "state") as process:
        assert process.stdout is not None
        assert any("connected to Slack" in line for line in process.stdout)
        assert workspace.type_command("/train tiny-llama nodes=1 steps=5").error is None
        (card,) = workspace.messages()
        # The card is the bot's, what follows it the notifier's.
        while len(workspace.thread(card.channel, card.ts)) < 2:
            time.sleep(0.1)
        process.terminate()
        said, errors = process.communicate()

    assert process.returncode == 0, errors
    assert "disconnected" in said
    assert "page" not in said
    assert workspace.type_command("/train list").error == "dispatch_failed"


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        ({"SLACK_BOT_TOKEN": ""}, "SLACK_BOT_TOKEN has to be a token xoxb-"),
        ({"SLACK_APP_TOKEN": "xoxb-swapped"}, "SLACK_APP_TOKEN has to be a token xapp-"),
        ({"SLACK_BOT_TOKEN": "xoxb-old"}, "Slack refuses SLACK_BOT_TOKEN (invalid_auth)"),
        ({"STATIONMASTER_SLACK_API_URL": "http://127.0.0.1:9/api/"}, "Connection refused"),
    ],
)
def test_token_that_cannot_be_used_gets_one_sentence(
    workspace: LocalSlack,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    variables: dict[str, str],
    sentence: str,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    assert main(["local", "up", "--slack", "socket", "--state-dir", str(tmp_path)]) == 2

    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1

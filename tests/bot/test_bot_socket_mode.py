"""The bot over Socket Mode, against the local Slack; and `stationmaster bot`, which runs it."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from bot_world import BOT_TOKEN, REGION, SECRET, keep_secret, new_workspace
from websockets.sync.client import connect

from bot.socket_mode import connected
from stationmaster.cli.main import main
from stationmaster.domain.errors import StationmasterError
from stationmaster.local.slack.server import LocalSlack
from stationmaster.services import Services
from stationmaster.settings import Settings
from tests.support.answering_server import answering_server


def test_connection_that_ends_is_opened_again(bot: Services, workspace: LocalSlack) -> None:
    port = int(workspace.url.rpartition(":")[2])
    with connected(bot, look_every_s=0.2):
        workspace.stop()
        again = new_workspace(port)
        try:
            while again.type_command("/train help").error is not None:
                time.sleep(0.02)
        finally:
            again.stop()


def test_envelope_of_another_shape_is_acknowledged(bot: Services, workspace: LocalSlack) -> None:
    deliver = workspace._endpoint.sockets.deliver
    with connected(bot):
        for kind, payload in (("interactive", {"type": "shortcut"}), ("new_kind", {})):
            assert deliver(kind, payload, retry_num=0, within_s=600) == ""
    assert workspace.type_command("/train list").error == "dispatch_failed"  # it has left


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_socket_that_slack_does_not_open_gets_one_sentence(
    bot: Services, workspace: LocalSlack
) -> None:
    sockets = workspace._endpoint.sockets
    with ExitStack() as stack:
        for _ in range(10):  # as many as Slack opens
            stack.enter_context(connect(sockets.new_address()))
        stack.enter_context(pytest.raises(StationmasterError, match="does not open Socket Mode"))
        stack.enter_context(connected(bot))
    gc.collect()  # slack_sdk leaves its end of it open


@pytest.mark.parametrize(
    ("token", "sentence"),
    [
        (None, "the Slack secret has no app_token; make an app-level token with the scope"),
        (BOT_TOKEN, "app_token of the Slack secret does not begin with xapp-; make"),
        ("xapp-old", r"Slack refuses the app token \(invalid_auth\); make an app-level token"),
    ],
)
def test_app_token_that_is_missing_or_refused_gets_one_sentence(
    bot: Services, token: str | None, sentence: str
) -> None:
    keep_secret({name: value for name, value in (SECRET | {"app_token": token}).items() if value})

    with pytest.raises(StationmasterError, match=sentence), connected(bot):
        pass


def test_slack_that_cannot_be_reached_gets_one_sentence(
    bot: Services, workspace: LocalSlack
) -> None:
    workspace.stop()

    with pytest.raises(StationmasterError, match="Slack cannot be reached at"), connected(bot):
        pass


@pytest.fixture
def account(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An AWS endpoint that has the Slack secret, and the variables of a bot with rules."""
    variables = settings.model_copy(update={"rules_file": "rules.json"}).to_environment()
    content = {"SecretString": json.dumps(SECRET), "Environment": {"Variables": variables}}

    monkeypatch.setenv("AWS_REGION", REGION)
    with answering_server() as server:
        server.say((200, content))
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        yield server.url


@pytest.mark.parametrize("end", ["its parent ends", signal.SIGINT, signal.SIGTERM])
def test_bot_ends_with_its_parent_and_when_it_is_asked_to(
    account: str, bot: Services, tmp_path: Path, end: str | signal.Signals
) -> None:
    """It is started by a shell, as by a person, and writes to a file that outlives that."""
    (tmp_path / "aws.env").touch()
    lines = [f"export {name}='{value}'\n" for name, value in bot.settings.to_environment().items()]
    (tmp_path / "settings.env").write_text("".join(lines))
    said, program = tmp_path / "said", Path(sys.executable).with_name("stationmaster")
    script = f"{program} bot --socket --state-dir {tmp_path} & echo $!; wait"
    with (
        said.open("w") as file,
        subprocess.Popen(
            ["sh", "-c", script], stdout=subprocess.PIPE, stderr=file, text=True
        ) as shell,
    ):
        assert shell.stdout is not None
        pid = int(shell.stdout.readline())
        assert "connected to Slack" in shell.stdout.readline()
        if isinstance(end, str):
            shell.kill()
        else:
            os.kill(pid, end)
        assert shell.stdout.read() == "disconnected\n"  # to the end: nobody has it open
    assert "Traceback" not in said.read_text()


def test_rules_of_a_deployment_are_not_left_out(
    account: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["bot", "--socket", "--deployment", "stationmaster"]

    assert main(command) == 2
    assert "has rules for its channels" in capsys.readouterr().err
    (tmp_path / "rules.json").write_text('{"channel": {}}')
    assert main([*command, "--rules", str(tmp_path / "rules.json")]) == 2
    assert "rules.json cannot be read: " in capsys.readouterr().err

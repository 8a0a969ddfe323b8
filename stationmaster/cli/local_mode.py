"""What `stationmaster local up` and `stationmaster local run` do with a local mode.

`run` acts as a person: it types the commands into the local Slack, prints the channel as it
changes, and waits for the receipts (`local_script`, `local_watch`).
"""

from __future__ import annotations

import argparse
import errno
import logging
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from rich.console import Console
from slack_sdk import WebClient
from slack_sdk.errors import SlackApiError

from stationmaster.cli.local_script import Script
from stationmaster.cli.local_watch import Record, Watch
from stationmaster.local.mode import (
    DEFAULT_SPEED,
    LocalMode,
    LocalOptions,
    RealSlack,
    describe_endpoints,
)
from stationmaster.local.stop_signals import StopSignals
from stationmaster.settings import Settings, read_rules

OK, NO, BAD_INPUT = 0, 1, 2
# A command line that waits anyway must not lose a run to the 3 s that Slack gives the bot.
_ANSWER_WITHIN_S: Final = 120.0

_HOW: Final = "see docs/local-mode.md, In a real workspace"
_TOKENS: Final = {"SLACK_BOT_TOKEN": "xoxb-", "SLACK_APP_TOKEN": "xapp-"}
_API_URL: Final = "STATIONMASTER_SLACK_API_URL"
_MAIN: Final = "import sys; from stationmaster.cli.main import main; sys.exit(main())"
_LOOK_S: Final = 0.2


def up(arguments: argparse.Namespace) -> int:
    """Serve until Ctrl-C or SIGTERM."""
    console, code = Console(), OK
    try:
        with (
            StopSignals() as signals,
            LocalMode(local_options(arguments, Record(None), is_saved=True)) as mode,
        ):
            if signals.asked():
                return OK
            places = describe_endpoints(mode)
            page = places.pop("page", "")
            where = f": [link]{page}[/link]" if page else ""
            console.print(f"[bold]Stationmaster[/] is up{where}", soft_wrap=True)
            for name, place in places.items():
                console.print(f"  {name:<13}{place}", highlight=False)
            if mode.saved is not None and mode.saved.damage:
                console.print(mode.saved.damage, highlight=False, soft_wrap=True)
            console.print("type [bold]/train tiny-llama nodes=2 steps=60[/] there; Ctrl-C ends it")
            if page:
                signals.wait()
            else:
                code = serve_workspace(arguments.state_dir, signals)
            console.print("stopping, every pod ends with it")
        _name_left(mode)
    except (OSError, ValueError) as exc:
        return refused(exc, arguments.state_dir)
    return code


def run(arguments: argparse.Namespace) -> int:
    """Type the commands and wait for their ends; see `Script` for the exit code."""
    texts = []
    for command in arguments.commands:
        word, _, text = command.strip().partition(" ")
        if word != "/train":
            return refused(ValueError(f'command "{word}": expected /train, e.g. "/train help"'))
        texts.append(text)
    try:
        with (
            StopSignals() as signals,
            Record(arguments.json) as record,
            LocalMode(local_options(arguments, record, answer_within_s=_ANSWER_WITHIN_S)) as mode,
        ):
            watch = Watch(record)
            mode.on_event(watch.event)
            mode.slack.subscribe(watch.slack)
            script = Script(
                mode,
                watch,
                signals,
                timeout_s=arguments.timeout,
                results_dir=arguments.results,
            )
            code = script.play(texts, together=arguments.together)
        _name_left(mode)
    except (OSError, ValueError) as exc:
        return refused(exc, arguments.state_dir)
    if signals.asked():
        if not mode.processes_left:
            print(
                "stationmaster: interrupted; local mode and every pod were ended", file=sys.stderr
            )
        return NO
    return code


def _name_left(mode: LocalMode) -> None:
    for process in mode.processes_left:
        print(f"stationmaster: {process} could not be ended", file=sys.stderr)


def local_options(
    arguments: argparse.Namespace,
    record: Record,
    *,
    answer_within_s: float = 3.0,
    is_saved: bool = False,
) -> LocalOptions:
    """Return how local mode is to run, as it was typed.

    Raises:
        ValueError: a flag has a value that makes no sense.
    """
    speed = DEFAULT_SPEED if arguments.speed is None else arguments.speed
    if not (speed >= 1 and math.isfinite(speed)):
        raise ValueError(f"--speed {speed:g}: expected 1 or more")
    state_dir = arguments.state_dir.absolute()

    def claimed() -> None:
        log_to_file(state_dir / "local.log")
        record.open()

    return LocalOptions(
        slack=real_slack() if getattr(arguments, "slack", None) else None,
        state_dir=state_dir,
        port=arguments.port,
        speed=speed,
        faults=frozenset(arguments.fault),
        answer_within_s=answer_within_s,
        is_saved=is_saved,
        on_claimed=claimed,
        allow_commands=arguments.allow_commands,
        settings=_rules_setting(arguments.rules),
    )


def _rules_setting(path: Path | None) -> dict[str, str]:
    """Return the setting that names the rules of channels, which can be read.

    Raises:
        OSError, ValueError: they cannot.
    """
    if path is None:
        return {}
    read_rules(path)
    return {"rules_file": str(path.absolute())}


def log_to_file(path: Path) -> None:
    """Keep what the endpoints log out of the terminal."""
    # A line that the disk has no room for is dropped, not answered with a traceback.
    logging.raiseExceptions = False
    logging.basicConfig(
        filename=path,
        filemode="w",
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
        force=True,
    )


def refused(exc: Exception, state_dir: Path | None = None) -> int:
    sentence = str(exc)
    if isinstance(exc, OSError) and exc.strerror:
        sentence = f"{exc.filename}: {exc.strerror}" if exc.filename else exc.strerror
        if exc.errno in (errno.ENOSPC, errno.EDQUOT):
            sentence += f"; free space in {state_dir}"
    print(f"stationmaster: {sentence}", file=sys.stderr)
    return BAD_INPUT


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

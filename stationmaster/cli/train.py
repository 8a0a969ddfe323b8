"""What `stationmaster train` does: a start on a deployment, as the same words in Slack.

Exit codes, for CI: 0 accepted (with --wait: succeeded), 1 failed, 2 bad input, 3 awaits approval.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from typing import Final, TextIO

from stationmaster.cli.deployed import bot_function
from stationmaster.client import Client
from stationmaster.domain.commands.meanings import row_of
from stationmaster.domain.commands.table import COMMAND, START
from stationmaster.domain.errors import PermanentError, StationmasterError, UserError
from stationmaster.domain.remote import RunReport
from stationmaster.domain.run.events import RunPhase

# Subcommands of /train that start a run, and those that the command line has as well.
_STARTS: Final = (START.name, "resume", "rerun")
_ALSO_HERE: Final = ("plan", "recipes", "preflight")
_ACCEPTED, _FAILED, _AWAITS_APPROVAL = 0, 1, 3


def train(arguments: argparse.Namespace) -> int:
    """Start one run; with --wait, until it has ended.

    Raises:
        UserError: the command is not right, or this identity may not start it there.
    """
    deployment, function = bot_function(arguments)
    client = Client(deployment, channel=arguments.channel, function=function)
    words = arguments.words
    report = _start(client, words[0] if len(words) == 1 else shlex.join(words), arguments)
    # With --json, stdout has the result only.
    file = sys.stderr if arguments.json else sys.stdout
    _print_start(report, file)
    if arguments.wait and not report.awaits_approval:
        report = _wait(client, report, file)
    if arguments.json:
        print(report.model_dump_json(indent=2))
    if report.awaits_approval:
        return _AWAITS_APPROVAL
    is_bad = report.is_over and report.status is not RunPhase.SUCCEEDED
    return _FAILED if is_bad else _ACCEPTED


def _start(client: Client, command: str, arguments: argparse.Namespace) -> RunReport:
    try:
        return client.start(command)
    except UserError as error:
        raise UserError(str(error), suggestion=_pasted(error.suggestion, arguments)) from error


def _pasted(suggestion: str | None, arguments: argparse.Namespace) -> str | None:
    """Turn what could be typed in Slack into what can be typed here."""
    if suggestion is None or not suggestion.startswith(f"{COMMAND} "):
        return suggestion
    text = suggestion.removeprefix(f"{COMMAND} ")
    name = row_of(text).name
    if name not in _STARTS:
        return f"stationmaster {text}" if name in _ALSO_HERE else None
    where = f"--channel {arguments.channel}"
    if arguments.deployment:
        where += f" --deployment {arguments.deployment}"
    elif arguments.state_dir:
        where += f" --state-dir {shlex.quote(str(arguments.state_dir))}"
    return f"stationmaster train {shlex.quote(text)} {where}"


def _wait(client: Client, report: RunReport, file: TextIO) -> RunReport:
    last = ""

    def show(changed: RunReport) -> None:
        nonlocal last
        line = _progress(changed)
        if line != last:  # its cost grows with every look
            print(line, file=file, flush=True)
        last = line

    try:
        return client.wait(report.run_id, on_change=show)
    except StationmasterError as error:
        raise PermanentError(
            f"{error}; run {report.run_id} was started and is not watched here any more: "
            f"{COMMAND} status {report.run_id}"
        ) from error


def _print_start(report: RunReport, file: TextIO) -> None:
    verb = "accepted" if report.is_new else "was requested a moment ago; nothing new started"
    price = f"${report.estimated_cost_usd:,.2f} at ${report.price_per_hour_usd:,.2f} an hour"
    print(f"{report.run_id} {verb}, about {price}", file=file, flush=True)
    if report.awaits_approval:
        approvers = ", ".join(report.approvers) or "nobody, by the channel's rules"
        why = "; ".join(report.approval_reasons)
        print(f"it waits for an approval: {why}; approvers: {approvers}", file=file, flush=True)


def _progress(report: RunReport) -> str:
    said = f"{report.run_id} {report.status.value.replace('_', ' ')}"
    if report.is_over:
        said += f": {report.reason}" if report.reason else ""
        said += f", ${report.cost_usd:,.3f} so far"
        said += f", result in {report.result.uri}" if report.result else ""
    elif report.loss is not None:
        said += f", step {report.step:,} of {report.total_steps or 0:,}, loss {report.loss:.4g}"
    return said

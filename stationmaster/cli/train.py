"""What `stationmaster train` does: a start on a deployment, as the same words in Slack.

Exit codes, for CI: 0 accepted (with --wait: succeeded), 1 failed, 2 bad input, 3 awaits approval.
"""

from __future__ import annotations

import argparse
import shlex
import sys

from stationmaster.cli.deployed import bot_function
from stationmaster.client import Client
from stationmaster.domain.commands.table import COMMAND, START, row_of
from stationmaster.domain.errors import PermanentError, StationmasterError, UserError
from stationmaster.domain.remote import RunReport

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
    say = _Lines(on_stderr=arguments.json)
    say.started(report)
    if arguments.wait and not report.awaits_approval:
        report = _wait(client, report, say)
    if arguments.json:
        print(report.model_dump_json(indent=2))
    if report.awaits_approval:
        return _AWAITS_APPROVAL
    is_bad = report.is_over and not report.has_succeeded
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
    if row_of(text) is not START:
        return f"stationmaster {text}"
    where = f"--channel {arguments.channel}"
    if arguments.deployment:
        where += f" --deployment {arguments.deployment}"
    elif arguments.state_dir:
        where += f" --state-dir {shlex.quote(str(arguments.state_dir))}"
    return f"stationmaster train {shlex.quote(text)} {where}"


def _wait(client: Client, report: RunReport, say: _Lines) -> RunReport:
    try:
        return client.wait(report.run_id, on_change=say.changed)
    except StationmasterError as error:
        raise PermanentError(
            f"{error}; run {report.run_id} was started and is not watched here any more: "
            f"{COMMAND} status {report.run_id}"
        ) from error


class _Lines:
    """Says what happens, a line each; with --json on stderr, so that stdout has the result only."""

    def __init__(self, *, on_stderr: bool) -> None:
        self._file = sys.stderr if on_stderr else sys.stdout
        self._last = ""

    def started(self, report: RunReport) -> None:
        verb = "accepted" if report.is_new else "was requested a moment ago; nothing new started"
        self._print(
            f"{report.run_id} {verb}, about ${report.estimated_cost_usd:,.2f} at "
            f"${report.price_per_hour_usd:,.2f} an hour"
        )
        if report.awaits_approval:
            approvers = ", ".join(report.approvers) or "nobody, by the channel's rules"
            self._print(f"it waits for an approval: {'; '.join(report.approval_reasons)}")
            self._print(f"approvers: {approvers}")

    def changed(self, report: RunReport) -> None:
        said = report.status.value.replace("_", " ")
        if report.step and not report.is_over:
            said += f", step {report.step:,} of {report.total_steps or 0:,}"
            said += f", loss {report.loss:.4g}" if report.loss is not None else ""
        if report.is_over:
            said += f": {report.reason}" if report.reason else ""
            said += f", ${report.cost_usd:,.3f} so far"
            said += f", result in {report.result.uri}" if report.result else ""
        if said != self._last:
            self._print(f"{report.run_id} {said}")
        self._last = said

    def _print(self, text: str) -> None:
        print(text, file=self._file, flush=True)

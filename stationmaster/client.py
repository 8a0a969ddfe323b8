"""Start and follow runs of a deployment from a program: `stationmaster.Client`.

It asks the deployment's bot function with the AWS credentials of the process, and decides nothing
itself: the card, the channel's rules and the audit are those of a command typed in Slack.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any, Final, Literal, TypeVar

from pydantic import BaseModel, ValidationError

from stationmaster.aws.bot_function import BotFunction
from stationmaster.domain.commands.table import COMMAND
from stationmaster.domain.errors import BadCommand, PermanentError, TransientError
from stationmaster.domain.outside import first_problem
from stationmaster.domain.planning.plan import Plan
from stationmaster.domain.remote import Ask, RunReport, RunResults, Said

# Between the tries of one question.
_TRIES_AFTER_S: Final = (1.0, 3.0, 10.0)
# Between looks at a run: soon at first, later twice a minute; runs take minutes to days.
_FIRST_LOOK_S: Final = 2.0
_LAST_LOOK_S: Final = 30.0
# Looks in a row that may fail, which is about ten minutes.
_MOST_MISSED: Final = 10

ModelT = TypeVar("ModelT", bound=BaseModel)


class Client:
    """A channel of a deployment, as the AWS identity of this process sees it.

    Region and credentials are found as boto3 finds them.
    """

    def __init__(
        self,
        deployment: str,
        *,
        channel: str,
        function: str = "",
        via: Literal["cli", "mcp"] = "cli",
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Name a deployment as in cdk.json, and the id of a Slack channel, C...

        Args:
            function: its bot function; NAME-bot if left out, and "bot" in local mode.
            via: what asks, for the channel's audit.
        """
        self._bot = BotFunction(deployment, name=function or f"{deployment}-bot")
        self._channel = channel
        self._via = via
        self._sleep = sleep

    def plan(self, command: str) -> Plan:
        """Return what a start would create and cost; creates nothing.

        Args:
            command: what is typed after /train, e.g. "llama2-7b nodes=2".

        Raises:
            UserError: the command is not right, or you may not look.
        """
        return self._ask(Plan, kind="plan", text=_typed(command))

    def start(self, command: str) -> RunReport:
        """Start a run, once however often the network fails; it may await an approval.

        Raises:
            UserError: the command is not right, or you may not start runs there.
        """
        request_id = uuid.uuid4().hex
        return self._ask(RunReport, kind="start", text=_typed(command), request_id=request_id)

    def stop(self, run_id: str) -> RunReport:
        """Stop a run and tear it down.

        Raises:
            UserError: there is no such run in the channel, or you may not stop it.
        """
        return self._ask(RunReport, kind="stop", run_id=run_id)

    def look(self, command: str) -> str:
        """Return what the channel answers to a question such as "list" or "compare A B".

        Raises:
            UserError: it is no question, or you may not look.
        """
        return self._ask(Said, kind="look", text=_typed(command)).text

    def status(self, run_id: str) -> RunReport:
        """Return how a run is.

        Raises:
            UserError: there is no such run in the channel.
        """
        return self._ask(RunReport, kind="status", run_id=run_id)

    def wait(
        self,
        run_id: str,
        *,
        timeout_s: float | None = None,
        on_change: Callable[[RunReport], None] = lambda _report: None,
    ) -> RunReport:
        """Wait until a run has ended, also for its approval; its cluster may still be there then.

        Args:
            on_change: gets each report that differs from the one before.

        Raises:
            UserError: there is no such run in the channel.
            TransientError: it has not ended in time, or its status cannot be had.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        last: RunReport | None = None
        missed, pause_s = 0, _FIRST_LOOK_S
        while last is None or not last.is_over:
            if last is not None or missed:
                if deadline is not None and time.monotonic() + pause_s > deadline:
                    raise TransientError(f"run {run_id} has not ended within {timeout_s:g} s")
                self._sleep(pause_s)
                pause_s = min(_LAST_LOOK_S, pause_s * 1.5)
            try:
                report, missed = self.status(run_id), 0
            except TransientError:
                missed += 1
                if missed > _MOST_MISSED:
                    raise
                continue
            if report != last:
                on_change(report)
            last = report
        return last

    def results(self, run_id: str) -> RunResults:
        """Return what a run has left, with addresses of its model and metrics; downloads nothing.

        Raises:
            UserError: there is no such run in the channel, or it has saved nothing.
        """
        return self._ask(RunResults, kind="results", run_id=run_id)

    def _ask(self, answer: type[ModelT], **fields: Any) -> ModelT:
        try:
            text = Ask(channel_id=self._channel, via=self._via, **fields).model_dump_json()
        except ValidationError as exc:
            raise BadCommand(
                f"this cannot be asked ({first_problem(exc)}); channel_id is the id of a channel, "
                f'C..., which Slack shows at the end of its details, and "{self._channel[:40]}" '
                "was given"
            ) from exc
        try:
            return answer.model_validate(self._value(text))
        except ValidationError as exc:
            raise PermanentError(f"the bot is of another version ({first_problem(exc)})") from exc

    def _value(self, text: str) -> dict[str, Any]:
        for pause_s in _TRIES_AFTER_S:
            try:
                return self._bot.ask(text)
            except TransientError:
                self._sleep(pause_s)
        return self._bot.ask(text)


def _typed(command: str) -> str:
    return command.strip().removeprefix(COMMAND).strip()

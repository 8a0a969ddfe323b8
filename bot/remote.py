"""Answers who invokes the bot function itself: `stationmaster train` and `stationmaster.Client`.

IAM has let them invoke it; STS says who they are. What they may do is decided where it is of people
in Slack: in `stationmaster.commands`.
"""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass
from typing import Any, assert_never

from pydantic import BaseModel, ValidationError

from bot.announcement import Announcer
from bot.looking import look
from stationmaster import __version__, commands
from stationmaster.aws.proofs import caller_of
from stationmaster.domain.block_text import block_text, plain
from stationmaster.domain.commands import requests
from stationmaster.domain.commands.grammar import parse_command
from stationmaster.domain.commands.start import StartRun
from stationmaster.domain.commands.table import COMMAND, START
from stationmaster.domain.errors import BadCommand, StationmasterError, TransientError, UserError
from stationmaster.domain.identities import identity_of
from stationmaster.domain.ids import RunId
from stationmaster.domain.outside import first_problem
from stationmaster.domain.remote import (
    Answer,
    Ask,
    Envelope,
    RunResults,
    Said,
    report_of,
)
from stationmaster.domain.results import MANIFEST_FILE
from stationmaster.domain.run.view import RunView
from stationmaster.services import Services

logger = logging.getLogger(f"stationmaster.{__name__}")


@dataclass(frozen=True)
class Desk:
    """Answers programs."""

    services: Services
    announcer: Announcer

    def answer(self, payload: object) -> dict[str, Any]:
        """Read, find out who asks, carry out; only errors that nobody expects are raised."""
        try:
            value = self._carry_out(*self._read(payload))
            answer = Answer(value=value.model_dump(mode="json"))
        except UserError as error:
            answer = Answer(refused=str(error), suggestion=error.suggestion)
        except StationmasterError as error:
            reference = uuid.uuid4().hex[:8]
            logger.error("request failed", exc_info=error, extra={"reference": reference})
            answer = Answer(
                failed=f"this could not be carried out (reference {reference} in the bot's log)",
                is_transient=isinstance(error, TransientError),
            )
        return answer.model_dump(mode="json")

    def _read(self, payload: object) -> tuple[Ask, commands.Actor]:
        try:
            envelope = Envelope.model_validate(payload)
            ask = Ask.model_validate_json(envelope.ask)
        except ValidationError as exc:
            raise BadCommand(
                f"the bot of version {__version__} does not understand this ({first_problem(exc)})"
            ) from exc
        settings = self.services.settings
        caller = caller_of(
            envelope.proof,
            envelope.ask,
            deployment=settings.deployment,
            region=settings.region,
            now=self.services.now(),
        )
        identity, session = identity_of(caller)
        who = commands.Actor(
            user_id=identity,
            channel_id=ask.channel_id,
            user_name=session,
            via=ask.via,
            # A start's words are its run's command, which an approval reads again.
            words=" ".join(
                (
                    COMMAND,
                    *([] if ask.kind in ("start", "look") else [ask.kind]),
                    ask.text or ask.run_id,
                )
            ),
        )
        return ask, who

    def _carry_out(self, ask: Ask, who: commands.Actor) -> BaseModel:
        services, channel_id = self.services, who.channel_id
        commands.check_role(services, who)
        match ask.kind:
            case "plan":
                return commands.plan_run(services, self._read_start(ask), channel_id=channel_id)
            case "start":
                run, created = commands.request_run(
                    services,
                    self._read_start(ask),
                    who,
                    request_id=f"{who.user_id}/{ask.request_id}",
                    announce=self.announcer.announce_run,
                )
                return report_of(RunView(run), now=services.now(), is_new=created)
            case "status":
                return report_of(self._view(ask), now=services.now())
            case "results":
                links = commands.link_results(services, RunId(ask.run_id), channel_id=channel_id)
                return RunResults(
                    run_id=links.run_id,
                    result=self._view(ask).run.results,
                    links={file.path if file else MANIFEST_FILE: url for file, url in links.files},
                    num_others=links.num_others,
                    link_seconds=links.seconds,
                )
            case "look":
                content = look(services, self._read_look(ask), who, request_id="")
                return Said(text=plain(block_text(content.blocks)))
            case "stop":
                stopped = commands.stop_run(services, RunId(ask.run_id), who)
                return report_of(commands.view_run(services, stopped), now=services.now())
            case _:
                assert_never(ask.kind)

    def _read_start(self, ask: Ask) -> StartRun:
        finders = commands.finders(self.services, channel_id=ask.channel_id)
        command = parse_command(ask.text, **finders)
        if not isinstance(command, StartRun):
            raise BadCommand(
                f'"{ask.text[:60]}" starts no run; expected RECIPE key=value ..., such as '
                f'"{START.example}"'
            )
        return command

    def _read_look(self, ask: Ask) -> requests.Look:
        finders = commands.finders(self.services, channel_id=ask.channel_id)
        command = parse_command(ask.text, **finders)
        if not isinstance(command, requests.Look):
            raise BadCommand(f'"{ask.text[:60]}" is no question, such as "list" or "cost"')
        return command

    def _view(self, ask: Ask) -> RunView:
        return commands.describe_run(self.services, RunId(ask.run_id), channel_id=ask.channel_id)

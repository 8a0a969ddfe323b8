"""What the form of a start does: it opens, its plan follows its fields, it starts the run.

Its fields become the words that a person would type after /train; everything else is as if they
had been typed: role, approval, limits, audit, and that one form starts one run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from pydantic import ValidationError

from bot.actions import FORM_FIELD, MOST_FILLED, FormNotes, actor_of
from bot.announcement import Announcer
from bot.blocks import answers, refusals
from bot.blocks import start_form as drawn
from bot.blocks.elements import Block, Content
from bot.outbox import Outbox
from stationmaster import commands
from stationmaster.domain.catalogue.entries import CATALOGUE
from stationmaster.domain.catalogue.hub import HUB_PREFIX
from stationmaster.domain.commands.grammar import parse_command
from stationmaster.domain.commands.parameters import shorten
from stationmaster.domain.commands.start import StartRun
from stationmaster.domain.commands.table import COMMAND
from stationmaster.domain.errors import (
    BadCommand,
    NotPermitted,
    NotPossibleNow,
    PermanentError,
    TransientError,
    UserError,
)
from stationmaster.domain.spelling import typed_word
from stationmaster.services import Services

Json = dict[str, Any]

# The keys of fields, as refusals name them: nodes=99 is..., steps is given twice.
_NAMED: Final = re.compile(rf"\b({'|'.join(drawn.FIELDS)})(?:=| is given twice)")
_RECIPES: Final = frozenset([*CATALOGUE, drawn.HUB])
_MOST_IN_ERROR: Final = 500
_NO_CHANNEL: Final = "choose a channel"
_NOT_YET: Final = "*Nothing has started yet.* This is the plan of what you entered:"


@dataclass(frozen=True)
class StartForm:
    """The form, and what it needs."""

    services: Services
    announcer: Announcer
    outbox: Outbox

    def open(self, trigger_id: str | None, who: commands.Actor, words: str = "") -> bool:
        """Open the form, filled with the words of a start and with their plan.

        Returns:
            False where Slack does not take it, or not in time.

        Raises:
            NotPossibleNow: the words have no room in a form.
        """
        if len(words) > MOST_FILLED:
            raise NotPossibleNow(
                f"a form takes at most {MOST_FILLED:,} characters of keys; type the command"
            )
        notes = FormNotes(channel=who.channel_id, words=words)
        view = drawn.start_form(notes, drawn.nothing_planned())
        try:
            opened = self.outbox.show_view(
                "views.open", who.user_id, trigger_id=trigger_id, view=view
            )
        except (TransientError, PermanentError):
            return False
        if words:
            asks = replace(who, words=f"{COMMAND} {words}")
            self._show_plan(opened, drawn.fields_of(words), asks, notes)
        return True

    def follow(self, body: Json) -> None:
        """Show the plan of what is in the fields now."""
        view = body["view"]
        self._show_plan(view, _entered(view), _who(body), _notes(view))

    def _show_plan(
        self, view: Json, entered: Mapping[str, str], who: commands.Actor, notes: FormNotes
    ) -> None:
        """Show the plan of what was entered; Slack drops one that another has overtaken, by the
        view's hash."""
        notes = notes.model_copy(update={"shown": ""})
        try:
            commands.check_role(self.services, who)
            start = self._read(entered, who)
            planned = self._plan(start, who)
            notes = notes.model_copy(update={"shown": _fingerprint(start)})
        except UserError as error:
            planned = drawn.no_plan(str(error))
        form = drawn.start_form(notes, planned)
        try:
            arguments = {"view_id": view["id"], "hash": view["hash"], "view": form}
            self.outbox.show_view("views.update", who.user_id, **arguments)
        except (TransientError, PermanentError):
            return  # closed, overtaken, or Slack is busy: sending it shows the plan first

    def send(self, body: Json) -> Json:
        """Start what is in the fields, if its price was shown; returns Slack's response action."""
        view = body["view"]
        entered = _entered(view)
        try:
            who = _who(body)
            commands.check_role(self.services, who)
            start = self._read(entered, who)
            shown, notes = _fingerprint(start), _notes(view)
            if shown != notes.shown and start.plan.fits:
                notes = notes.model_copy(update={"shown": shown})
                return _update(drawn.start_form(notes, self._plan(start, who), note=_NOT_YET))
            content = started(self.services, self.announcer, start, who, request_id=view["id"])
        except NotPermitted as error:
            content = refusals.refusal(str(error), suggestion=None)
        except UserError as error:
            return {"response_action": "errors", "errors": _at_its_field(error, entered)}
        return instead(content)

    def _read(self, entered: Mapping[str, str], who: commands.Actor) -> StartRun:
        """Read the fields as the words that they are."""
        text = who.words.removeprefix(f"{COMMAND} ")
        if entered.get(drawn.RECIPE) not in _RECIPES:
            raise BadCommand("choose a recipe")
        if entered[drawn.RECIPE] == drawn.HUB and not text.startswith(HUB_PREFIX):
            raise BadCommand(f"write {HUB_PREFIX}ORG/MODEL first here, and its keys after it")
        command = parse_command(text, **commands.finders(self.services, channel_id=who.channel_id))
        assert isinstance(command, StartRun)  # what a recipe's name begins is a start
        return command

    def _plan(self, start: StartRun, who: commands.Actor) -> list[Block]:
        plan = commands.plan_run(self.services, start, channel_id=who.channel_id)
        wish = commands.wish_of(start)
        approval = commands.approval_of(self.services, wish, channel_id=who.channel_id)
        return drawn.form_plan(plan, approval, command=start.words)


def started(
    services: Services,
    announcer: Announcer,
    start: StartRun,
    who: commands.Actor,
    *,
    request_id: str,
) -> Content:
    """Start a run, however it was asked for, and say what became of it."""
    run, created = commands.request_run(
        services, start, who, request_id=request_id, announce=announcer.announce_run
    )
    return answers.run_requested(run, commands.offered_plan(services, start), created=created)


def instead(content: Content) -> Json:
    """Show an answer in the place of the form."""
    return _update(drawn.form_answer(content))


def _update(view: Json) -> Json:
    return {"response_action": "update", "view": view}


def _who(body: Json) -> commands.Actor:
    """Return who has the form before them, with what they would have typed.

    Raises:
        BadCommand: the form is of another version, or no channel is chosen.
    """
    entered = _entered(body["view"])
    channel_id = _notes(body["view"]).channel or entered.get(drawn.CHANNEL, "")
    if not channel_id:
        raise BadCommand(_NO_CHANNEL)
    return actor_of(
        body, channel_id=channel_id, via="modal", words=f"{COMMAND} {as_typed(entered)}"
    )


def _notes(view: Json) -> FormNotes:
    try:
        return FormNotes.model_validate_json(view["private_metadata"])
    except ValidationError as exc:
        raise BadCommand(
            "this form is of another version and cannot be read; close it and type /train again"
        ) from exc


def _entered(view: Json) -> dict[str, str]:
    """Return what stands in the fields, by their names; nothing of those that are empty."""
    entered = {}
    for name, elements in view["state"]["values"].items():
        field = elements.get(FORM_FIELD) or {}
        value = (field.get("selected_option") or field).get("value") or ""
        value = field.get("selected_conversation") or value
        if value.strip() and value != drawn.AS_RECIPE:
            entered[name] = value.strip()
    return entered


def as_typed(entered: Mapping[str, str]) -> str:
    """Write what was entered as it is typed after /train."""
    pairs = [typed_word(f"{key}={entered[key]}") for key in drawn.FIELDS if key in entered]
    recipe, more = entered.get(drawn.RECIPE, ""), entered.get(drawn.MORE, "")
    if recipe == drawn.HUB:
        recipe, _, more = more.partition(" ")
    return " ".join(filter(None, [recipe, *pairs, more]))


def _fingerprint(start: StartRun) -> str:
    """What of a start costs money: what a plan has to have shown before it begins."""
    return commands.wish_of(start).model_copy(update={"command": ""}).fingerprint


def _at_its_field(error: UserError, entered: Mapping[str, str]) -> dict[str, str]:
    """Return the sentence at the field that it is about; otherwise at that of all other keys."""
    named = _NAMED.search(str(error))
    if str(error) == _NO_CHANNEL:
        return {drawn.CHANNEL: str(error)}
    place = drawn.MORE if entered.get(drawn.RECIPE) in _RECIPES else drawn.RECIPE
    if named is not None and named[1] in entered:
        place = named[1]
    remedy = f"; try {error.suggestion}" if error.suggestion else ""
    return {place: shorten(f"{error}{remedy}", _MOST_IN_ERROR)}

"""Reads the text of a slash command: typed words in, a command or one helpful error out.

`/train RECIPE [key=value ...]` starts a run; all else is a subcommand, some of two words. Chat
clients turn quotes and dashes into typographic ones, so those are undone first.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final, Unpack, assert_never

from stationmaster.domain.catalogue.entries import CATALOGUE
from stationmaster.domain.catalogue.hub import HUB_PREFIX, repository_of
from stationmaster.domain.catalogue.models import LanguageModel
from stationmaster.domain.catalogue.recipes import Recipe
from stationmaster.domain.commands.cluster_words import (
    read_label,
    read_new_cluster,
    read_validation,
)
from stationmaster.domain.commands.correcting import corrected
from stationmaster.domain.commands.meanings import group_row_meant, subcommand_meant
from stationmaster.domain.commands.parameters import read_pairs, read_start, shorten, split_words
from stationmaster.domain.commands.requests import (
    Command,
    DeleteCluster,
    ShowHelp,
    ShowLogs,
    StopRun,
    StudyRuns,
)
from stationmaster.domain.commands.resuming import continued_words, repeated_words
from stationmaster.domain.commands.run_words import (
    MOST_COMPARED,
    READERS,
    read_cost,
    read_runs,
    read_study,
)
from stationmaster.domain.commands.start import StartRun
from stationmaster.domain.commands.table import (
    EXTEND,
    FOREIGN,
    START,
    SUBCOMMANDS,
    Subcommand,
    Takes,
)
from stationmaster.domain.commands.translating import joined, translate
from stationmaster.domain.datasets import AS_IT_IS, HubSource, Listing, PackedSource, S3Source
from stationmaster.domain.errors import BadCommand, UserError
from stationmaster.domain.ids import RunId
from stationmaster.domain.keys.names import START_KEYS
from stationmaster.domain.keys.questions import Finders, Questions, questions
from stationmaster.domain.keys.resume_from import NEWEST, RESUME_FROM
from stationmaster.domain.planning.recipe_lookup import get_recipe, recipe_meant

MAX_COMMAND_CHARACTERS: Final = 2_000
_ALL: Final = ("all", "everything", "*")
_OF_A_SCRIPT: Final = ("plan", "ddp-cpu")  # before a command= that was typed without a recipe


def parse_command(text: str, **finders: Unpack[Finders]) -> Command:
    """Read what a person typed after `/train`; the finders are asked what it needs of others.

    Raises:
        UserError: one sentence that names the value, what was expected, and where possible a
            corrected command to paste in `suggestion`.
    """
    if len(text) > MAX_COMMAND_CHARACTERS:
        raise BadCommand(
            f"the command has {len(text):,} characters; at most {MAX_COMMAND_CHARACTERS:,} are read"
        )
    return _parse(text, questions(**finders))


def _parse(text: str, ask: Questions) -> Command:
    words = split_words(text)
    if not words:
        return ShowHelp()
    first, rest = words[0], words[1:]
    subcommand = SUBCOMMANDS.get(first.lower())
    if _stops_all(words):
        return StopRun()
    if subcommand is not None:
        return _read_arguments(subcommand, first, rest, ask)
    if first not in CATALOGUE:
        _refuse_subcommand(first, rest, ask)
    return _parse_start(words, ask, prefix="")


def parse_request(words: Sequence[str], **finders: Unpack[Finders]) -> StartRun:
    """Read RECIPE and key=value words that a shell has already split.

    Raises:
        UserError: as parse_command.
    """
    ask = questions(names_clusters=False, **finders)
    return _parse_start(list(words), ask, prefix="plan ")


def parse_requests(words: Sequence[str], **finders: Unpack[Finders]) -> tuple[StartRun, ...]:
    """Read several RECIPE and key=value words that a shell has already split.

    Raises:
        UserError: as parse_command.
    """
    ask = questions(names_clusters=False, **finders)
    return _parse_starts(list(words), prefix="plan ", ask=ask)


def _read_arguments(row: Subcommand, word: str, rest: list[str], ask: Questions) -> Command:
    if row.asks and [each.lower() for each in rest[-1:]] == ["now"]:
        command = _read_arguments(row, word, rest[:-1], ask)
        assert isinstance(command, StopRun | DeleteCluster)
        return replace(command, is_now=True)
    make, prefix = row.make, f"{row.name} "
    match row.takes:
        case Takes.ANYTHING:
            return make()
        case Takes.NOTHING:
            if rest:
                raise BadCommand(
                    f'/train {word} takes nothing more, got "{shorten(" ".join(rest))}"',
                    suggestion=f"/train {word}",
                )
            return make()
        case Takes.RUN | Takes.LOGS if any(each.startswith("-") for each in rest):
            raise _options_refused(row, rest, ask)
        case Takes.RUN:
            if len(rest) > 1:
                raise BadCommand(
                    f'/train {word} takes one run id, got "{shorten(" ".join(rest))}"',
                    suggestion=_accepted(ask, [word, rest[0]]),
                )
            return make(RunId(rest[0]) if rest else None)
        case Takes.LOGS | Takes.AUDIT | Takes.LONGER_LIFE:
            return make(*READERS[row.takes](rest))
        case Takes.OTHER_SIZE | Takes.RUN_BUDGET | Takes.RUN_SIZE | Takes.CLUSTER_VIEW:
            return make(*READERS[row.takes](rest))
        case Takes.START:
            return make(_parse_start(rest, ask, prefix=prefix))
        case Takes.STARTS:
            return make(_parse_starts(rest, prefix=prefix, ask=ask))
        case Takes.STUDY:
            return _parse_study(rest, ask=ask)
        case Takes.RESUMPTION:
            return make(_parse_resume(rest, ask=ask))
        case Takes.REPETITION:
            return make(_parse_rerun(rest, ask=ask))
        case Takes.RUNS:
            return make(read_runs(rest, row.name, most=MOST_COMPARED))
        case Takes.PAIR:
            return make(read_runs(rest, row.name))
        case Takes.COST:
            return make(*_read_cost(rest, ask))
        case Takes.CLUSTER:
            return make(read_label(rest, row.name))
        case Takes.VALIDATION:
            return make(*read_validation(rest))
        case Takes.NEW_CLUSTER:
            return read_new_cluster(rest, ask)
        case Takes.ROW:
            return _read_row(row, rest, ask)
        case takes:
            assert_never(takes)


def _stops_all(words: list[str]) -> bool:
    """Say whether somebody wants to stop everything: whoever does is asked, or chooses."""
    is_stop = len(words) == 2 and words[1].lower().lstrip("-") in _ALL
    return is_stop and subcommand_meant(words[0]) is SUBCOMMANDS["stop"]


def _options_refused(row: Subcommand, words: list[str], ask: Questions) -> BadCommand:
    """Refuse logs -f and the like."""
    follows = "; a run's thread follows it" if row.make is ShowLogs else ""
    # A number after an option is its value.
    runs = [each for each in words if not each.startswith("-") and not each.isdecimal()]
    return BadCommand(
        f'/train {row.name} takes a run id and no options, got "{shorten(" ".join(words))}"'
        f"{follows}",
        suggestion=_accepted(ask, [row.name, *runs[:1]]),
    )


def _read_row(group: Subcommand, rest: list[str], ask: Questions) -> Command:
    """Read the word that says which of the group is meant, and what follows it."""
    if not rest:
        raise BadCommand(
            f"/train {group.name} needs one more word: {', '.join(group.rows)}",
            suggestion=f"/train {group.example}",
        )
    row = group.rows.get(rest[0].lower())
    if row is not None:
        return _read_arguments(row, row.name, rest[1:], ask)
    meant = group_row_meant(rest[0], group)
    which = f"did you mean /train {meant.name}" if meant else f"use {', '.join(group.rows)}"
    words = [*meant.name.split(), *rest[1:]] if meant else []
    raise BadCommand(
        f'/train {group.name} has no "{shorten(rest[0])}"; {which}',
        suggestion=_accepted(ask, words, group.example.split()),
    )


def _refuse_subcommand(first: str, rest: list[str], ask: Questions) -> None:
    """Raise if the first word stands for a subcommand, or resembles one; no start is offered."""
    for foreign in FOREIGN:
        if first.lower() in foreign.words:
            words = [foreign.like, *rest] if len(rest) == 1 else []
            if foreign.is_program:
                words = [*_OF_A_SCRIPT, f"command={shlex.join([first, *rest])}"]
            raise BadCommand(
                f'"{first}" is not a command here; {foreign.instead}',
                suggestion=_accepted(ask, words, [foreign.like]),
            )
    meant = subcommand_meant(first)
    is_recipe = "=" in first or first.startswith(HUB_PREFIX) or recipe_meant(first, CATALOGUE)[1]
    if meant is None or is_recipe:
        return
    if meant is START:
        is_one = bool(rest) and (rest[0] in SUBCOMMANDS or _is_recipe(rest[0]))
        raise BadCommand(
            f'"{shorten(first)}" is not a command; start a run with /train RECIPE [key=value ...]',
            suggestion=_accepted(ask, rest if is_one else [], ["recipes"]),
        )
    if meant is EXTEND:
        rest = [_cluster_of(rest[0], ask), *rest[1:]] if rest else []
    words, other = meant.name.split(), ["cluster", "list"] if meant is EXTEND else ["list"]
    raise BadCommand(
        f'"{shorten(first)}" is not a command; did you mean /train {meant.name}',
        suggestion=_accepted(ask, [*words, *rest], [*words, *rest[:1]], other),
    )


def _cluster_of(label: str, ask: Questions) -> str:
    """Return the cluster that a run was to use or to keep; the label itself where it is no run."""
    try:
        asked = ask.find_asked(label)
    except UserError:
        return label
    return asked.words.get("on", asked.run_id)


def _read_cost(words: list[str], ask: Questions) -> tuple[str, str]:
    """Read whose cost of which month; of a recipe its plan is meant, of a run its status."""
    try:
        return read_cost(words)
    except BadCommand as error:
        meant = "plan" if _is_recipe(words[0]) else "status"
        error.suggestion = _accepted(ask, [meant, *words], ["cost"])
        raise


def _is_recipe(word: str) -> bool:
    return word in CATALOGUE or recipe_meant(word, CATALOGUE)[1]


def _accepted(ask: Questions, *commands: list[str]) -> str | None:
    """Return the first command that is accepted when it is pasted, corrected where necessary."""
    for words in filter(None, commands):
        text = shlex.join(words)
        try:
            _parse(text, ask)
        except UserError as error:
            if error.suggestion is not None:
                return error.suggestion
        else:
            return f"/train {text}"
    return None


def _parse_start(words: list[str], ask: Questions, *, prefix: str) -> StartRun:
    if not words:
        raise BadCommand(
            f"/train {prefix}needs a recipe: {', '.join(CATALOGUE)}, or {HUB_PREFIX}ORG/MODEL",
            suggestion=f"/train {prefix}{next(iter(CATALOGUE))} nodes=2",
        )
    name, pairs = words[0], words[1:]
    if "=" in name:
        first = [word for word in pairs if word in CATALOGUE][:1]
        if not first and any(word.startswith("command=") for word in words):
            prefix, first = "", list(_OF_A_SCRIPT)
        in_order = [*prefix.split(), *first, *(word for word in words if word not in first)]
        raise BadCommand(
            f'the recipe comes first, got "{shorten(name)}"',
            suggestion=_accepted(ask, in_order if first else [], ["recipes"]),
        )
    # What the hub says against a model has no nearest command that would work.
    model = ask.look_up(repository_of(name)) if name.startswith(HUB_PREFIX) else None
    return _read_start(name, model, pairs, prefix=prefix, ask=ask)


def _parse_starts(words: list[str], *, prefix: str, ask: Questions) -> tuple[StartRun, ...]:
    """Read several starts: each begins with a recipe and has the pairs up to the next."""
    starts: list[list[str]] = []
    for word in words:
        if "=" not in word or not starts:
            starts.append([])
        starts[-1].append(word)
    return tuple(_parse_start(each, ask, prefix=prefix) for each in starts)


def _parse_study(words: list[str], *, ask: Questions) -> StudyRuns:
    try:
        return read_study(words, partial(_parse_start, prefix=""), ask)
    except UserError as error:
        error.suggestion = None  # it would be one run
        raise


def _parse_resume(words: list[str], *, ask: Questions) -> StartRun:
    """Read the start that continues a run that has ended, with what was typed over its keys."""
    _refuse_no_run(words, "resume")
    name, at, step = words[0].partition("@")
    typed = _typed_over(words, "resume", ask)
    if RESUME_FROM.name in typed:
        raise BadCommand(
            f"/train resume {shorten(words[0])} says already which run is resumed; leave "
            f"{RESUME_FROM.name}= out, or start with /train RECIPE {RESUME_FROM.name}=RUN",
            suggestion="/train list",
        )
    saved = ask.find_saved(name)
    cluster = ask.find_cluster(typed["on"]) if "on" in typed else None
    pairs = continued_words(saved, typed, at=f"{at}{step}", cluster=cluster)
    return _read_start(saved.recipe, saved.model, pairs, prefix="", ask=ask)


def _parse_rerun(words: list[str], *, ask: Questions) -> StartRun:
    """Read a start from what a run was asked for, with what was typed over its keys."""
    _refuse_no_run(words, "rerun")
    asked = ask.find_asked(words[0])
    typed = _typed_over(words, "rerun", ask)
    cluster = ask.find_cluster(typed["on"]) if "on" in typed else None
    pairs = repeated_words(asked, typed, cluster=cluster)
    return _read_start(asked.recipe, asked.model, pairs, prefix="", ask=ask)


def _typed_over(words: list[str], name: str, ask: Questions) -> dict[str, str]:
    """Read the keys that are typed after a run."""
    pairs = joined(words[1:], START_KEYS)
    meant = [word for _, word in pairs]
    if meant != words[1:]:
        raise BadCommand(
            f'write {shorten(" ".join(meant))} for "{shorten(" ".join(words[1:]))}"',
            suggestion=_accepted(ask, [name, words[0], *meant]),
        )
    return read_pairs(words[1:])


def _refuse_no_run(words: list[str], name: str) -> None:
    if not words or "=" in words[0]:
        raise BadCommand(
            f"/train {name} needs a run first: its id, or {NEWEST} for the newest that has ended",
            suggestion="/train list",
        )


def _read_start(
    name: str, model: LanguageModel | None, pairs: list[str], *, prefix: str, ask: Questions
) -> StartRun:
    recipe: Recipe | None = None
    try:
        recipe = get_recipe(name, model)
        translate(recipe, pairs).refuse()
        start = read_start(name, pairs, recipe, ask, model=model)
    except UserError as error:
        if error.suggestion is None:
            error.suggestion = _suggest(recipe or name, pairs, prefix=prefix, ask=ask)
        raise
    # What S3 says against a data set has no nearest command that would work.
    listing = _measured(start, ask)
    if listing is None:
        return start
    return read_start(name, pairs, recipe, ask, model=model, listing=listing)


def _measured(start: StartRun, ask: Questions) -> Listing | None:
    data = start.resolved.data
    source = data.hub if isinstance(data, PackedSource) else data
    if not isinstance(source, S3Source | HubSource):
        return None
    if not start.options.program:
        return ask.measure(source, start.resolved.data_task)
    # How much of it a command reads, nobody knows: all of it is copied.
    listing = ask.measure(source, AS_IT_IS)
    return listing.model_copy(update={"may_link": False}) if listing is not None else None


def _suggest(recipe: Recipe | str, pairs: Sequence[str], *, prefix: str, ask: Questions) -> str:
    """Suggest the command that was meant where that is beyond doubt, else one that is free."""
    if isinstance(recipe, Recipe):
        return corrected(recipe, pairs, prefix=prefix, ask=ask)
    meant, is_sure = recipe_meant(recipe, CATALOGUE)
    if meant is None:
        return "/train recipes"
    prefix = prefix if is_sure else "plan "
    return corrected(CATALOGUE[meant], pairs, prefix=prefix, ask=ask)

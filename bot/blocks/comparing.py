"""What `/train compare`, `/train diff`, `/train cost` and `/train audit` answer."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Final, TypeVar

from bot.blocks import mrkdwn as md
from bot.blocks import words
from bot.blocks.elements import Block, Content, at_most, context, header, section
from stationmaster.commands.comparing import Comparison
from stationmaster.domain.audit import Entry
from stationmaster.domain.cluster.shares import shares
from stationmaster.domain.comparing import Measured, Study, study_of
from stationmaster.domain.run.view import RunView
from stationmaster.domain.sizes import counted
from stationmaster.spending import Bill, Spent

# A section takes 3,000 characters, of which escapes may need some.
_MOST_TABLE: Final = 2_400
_CELL: Final = 18
_NAME: Final = 22
_MOST_DIFFERENCES: Final = 60
_MOST_PEOPLE: Final = 30
_MOST_ITEMS: Final = 10
# Enough of a digest to tell two apart.
_DIGEST: Final = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{20,}\b")


_Figure = TypeVar("_Figure")


def letters(runs: Sequence[object]) -> list[str]:
    """Return what the runs are called in a comparison: A, B, C."""
    return [chr(ord("A") + place) for place in range(len(runs))]


def runs_compared(
    compared: Comparison, *, has_picture: bool, now: datetime, title: str = "Compared"
) -> Content:
    """Show what differs and what came out, a column for each run."""
    views = compared.runs
    blocks: list[Block] = [header(f"{title}: {len(views)} runs"), section(_legend(views))]
    if compared.differs:
        table, left = _table(letters(views), compared.differs)
        blocks.append(section(f"*What differs*\n{table}"))
        if left:
            blocks.append(context(f"and {left} more keys; `/train diff RUN RUN` shows them"))
    else:
        blocks.append(section("*What differs*\nNothing in what was asked for."))
    study = study_of([view.run for view in views])
    came_out = [
        _outcome(view, now=now) | _speeds(each, study)
        for view, each in zip(views, study.runs, strict=True)
    ]
    rows = [(name, tuple(each[name] for each in came_out)) for name in came_out[0]]
    table, _ = _table(letters(views), rows)
    blocks.append(section(f"*What came out*\n{table}"))
    blocks.append(
        context(
            "their loss follows as one picture in this channel"
            if has_picture
            else "there is no picture of losses here: `/train compare` draws those of two steps"
        )
    )
    first, cluster = views[0].run, views[0].cluster
    if first.request.goes_with_study and cluster is not None:
        split, emulated = shares(cluster, now), " emulated" if first.emulated_speed else ""
        said = (
            f"Cluster {md.code(cluster.label, 60)} has cost {md.money(split.total)}{emulated} so "
            f"far; {md.money(split.own)} of it, while it was made and for free nodes, is no run's."
        )
        blocks.append(context(said))
    return Content(text=f"{len(views)} runs compared", blocks=blocks)


def _legend(views: Sequence[RunView]) -> str:
    return "\n".join(
        f"*{letter}* {words.emoji(view.run)} {md.escape(view.run.request.title, 80)} "
        f"{md.code(view.run.run_id, 60)} {md.DOT} {words.status(view.run)} {md.DOT} "
        f"{md.user(view.run.request.user_id)}"
        for letter, view in zip(letters(views), views, strict=True)
    )


def _outcome(view: RunView, *, now: datetime) -> dict[str, str]:
    run, last = view.run, view.run.progress
    return {
        "final loss": md.loss(last.loss_nats) if last is not None and last.has_loss else "-",
        "steps": f"{last.step:,}" if last is not None else "-",
        "time of an epoch": _figure(run.epoch_s, md.duration),
        "cost": md.money(view.cost_usd(now)) + (" emulated" if run.emulated_speed else ""),
        "duration": md.duration((run.ended_at or now) - run.requested_at),
    }


def _speeds(measured: Measured, study: Study) -> dict[str, str]:
    """Write what a run has measured; what differs in no run's nodes is not set against them."""
    of_linear, unit = measured.of_linear, "samples" if measured.tokens_per_s is None else "tokens"
    rows = {
        "samples/s": _figure(measured.samples_per_s, md.count),
        "tokens/s": _figure(measured.tokens_per_s, md.count),
    }
    if len({each.nodes for each in study.runs}) > 1:
        rows |= {"nodes": str(measured.nodes), "of linear": _figure(of_linear, "{:.0%}".format)}
    rows["cost of a million"] = f"{_figure(measured.usd_per_million, md.money)} ({unit})"
    if study.target_loss is not None:
        name = f"loss {study.target_loss:.3f}"
        rows[f"time to {name}"] = _figure(measured.target, md.duration)
        rows[f"cost to {name}"] = _figure(measured.target_usd, md.money)
    return rows


def _figure(value: _Figure | None, write: Callable[[_Figure], str]) -> str:
    return "-" if value is None else write(value)


def _table(names: Sequence[str], rows: Iterable[tuple[str, tuple[str, ...]]]) -> tuple[str, int]:
    """Write rows in columns of one width, as many as fit; returns how many do not."""
    cells = [("", *names), *((name, *values) for name, values in rows)]
    shown = [[_cell(row[0], _NAME), *(_cell(cell, _CELL) for cell in row[1:])] for row in cells]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    lines: list[str] = []
    for row in shown:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        if sum(map(len, lines)) + len(lines) + len(line) > _MOST_TABLE:
            break
        lines.append(line.rstrip())
    return md.code_block(lines), len(shown) - len(lines)


def _cell(text: str, width: int) -> str:
    text = _short(text)
    return text if len(text) <= width else f"{text[: width - 3]}..."


def _short(text: str) -> str:
    return _DIGEST.sub(r"\1", " ".join(text.split()))


def runs_differ(compared: Comparison) -> Content:
    """Show everything that differs between two runs."""
    first, second = (view.run for view in compared.runs)
    blocks: list[Block] = [header("What differs"), section(_legend(compared.runs))]
    lines = [
        f"*{md.escape(name, 60)}* {md.code(_short(one), 120)} {md.ARROW} "
        f"{md.code(_short(other), 120)}"
        for name, (one, other) in compared.differs
    ]
    if not lines:
        lines = ["Nothing that is known of both differs."]
    blocks += [section("\n".join(each)) for each in _parted(lines[:_MOST_DIFFERENCES], 8)]
    if len(lines) > _MOST_DIFFERENCES:
        blocks.append(context(f"and {len(lines) - _MOST_DIFFERENCES} more"))
    blocks += [context(f"{md.WARNING} {md.escape(note, 600)}") for note in compared.notes[:10]]
    text = (
        f"{counted(len(compared.differs), 'difference')} between {first.run_id} and {second.run_id}"
    )
    return Content(text=md.escape(text, 300), blocks=blocks)


def _parted(lines: Sequence[str], each: int) -> Iterator[Sequence[str]]:
    """Yield so many lines at a time: a section has no room for all."""
    for start in range(0, len(lines), each):
        yield lines[start : start + each]


def month_cost(bill: Bill) -> Content:
    """Show what a month has cost: by person, by recipe, and what has cost most."""
    emulated = " emulated" if bill.is_emulated else ""
    total = f"{md.money(sum(each.usd for each in bill.spent))}{emulated}"
    blocks: list[Block] = [header(f"Cost of {bill.month}: {total}")]
    each_person = _lines(bill.spent, lambda each: md.user(each.user_id))
    lines = at_most(_MOST_PEOPLE, each_person, more="more people")
    blocks += [
        section("\n".join(each)) for each in _parted(lines or ["Nothing was asked for."], 10)
    ]
    runs = [each for each in bill.spent if each.is_run]
    if recipes := _lines(runs, lambda each: md.escape(each.recipe, 80)):
        shown = at_most(_MOST_ITEMS, recipes, more="more recipes")
        blocks.append(section("*By recipe*\n" + "\n".join(shown)))
    dearest = sorted(bill.spent, key=lambda each: -each.usd)[:_MOST_ITEMS]
    if dearest:
        items = [
            f"{md.money_escaped(each.usd)} {md.escape(each.name, 130)}"
            f"{', not ended' if each.is_open else ''}"
            for each in dearest
        ]
        blocks.append(section("*What has cost most*\n" + "\n".join(items)))
    blocks.append(
        context(
            "each run and kept cluster counts in the month (UTC) in which it was asked for; of a "
            "kept cluster, what no run has used counts for the person who keeps it"
        )
    )
    if bill.since is not None:
        since = md.when(bill.since)
        blocks.append(
            context(f"{md.WARNING} read back to {since} only; what was asked for before is missing")
        )
    return Content(text=f"cost of {bill.month}: {total.replace('<', '&lt;')}", blocks=blocks)


def _lines(spent: Sequence[Spent], name: Callable[[Spent], str]) -> list[str]:
    """Write a line for each name, the dearest first."""
    groups: defaultdict[str, list[Spent]] = defaultdict(list)
    for each in spent:
        groups[name(each)].append(each)
    ranked = sorted(groups.items(), key=lambda pair: -sum(each.usd for each in pair[1]))
    return [_spent_line(name, its) for name, its in ranked]


def _spent_line(name: str, spent: Sequence[Spent]) -> str:
    num_runs = sum(each.is_run for each in spent)
    counts = [counted(num_runs, "run")] if num_runs else []
    if len(spent) > num_runs:
        counts.append(counted(len(spent) - num_runs, "kept cluster"))
    line = f"{name} {md.DOT} {md.money_escaped(sum(each.usd for each in spent))}"
    line += f" {md.DOT} {', '.join(counts)}"
    still = [each.usd for each in spent if each.is_open]
    return line + (
        f" {md.DOT} {len(still)} not ended, {md.money_escaped(sum(still))} so far" if still else ""
    )


def audit_list(entries: Sequence[Entry]) -> Content:
    """List entries, newest first."""
    if not entries:
        text = "the audit of this channel has nothing of that"
        return Content(text=text, blocks=[section(text)])
    blocks = [header("Who did what in this channel"), *(section(_line(each)) for each in entries)]
    blocks.append(
        context(
            "newest first; `stationmaster audit CHANNEL` exports all of it and checks its chain"
        )
    )
    return Content(text=f"the newest {len(entries)} entries of the audit", blocks=blocks)


def _line(entry: Entry) -> str:
    about = f" {md.code(entry.about, 120)}" if entry.about else ""
    line = f"{md.when(entry.at)} {md.DOT} {md.user(entry.user_id)} {md.DOT} {entry.act}{about}"
    if entry.words:
        line += f"\n{md.code(entry.words, 300)}"
    if entry.refused:
        line += f"\n{md.FAILED} refused: {md.escape(entry.refused, 300)}"
    return line

"""Answers what only asks: of runs, and of what can be trained."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import assert_never

from bot.blocks import answers, comparing
from bot.blocks.card import run_card
from bot.blocks.comparing import audit_list
from bot.blocks.elements import Content
from bot.blocks.log_lines import is_shortened
from stationmaster import commands
from stationmaster.aws.delivery_store import Picture
from stationmaster.domain.catalogue.entries import CATALOGUE
from stationmaster.domain.commands import requests
from stationmaster.domain.commands.table import COMMAND
from stationmaster.domain.ids import RunId
from stationmaster.services import Services


def look(
    services: Services, command: requests.Look, who: commands.Actor, *, request_id: str
) -> Content:
    """Answer a question.

    The notifier posts what has no room or no time in an answer, a log's file or a picture; where
    there is no `request_id`, the delivery's own, it posts nothing.
    """
    channel_id = who.channel_id
    match command:
        case requests.ShowHelp():
            return answers.help_text(
                CATALOGUE.values(), has_rules=services.rules.of(channel_id) is not None
            )
        case requests.ShowRecipes():
            return answers.recipes_list(CATALOGUE.values())
        case requests.ShowPlan(request=start):
            plan = commands.plan_run(services, start, channel_id=channel_id)
            fitting = start.fitting_words
            words = f"plan {fitting}" if fitting else start.words
            return answers.plan_summary(plan, command=f"{COMMAND} {words}")
        case requests.ShowPreflight(starts=starts):
            return answers.preflight_findings(commands.preflight(services, starts))
        case requests.ListRuns():
            runs = commands.list_runs(services, channel_id=channel_id)
            return answers.runs_list(runs, now=services.now())
        case requests.ShowStatus(run_id=run_id):
            view = commands.describe_run(services, run_id, channel_id=channel_id)
            # Slack does not say whether it takes an answer.
            return run_card(view, now=services.now()).in_text()
        case requests.ShowLogs():
            return _logs(services, command, channel_id=channel_id, with_file=bool(request_id))
        case requests.CompareRuns(labels=labels):
            return _compared(services, labels, who, request_id)
        case requests.DiffRuns(labels=labels):
            return comparing.runs_differ(
                commands.diff_runs(services, labels, channel_id=channel_id)
            )
        case requests.ShowCost():
            bill = commands.channel_cost(services, command, channel_id=channel_id)
            return comparing.month_cost(bill)
        case requests.ShowAudit():
            return audit_list(commands.show_audit(services, command, channel_id=channel_id))
        case _:
            assert_never(command)


def _logs(
    services: Services, wanted: requests.ShowLogs, *, channel_id: str, with_file: bool
) -> Content:
    run, tails = commands.show_logs(services, wanted, channel_id=channel_id)
    with_file = with_file and is_shortened(tails)
    if with_file:
        services.deliveries.ask_for_log(run.run_id, now=services.now())
    return answers.run_logs(run, tails, with_file=with_file, now=services.now())


def _compared(
    services: Services, labels: Sequence[str], who: commands.Actor, request_id: str
) -> Content:
    compared = commands.compare_runs(services, labels, channel_id=who.channel_id)
    has_picture = any(len(view.run.loss_points) > 1 for view in compared.runs) and bool(request_id)
    if has_picture:
        run_ids = tuple(view.run.run_id for view in compared.runs)
        services.deliveries.ask_for_picture(
            _picture(who, request_id, run_ids=run_ids), now=services.now()
        )
    return comparing.runs_compared(compared, has_picture=has_picture, now=services.now())


def ask_for_report(
    services: Services, run_id: RunId, who: commands.Actor, request_id: str
) -> Content:
    """Have the notifier post the page with all that is known of a run of this channel."""
    run = commands.describe_run(services, run_id, channel_id=who.channel_id).run
    wish = _picture(who, request_id, run_ids=(run.run_id,), is_report=True)
    services.deliveries.ask_for_picture(wish, now=services.now())
    return answers.report_follows(run)


def _picture(
    who: commands.Actor, request_id: str, *, run_ids: tuple[RunId, ...], is_report: bool = False
) -> Picture:
    return Picture(
        picture_id=hashlib.sha256(f"{who.team_id}/{request_id}".encode()).hexdigest()[:32],
        channel_id=who.channel_id,
        user_id=who.user_id,
        run_ids=run_ids,
        is_report=is_report,
    )

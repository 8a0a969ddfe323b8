"""What the Slack app does when a person types a command or presses a button.

A listener reads the request, calls one command, and answers; it holds no rule about runs, and does
no work after its answer.
"""

from __future__ import annotations

import logging
import re
from dataclasses import replace
from typing import Any, assert_never

from slack_bolt import Ack, App, BoltRequest, BoltResponse

from bot.actions import (
    BUDGET_OF,
    FORM,
    FORM_FIELD,
    IN_HOME,
    OPENS_FORM,
    ActionId,
    CommandButton,
    actor_of,
    cluster_of,
    decision_of,
    read_button,
    run_of,
)
from bot.announcement import Announcer
from bot.blocks import answers, cluster_answers
from bot.blocks.approval import decision_taken
from bot.blocks.elements import Content
from bot.blocks.results import results_links
from bot.blocks.stopping import MOST_OFFERED, deletion_offered, stops_offered
from bot.explaining import explain_error
from bot.home import HomeTab
from bot.hooks import Hooks
from bot.looking import ask_for_report, look
from bot.mentions import Mentions, read_message
from bot.start_form import StartForm, started
from stationmaster import commands
from stationmaster.domain.commands import requests
from stationmaster.domain.commands.cluster_words import DEFAULT_EXTENSION_S
from stationmaster.domain.commands.grammar import parse_command
from stationmaster.domain.commands.start import StartRun
from stationmaster.domain.commands.table import COMMAND, SUBCOMMANDS, Takes
from stationmaster.domain.errors import UserError
from stationmaster.services import Services

logger = logging.getLogger(f"stationmaster.{__name__}")

Json = dict[str, Any]


def register(
    app: App,
    services: Services,
    announcer: Announcer,
    mentions: Mentions,
    form: StartForm,
    home: HomeTab,
) -> None:
    """Attach every listener to the app."""

    def train(ack: Ack, command: Json) -> None:
        content = _typed(services, announcer, form, command)
        if content is None:
            ack()
        else:
            ack(text=content.text, blocks=content.blocks, response_type="ephemeral")

    hooks = Hooks(services.settings.slack_api_url)

    def click(ack: Ack, body: Json, action: Json) -> None:
        content = _clicked(services, announcer, placed(body, action), action)
        ack()
        if "view" in body:
            home.show(str(body["user"]["id"]), content)
            return
        hooks.post(body.get("response_url"), content)

    def placed(body: Json, action: Json) -> Json:
        """Say where a press in Home acts: in the channel of its run or cluster, or in none."""
        if "view" not in body:
            return body
        is_new = action["action_id"] == ActionId.OPEN_FORM
        return body | {"channel": {"id": "" if is_new else home.channel_of(action)}}

    def choose(ack: Ack, body: Json, action: Json) -> None:
        is_budget = action["action_id"] == ActionId.SET_BUDGET
        channel_id = str(action["block_id"]).removeprefix(BUDGET_OF) if is_budget else ""
        chosen = (action["selected_option"] or {}).get("value", "")
        words = f"{action['action_id']} {chosen}"
        who = actor_of(body, channel_id=channel_id, via="home", words=words)
        (commands.set_budget if is_budget else commands.set_notices)(services, who, chosen)
        ack()
        home.show(who.user_id)

    def said(ack: Ack, body: Json) -> None:
        typed = read_message(body)
        if typed is not None and mentions.claim(typed):
            content = _answer(
                services,
                announcer,
                typed.text,
                typed.who,
                request_id=typed.event_id,
                thread_ts=typed.thread_ts,
            )
            mentions.answer(typed, content)
        ack()

    def open_form(ack: Ack, body: Json, action: Json) -> None:
        who = _clicker(placed(body, action), action)
        if who.channel_id:  # otherwise the form asks, once one is chosen
            commands.check_role(services, who)
        is_open = form.open(body.get("trigger_id"), who, _words_to_edit(services, who, action))
        ack()
        if not is_open:
            hooks.post(body.get("response_url"), answers.form_not_opened())

    def follow_form(ack: Ack, body: Json) -> None:
        form.follow(body)
        ack()

    def send_form(ack: Ack, body: Json) -> None:
        ack(**form.send(body))

    def home_opened(ack: Ack, event: Json) -> None:
        if event["tab"] == "home":
            home.show(str(event["user"]))
        ack()

    def explain(error: Exception, request: BoltRequest) -> BoltResponse:
        return explain_error(error, request, hooks, mentions, home)

    app.command(COMMAND)(train)
    for action_id in ActionId:
        own = choose if action_id in IN_HOME else click
        app.action(action_id.value)(open_form if action_id in OPENS_FORM else own)
    app.event(re.compile("app_mention|message"))(said)  # messages of every subtype
    app.action(FORM_FIELD)(follow_form)
    app.view(FORM)(send_form)
    app.event("app_home_opened")(home_opened)
    app.error(explain)


def _typed(services: Services, announcer: Announcer, form: StartForm, body: Json) -> Content | None:
    """Answer what was typed after /train; None where the form of a start has opened."""
    text = str(body.get("text") or "")
    who = commands.Actor(
        user_id=str(body["user_id"]),
        channel_id=str(body["channel_id"]),
        team_id=str(body["team_id"]),
        user_name=str(body["user_name"]),
        words=f"{COMMAND} {text}",
    )
    if not text.strip():
        commands.check_role(services, who)
        if form.open(str(body["trigger_id"]), who):
            return None
    return _answer(services, announcer, text, who, request_id=str(body["trigger_id"]))


def _meant(
    services: Services, text: str, *, channel_id: str, thread_ts: str | None
) -> requests.Command:
    """Read a command; without a run in the thread of a run, that one is meant.

    Also by what is suggested: its button knows of no thread.
    """
    finders = commands.finders(services, channel_id=channel_id)
    if thread_ts is None:
        return parse_command(text, **finders)
    run_id = commands.run_of_thread(services, thread_ts, channel_id=channel_id)
    try:
        command = parse_command(text, **finders)
    except UserError as error:
        word = (error.suggestion or "").removeprefix(f"{COMMAND} ")
        if (
            run_id is not None
            and word in SUBCOMMANDS
            and SUBCOMMANDS[word].takes
            in (
                Takes.RUN,
                Takes.LOGS,
            )
        ):
            error.suggestion = f"{error.suggestion} {run_id}"
        raise
    if isinstance(command, requests.OfRun) and command.run_id is None:
        return replace(command, run_id=run_id)
    return command


def _answer(
    services: Services,
    announcer: Announcer,
    text: str,
    who: commands.Actor,
    *,
    request_id: str,
    thread_ts: str | None = None,
) -> Content:
    """Answer a command, typed or meant by a button; `request_id` is the delivery's own."""
    channel_id = who.channel_id
    commands.check_role(services, who)
    command = _meant(services, text, channel_id=channel_id, thread_ts=thread_ts)
    if isinstance(command, requests.Look):
        return look(services, command, who, request_id=request_id)
    match command:
        case requests.StopRun():
            return _stop(services, command, who)
        case requests.StudyRuns():
            post = announcer.announce_run, announcer.announce_cluster
            begun = commands.request_study(services, command, who, *post, request_id=request_id)
            return answers.study_requested(begun)
        case requests.SetBudget(label=label, usd=usd):
            return answers.budget_changed(commands.change_budget(services, label, who, usd=usd))
        case requests.ScaleRun(label=label, nodes=nodes):
            view = commands.scale_run(services, label, who, nodes=nodes)
            return answers.run_scaled(view, nodes=nodes)
        case StartRun():
            return started(services, announcer, command, who, request_id=request_id)
        case _:
            return _cluster_answer(services, announcer, command, who, request_id)


def _stop(services: Services, command: requests.StopRun, who: commands.Actor) -> Content:
    """Stop a run at once, or ask about those that may be meant."""
    choice = commands.stop_choice(services, who, command.run_id)
    run = choice.runs[0]
    if not choice.why and (command.is_now or run.is_stopping):
        return answers.stop_accepted(commands.stop_run(services, run.run_id, who))
    views = [commands.view_run(services, run) for run in choice.runs[:MOST_OFFERED]]
    more = len(choice.runs) - len(views)
    return stops_offered(views, why=choice.why, more=more, now=services.now())


def _cluster_answer(
    services: Services,
    announcer: Announcer,
    command: requests.ClusterCommand,
    who: commands.Actor,
    request_id: str,
) -> Content:
    channel_id = who.channel_id
    match command:
        case requests.CreateCluster():
            cluster, created = commands.create_cluster(
                services,
                command,
                who,
                request_id=request_id,
                announce=announcer.announce_cluster,
            )
            return cluster_answers.cluster_requested(cluster, created=created)
        case requests.ListClusters():
            views = commands.list_clusters(services, channel_id=channel_id)
            return cluster_answers.clusters_list(views, now=services.now())
        case requests.ShowCluster(label=label, nodes=True):
            return cluster_answers.nodes_follow(
                commands.ask_for_nodes(
                    services, label, channel_id=channel_id, request_id=request_id
                )
            )
        case requests.ShowCluster(label=label):
            view = commands.describe_cluster(services, label, channel_id=channel_id)
            settings, now = services.settings, services.now()
            return cluster_answers.cluster_shown(view, settings=settings, now=now)
        case requests.ExtendCluster(label=label, seconds=seconds):
            return cluster_answers.cluster_extended(
                commands.extend_cluster(services, label, who, seconds=seconds)
            )
        case requests.ResizeCluster(label=label, nodes=nodes):
            return cluster_answers.cluster_resized(
                commands.resize_cluster(services, label, who, nodes=nodes)
            )
        case requests.ValidateCluster(label=label, measures_nccl=measures_nccl):
            return cluster_answers.cluster_validated(
                commands.validate_cluster(services, label, who, measures_nccl=measures_nccl)
            )
        case requests.DeleteCluster(label=label, is_now=False):
            return deletion_offered(commands.ask_to_delete(services, label, who))
        case requests.DeleteCluster(label=label):
            return cluster_answers.cluster_deleted(commands.delete_cluster(services, label, who))
        case _:
            assert_never(command)


def _clicker(body: Json, action: Json) -> commands.Actor:
    via = "home" if "view" in body else "button"
    channel_id, words = str(body["channel"]["id"]), str(action["action_id"])
    return actor_of(body, channel_id=channel_id, via=via, words=words)


def _words_to_edit(services: Services, who: commands.Actor, action: Json) -> str:
    """Return what a form is filled with: a command, a run as it was asked for, or nothing."""
    match ActionId(action["action_id"]):
        case ActionId.EDIT_COMMAND:
            return read_button(CommandButton, action, instead="the command itself").text
        case ActionId.EDIT_RUN:
            return commands.words_of(services, run_of(action), channel_id=who.channel_id)
        case _:
            return ""


def _clicked(services: Services, announcer: Announcer, body: Json, action: Json) -> Content:
    who = _clicker(body, action)
    commands.check_role(services, who)
    match ActionId(action["action_id"]):
        case ActionId.TYPE_COMMAND | ActionId.PLAN_COMMAND | ActionId.RESUME_COMMAND:
            text = read_button(CommandButton, action, instead="the command itself").text
            asks = replace(who, words=f"{COMMAND} {text}")
            request_id = str(body["trigger_id"])
            return _answer(services, announcer, text, asks, request_id=request_id)
        case ActionId.STOP_RUN:
            return answers.stop_accepted(commands.stop_run(services, run_of(action), who))
        case ActionId.SHOW_LOGS | ActionId.SHOW_STATUS as asked:
            kind = requests.ShowLogs if asked is ActionId.SHOW_LOGS else requests.ShowStatus
            return look(services, kind(run_of(action)), who, request_id=str(body["trigger_id"]))
        case ActionId.SAVE_AGAIN:
            return answers.saving_again(commands.save_again(services, run_of(action), who))
        case ActionId.GIVE_UP_RESULTS:
            run = commands.give_up_results(services, run_of(action), who)
            return answers.results_given_up(run)
        case ActionId.LINK_RESULTS:
            links = commands.link_results(services, run_of(action), channel_id=who.channel_id)
            return results_links(links, now=services.now())
        case ActionId.REPORT_RUN:
            return ask_for_report(services, run_of(action), who, str(body["trigger_id"]))
        case ActionId.EXTEND_CLUSTER:
            cluster = commands.extend_cluster(
                services, cluster_of(action), who, seconds=DEFAULT_EXTENSION_S
            )
            return cluster_answers.cluster_extended(cluster)
        case ActionId.DELETE_CLUSTER:
            view = commands.delete_cluster(services, cluster_of(action), who)
            return cluster_answers.cluster_deleted(view)
        case ActionId.APPROVE:
            decided = decision_of(action)
            return decision_taken(
                commands.approve(services, decided.about, who, shown=decided.shown)
            )
        case ActionId.REJECT:
            return decision_taken(commands.reject(services, decision_of(action).about, who))
        case ActionId.OPEN_FORM | ActionId.EDIT_RUN | ActionId.EDIT_COMMAND:
            raise AssertionError("it has a listener of its own")
        case ActionId.SET_NOTICES | ActionId.SET_BUDGET:
            raise AssertionError("it has a listener of its own")
        case other:
            assert_never(other)

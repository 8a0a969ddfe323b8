"""The one live message of a run: what it is doing, how far it is, what it costs.

The notifier posts it once and edits it in place; `/train status` shows the same to one person.
Every text of foreign origin is bounded, so that any run fits into Slack's limits.
"""

from __future__ import annotations

import shlex
from datetime import UTC, datetime

from bot.actions import ActionId, RunButton
from bot.blocks import cluster_parts as parts
from bot.blocks import mrkdwn as md
from bot.blocks import words
from bot.blocks.approval import approval_blocks, approved_by
from bot.blocks.checklist import phases
from bot.blocks.elements import (
    Block,
    Content,
    actions,
    button,
    context,
    header,
    paragraph,
    section,
)
from bot.blocks.failures import cause_lines, failure_blocks, next_steps
from bot.blocks.progress import cost_label, goodput_so_far, progress_blocks, seconds_left
from bot.blocks.results import backup_blocks, result_blocks, result_buttons
from bot.blocks.running import awaited, running_lines
from bot.blocks.stopping import stop_buttons
from stationmaster.domain.cluster.aggregate import TeardownStatus
from stationmaster.domain.durations import typed_duration
from stationmaster.domain.reactions.backups import TRAINING
from stationmaster.domain.reactions.ending import outcome_of
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import RunPhase
from stationmaster.domain.run.view import RunView


def run_card(view: RunView, *, now: datetime, moved_from: tuple[str, str] | None = None) -> Content:
    """Draw everything that the channel should see of a run at `now`.

    What matters most comes first: of a live run how far it is, of one that has ended its result or
    the cause of its failure, what to do next, and what it has cost.

    Args:
        moved_from: the channel that takes no posts any more, and Slack's word for why.
    """
    run = view.run
    has_ended = run.phase.is_terminal
    blocks: list[Block] = [header(_lead(view, now=now))]
    blocks += approval_blocks(run, spent_usd=view.cost_usd(now))
    if has_ended:
        blocks += _outcome(view, now=now)
    blocks += _notices(view)
    blocks += progress_blocks(view, now=now)
    blocks.append(phases(view))
    blocks += backup_blocks(run)
    if moved_from is not None:
        blocks.append(section(words.moved(*moved_from, what="run")))
    if not has_ended:
        blocks += result_blocks(view)
    blocks += [context(_identity(view)), context(md.code(run.request.command, 300))]
    if view.is_live:
        blocks.append(context(f"updated {md.clock(now)}"))
    if not has_ended:
        blocks += run_buttons(view)
    return Content(text=_headline(run), blocks=blocks)


def card_milestone(view: RunView) -> str:
    """Make a key that changes whenever the card must not be late, and not with progress."""
    run = view.run
    return "/".join(
        (
            str(len(run.phases) + run.folded.get("phases", 0)),
            run.phase.value,
            view.teardown.value,
            str(view.place_in_queue),
            run.stop_requested_by or run.stop_why,
            approved_by(run.approval),
            run.approval.wish.fingerprint if run.approval is not None else "",
            str(run.resumed_from_step),
            str(run.attempt_number),
            run.network.job if run.network is not None else "",
            run.apart.job if run.apart is not None else "",
            run.unsaved_reason,
            str(run.passes),
            run.results.manifest_sha256 if run.results is not None else "",
            run.export.reason if run.export is not None else "",
            run.not_pushed,
            run.pushed.revision if run.pushed is not None else "",
            run.backups.failed,
            run.backups.newest.manifest_sha256 if run.backups.newest is not None else "",
        )
    )


def _identity(view: RunView) -> str:
    run = view.run
    is_shared = view.cluster is not None and view.cluster.is_kept
    shown = [
        md.code(run.run_id, 120),
        f"{_nodes(view)} {md.TIMES} {md.escape(run.placement.instance_type, 60)}",
        *([f"on cluster {md.code(view.cluster.label, 60)}"] if view.cluster and is_shared else []),
        f"{md.money(run.price_per_hour_usd)} an hour",
        *(
            [f"cluster kept {typed_duration(run.request.keep_s)} after it"]
            if run.request.keep_s
            else []
        ),
        *_host(view.run),
        *_existing_file_system(view),
        # The first card is a post and would ping; an edit does not.
        *([f"by {md.user(run.request.user_id)}"] if run.phase is not RunPhase.REQUESTED else []),
        *filter(None, [approved_by(run.approval)]),
        *_origin(run),
        *_dashboard(view),
    ]
    return f" {md.DOT} ".join(shown)


def _host(run: Run) -> list[str]:
    """Name the existing EKS cluster in which the run is a guest."""
    name = md.code(run.request.eks_name, 100)
    return [f"guest in EKS cluster {name}, not in the price"] if run.request.eks_name else []


def _existing_file_system(view: RunView) -> list[str]:
    """Name the existing file system, which the price leaves out."""
    spec = view.run.request.file_system
    if view.cluster is not None:
        spec = view.cluster.spec.file_system
    if spec is None or not spec.existing_id:
        return []
    return [f"file system {md.code(spec.existing_id, 50)}, not in the price, stays"]


def _dashboard(view: RunView) -> list[str]:
    """Link the deployment's dashboard at the times in which the run trained."""
    run = view.run
    if not view.dashboard_url or run.training_started_at is None:
        return []
    times = (run.training_started_at, run.job_ended_at or run.ended_at)
    start, end = (f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%S.000Z}" if at else "null" for at in times)
    return [md.link(f"{view.dashboard_url}?start={start}&end={end}", "dashboard")]


def _nodes(view: RunView) -> str:
    """Say how many nodes it has, and of a range also the typed one: "6 of 2:8 nodes"."""
    request = view.run.request
    if request.min_nodes is None:
        return str(view.run.placement.nodes)
    has = f"{view.leased_nodes} of " if view.leased_nodes is not None else ""
    return f"{has}{request.node_words} nodes"


def _origin(run: Run) -> list[str]:
    """Say from which run it continues, and which custom image or command it runs."""
    point, weights = run.request.resume_from, run.request.weights_from
    shown = []
    if run.request.image:
        shown.append(f"image {md.code(run.request.image, 200)}")
    if run.request.program:
        shown.append(f"command {md.code(shlex.join(run.request.program), 200)}")
    if point is not None:
        shown.append(f"resumes from {md.code(point.run_id, 60)} at step {point.step:,}")
    if run.request.output_from is not None:
        shown.append(f"resumes {md.code(run.request.output_from, 60)}")
    if weights is not None:
        shown.append(f"weights of {md.code(weights, 60)}")
    return shown


def _headline(run: Run) -> str:
    text = f"{md.escape(run.request.title, 80)}: {words.status(run)}"
    if run.progress is not None:
        text += ", ".join(["", words.step(run.progress), *words.reported_loss(run.progress)])
    elif run.phase is RunPhase.RUNNING and (what := awaited(run)):
        text += f", {what}"
    if outcome_of(run) is RunPhase.FAILED and run.reason:
        text += f", {md.escape(run.reason, 200)}"
    return text


def _notices(view: RunView) -> list[Block]:
    run, notices = view.run, []
    if run.phase is RunPhase.RECOVERING:
        reason = run.reason.replace(f"{run.run_id}-", "")  # as the pods are called in the thread
        why = f": {md.escape(reason, 300)}" if reason else ""
        is_rescaled = run.setback is not None and run.setback.nodes is not None
        what = "\u2194\ufe0f *Changing its nodes*" if is_rescaled else "\u26a0\ufe0f *Recovering*"
        notices.append(f"{what}{why}")
        notices += [f"> {line}" for line in cause_lines(view)]
        notices += words.wait_for_node(run)
    elif run.phase is RunPhase.SAVING and outcome_of(run) is RunPhase.FAILED:
        notices.append(f"\u26a0\ufe0f *Training failed:* {md.escape(run.reason, 600)}")
        notices += [f"> {line}" for line in cause_lines(view)]
    elif run.resumed_from_step is not None:
        times = f"{run.num_restarts} restarts" if run.num_restarts > 1 else "a restart"
        after = f" after {times}" if run.num_restarts or not run.request.resume_from else ""
        notices.append(f"\u21bb Resumed from step {run.resumed_from_step:,}{after}")
    if run.tries > 1 and not run.phase.is_terminal:
        most = run.request.attempts if run.request.restarts is None else run.request.restarts + 1
        notices.append(f"\u21bb Attempt {run.tries} of {most}")
    notices += running_lines(run)
    if run.stop_why and run.phase is not RunPhase.STOPPED:
        notices.append(f"\U0001f6d1 *Being {md.escape(run.stop_why, 400)}*")
    elif run.stop_requested_by and run.phase is not RunPhase.STOPPED:
        notices.append(f"\U0001f6d1 Stop requested by {md.user(run.stop_requested_by)}")
    return paragraph(notices)


def _lead(view: RunView, *, now: datetime) -> str:
    """Write the card's first line: status, loss, and the time left or the cost."""
    run, progress = view.run, view.run.progress
    said = [f"{words.emoji(run)} {run.request.title}: {words.status(run)}"]
    if progress is not None and run.phase is RunPhase.FAILED:
        said[0] += f" at step {progress.step:,}"
    elif progress is not None:
        said += words.reported_loss(progress)
    if run.phase in TRAINING and not run.is_stopping and (left_s := seconds_left(run)) is not None:
        said.append(f"about {md.duration(left_s)} left")
    if run.phase is RunPhase.SUCCEEDED:
        said.append(md.money(view.cost_usd(now)))
    return ", ".join(said)


def _outcome(view: RunView, *, now: datetime) -> list[Block]:
    """Draw the end of a run: its cause or result, what to do next, what it has cost."""
    run = view.run
    blocks = []
    match run.phase:
        case RunPhase.FAILED:
            blocks += failure_blocks(view)
        case RunPhase.STOPPED:
            who = run.approval_refused_by or run.stop_requested_by
            said = "*Rejected*" if run.approval_refused_by else "*Stopped*"
            why = "" if run.approval_refused_by else md.escape(run.reason or run.stop_why, 600)
            said += f" by {md.user(who)}" if who else ""
            blocks.append(section("\n".join(filter(None, [said, why]))))
        case _:
            blocks += result_blocks(view)
    blocks += run_buttons(view)
    cost = f"{cost_label(view)} {words.cost(view, now=now)}"
    ended = [
        f"\U0001f9fe {cost}, planned {words.planned_cost(run)}",
        f"ended after {md.duration((run.ended_at or now) - run.requested_at)}",
    ]
    if trained := goodput_so_far(view, now=now):
        ended.append(f"goodput {trained}")
    if run.last_checkpoint_step is not None:
        ended.append(f"last checkpoint at step {run.last_checkpoint_step:,}")
    ended.append(words.teardown_status(view))
    blocks.append(context(f" {md.DOT} ".join(part for part in ended if part)))
    if view.cluster is not None and view.teardown is TeardownStatus.FAILED:
        blocks.append(section(parts.left_behind(view.cluster)))
    if run.phase is not RunPhase.SUCCEEDED:
        blocks += result_blocks(view)
    return blocks


def run_buttons(view: RunView) -> list[Block]:
    """Make the row of what a person may do with a run now; nothing where that is nothing."""
    run, elements = view.run, [*next_steps(view), *stop_buttons(view)]
    value = RunButton(run_id=run.run_id).model_dump_json()
    elements += result_buttons(view)
    if run.pods:
        elements.append(button("Logs", action_id=ActionId.SHOW_LOGS, value=value))
    return [actions(elements)] if elements else []

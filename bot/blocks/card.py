"""The one live message of a run: what it is doing, how far it is, what it costs.

The notifier posts it once and edits it in place; `/train status` shows the same to one person.
Every text of foreign origin is bounded, so that any run fits into Slack's limits.
"""

from __future__ import annotations

import shlex
from datetime import datetime

from bot.actions import ActionId, RunButton
from bot.blocks import cluster_parts as parts
from bot.blocks import mrkdwn as md
from bot.blocks import words
from bot.blocks.approval import approval_blocks, approved_by
from bot.blocks.checklist import checklist
from bot.blocks.elements import (
    Block,
    Content,
    actions,
    button,
    context,
    dangerous,
    fields,
    header,
    section,
)
from bot.blocks.failures import cause_lines, failure_blocks
from bot.blocks.results import backup_blocks, result_blocks, result_buttons
from bot.blocks.running import awaited, running_lines
from stationmaster.domain.cluster.aggregate import TeardownStatus
from stationmaster.domain.durations import typed_duration
from stationmaster.domain.reactions.ending import outcome_of
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import RunPhase
from stationmaster.domain.run.view import RunView


def run_card(view: RunView, *, now: datetime, moved_from: tuple[str, str] | None = None) -> Content:
    """Draw everything that the channel should see of a run at `now`.

    Args:
        moved_from: the channel that takes no posts any more, and Slack's word for why.
    """
    run = view.run
    blocks = [
        header(f"{words.emoji(run)} {run.request.title}: {words.status(run)}"),
        context(_identity(view)),
        context(md.code(run.request.command, 300)),
        section("\n".join(checklist(view))),
    ]
    blocks += approval_blocks(run)
    blocks += _progress(view, now=now)
    blocks += _notices(view)
    blocks += backup_blocks(run)
    if moved_from is not None:
        blocks.append(section(words.moved(*moved_from, what="run")))
    blocks += _outcome(view, now=now)
    blocks += result_blocks(view)
    if view.is_live:
        blocks.append(context(f"updated {md.clock(now)}"))
    blocks += _buttons(view)
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
            approved_by(run),
            run.approval.wish.fingerprint if run.approval is not None else "",
            str(run.resumed_from_step),
            run.network.job if run.network is not None else "",
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
        f"by {md.user(run.request.user_id)}",
        *filter(None, [approved_by(run)]),
        *_origin(run),
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


def _progress(view: RunView, *, now: datetime) -> list[Block]:
    run, cluster = view.run, view.cluster
    spent = words.cost(view, now=now)
    is_shared = cluster is not None and cluster.is_kept
    is_final = (
        view.torn_down_at is not None
        if is_shared
        else (cluster is not None and cluster.final_cost_usd is not None)
    )
    cost_label = f"{'Its share' if is_shared else 'Cost'}{'' if is_final else ' so far'}"
    progress = run.progress
    if progress is None:
        if cluster is None or not cluster.resources:
            return []
        return [fields([(cost_label, spent), ("Planned cost", words.planned_cost(run))])]
    bar = words.step(progress)
    if progress.total_steps > 0:
        fraction = progress.step / progress.total_steps
        percent = min(100, int(fraction * 100))
        bar = f"`{md.progress_bar(fraction)}`  *{percent}%*  {md.DOT}  {bar}"
    spark = md.sparkline([value for _, value in run.loss_points])
    shown_loss = f"*{md.loss(progress.loss_nats)}*"
    if run.first_loss_nats is not None and len(run.loss_points) > 1:
        shown_loss = f"{md.loss(run.first_loss_nats)} {md.ARROW} {shown_loss}"
    pairs = [("Throughput", _throughput(run)), (cost_label, spent)]
    if progress.has_loss:
        pairs.insert(0, ("Loss", f"{shown_loss}\n`{spark}`" if spark else shown_loss))
    if run.evaluation is not None:
        pairs.append(("Held-out", words.evaluation(run.evaluation)))
    if not run.phase.is_terminal:
        pairs.append(("Time left", _time_left(run)))
    elif run.ended_at is not None:
        pairs.append(("Duration", md.duration(run.ended_at - run.requested_at)))
    return [section(bar), fields(pairs)]


def _throughput(run: Run) -> str:
    progress = run.progress
    if progress is None:
        return "unknown"
    parts = []
    if progress.tokens_per_s is not None:
        parts.append(f"{md.count(progress.tokens_per_s)} tokens/s")
    elif progress.samples_per_s is not None:
        parts.append(f"{md.count(progress.samples_per_s)} samples/s")
    if progress.step_time_s is not None:
        parts.append(f"{progress.step_time_s:.3g} s a step")
    if progress.mfu is not None:
        parts.append(f"{progress.mfu:.1%} MFU")
    return "\n".join(parts) or "not reported"


def _time_left(run: Run) -> str:
    progress, started = run.progress, run.training_started_at
    if progress is not None and progress.total_steps <= 0:
        return "not known"
    if progress is None or progress.total_steps <= progress.step:
        return "saving and finishing"
    step_time_s = progress.step_time_s
    if not step_time_s and started is not None and progress.step > 0:
        step_time_s = (progress.at - started).total_seconds() / progress.step
    if not step_time_s or step_time_s < 0:
        return "not known yet"
    return f"about {md.duration((progress.total_steps - progress.step) * step_time_s)}"


def _notices(view: RunView) -> list[Block]:
    run, notices = view.run, []
    if run.phase is RunPhase.RECOVERING:
        reason = run.reason.replace(f"{run.run_id}-", "")  # as the pods are called in the thread
        why = f": {md.escape(reason, 300)}" if reason else ""
        notices.append(f"\u26a0\ufe0f *Recovering*{why}")
        notices += [f"> {line}" for line in cause_lines(view)]
    elif run.phase is RunPhase.SAVING and outcome_of(run) is RunPhase.FAILED:
        notices.append(f"\u26a0\ufe0f *Training failed:* {md.escape(run.reason, 600)}")
        notices += [f"> {line}" for line in cause_lines(view)]
    elif run.resumed_from_step is not None:
        times = f"{run.num_restarts} restarts" if run.num_restarts > 1 else "a restart"
        after = f" after {times}" if run.num_restarts or not run.request.resume_from else ""
        notices.append(f"\u21bb Resumed from step {run.resumed_from_step:,}{after}")
    notices += running_lines(run)
    if run.stop_why and run.phase is not RunPhase.STOPPED:
        notices.append(f"\U0001f6d1 *Being {md.escape(run.stop_why, 400)}*")
    elif run.stop_requested_by and run.phase is not RunPhase.STOPPED:
        notices.append(f"\U0001f6d1 Stop requested by {md.user(run.stop_requested_by)}")
    return [section("\n".join(notices))] if notices else []


def _outcome(view: RunView, *, now: datetime) -> list[Block]:
    run = view.run
    if not run.phase.is_terminal:
        return []
    blocks = []
    match run.phase:
        case RunPhase.FAILED:
            blocks += failure_blocks(view)
        case RunPhase.STOPPED:
            by = f" by {md.user(run.stop_requested_by)}" if run.stop_requested_by else ""
            why = [md.escape(said, 600) for said in (run.reason or run.stop_why,) if said]
            blocks.append(section("\n".join([f"*Stopped*{by}", *why])))
    ended = []
    if run.progress is None:  # otherwise a field has it
        ended.append(f"ended after {md.duration((run.ended_at or now) - run.requested_at)}")
    if run.last_checkpoint_step is not None:
        ended.append(f"last checkpoint at step {run.last_checkpoint_step:,}")
    ended.append(words.teardown_status(view))
    blocks.append(context(f" {md.DOT} ".join(part for part in ended if part)))
    if view.cluster is not None and view.teardown is TeardownStatus.FAILED:
        blocks.append(section(parts.left_behind(view.cluster)))
    return blocks


def _buttons(view: RunView) -> list[Block]:
    run, elements = view.run, []
    stays = view.cluster is not None and view.cluster.is_kept
    what = "its cluster stays" if stays else "everything it created is deleted"
    value = RunButton(run_id=run.run_id).model_dump_json()
    may_stop = run.phase is not RunPhase.SAVING or run.has_unpushed_model
    if may_stop and not run.phase.is_terminal and not run.is_stopping:
        stop = button("Stop", action_id=ActionId.STOP_RUN, value=value)
        elements.append(
            dangerous(
                stop,
                title="Stop this run?",
                text=f"{md.code(run.run_id, 120)} ends, and {what}.",
                confirm="Stop it" if stays else "Stop and tear down",
            )
        )
    elements += result_buttons(view)
    if run.pods:
        elements.append(button("Logs", action_id=ActionId.SHOW_LOGS, value=value))
    return [actions(elements)] if elements else []

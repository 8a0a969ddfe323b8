"""The one live message of a run: what it is doing, how far it is, what it costs.

The notifier posts it once and edits it in place; `/train status` shows the same to one person.
Every text of foreign origin is bounded, so that any run fits into the limits of Slack.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from bot.actions import ActionId, RunButton
from bot.blocks import mrkdwn as md
from bot.blocks import words
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
from stationmaster.domain.cluster.aggregate import Cluster, TeardownStatus
from stationmaster.domain.cluster.resources import Resource, ResourceStatus
from stationmaster.domain.resources import ResourceKind
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import RunPhase
from stationmaster.domain.run.view import RunView

# The phases of a run that goes well, and what each is called before, while and after it happens.
_CHECKLIST: Final = (
    (RunPhase.REQUESTED, "Requested", "Requested"),
    (RunPhase.PROVISIONING, "Provision", "Provisioning"),
    (RunPhase.VALIDATING, "Validate", "Validating"),
    (RunPhase.SUBMITTING, "Submit the job", "Submitting the job"),
    (RunPhase.RUNNING, "Train", "Training"),
)
# In the order in which people wait for them; small parts (security group and so on) are not shown.
_SHOWN_RESOURCES: Final = (
    (ResourceKind.CLUSTER, "cluster"),
    (ResourceKind.NODE_GROUP, "nodes"),
    (ResourceKind.FILE_SYSTEM, "file system"),
)
_MAX_CHECKS: Final = 12
_INDENT: Final = "\u2003\u2003"  # em spaces; Slack trims ordinary ones


def run_card(view: RunView, *, now: datetime, moved_from: tuple[str, str] | None = None) -> Content:
    """Everything that the channel should see of a run at `now`.

    Args:
        moved_from: the channel that takes no posts any more, and Slack's word for why.
    """
    run = view.run
    blocks = [
        header(f"{words.EMOJI[run.phase]} {run.request.recipe}: {words.status(run)}"),
        context(_identity(run)),
        section("\n".join(_checklist(view))),
    ]
    blocks += _progress(view, now=now)
    blocks += _notices(run)
    if moved_from is not None:
        blocks.append(section(_moved(*moved_from)))
    blocks += _outcome(view, now=now)
    if view.is_live:
        blocks.append(context(f"updated {md.clock(now)}"))
    blocks += _buttons(run)
    return Content(text=_headline(run), blocks=blocks)


def card_milestone(view: RunView) -> str:
    """Changes whenever the card says something that must not be late, and not with progress."""
    run = view.run
    return "/".join(
        (
            str(len(run.phases)),
            run.phase.value,
            view.teardown.value,
            run.stop_requested_by or "",
            str(run.resumed_from_step),
        )
    )


def _identity(run: Run) -> str:
    placement = run.placement
    parts = [
        md.code(run.run_id, 120),
        f"{placement.nodes} {md.TIMES} {md.escape(placement.instance_type, 60)}",
        f"{md.money(run.price_per_hour_usd)} an hour",
        f"by {md.user(run.request.user_id)}",
    ]
    return f" {md.DOT} ".join(parts)


def _headline(run: Run) -> str:
    text = f"{md.escape(run.request.recipe, 80)}: {words.status(run)}"
    if run.progress is not None:
        text += (
            f", step {run.progress.step:,} of {run.progress.total_steps:,}, "
            f"{words.loss(run.progress.loss_nats)}"
        )
    if run.phase is RunPhase.FAILED and run.reason:
        text += f", {md.escape(run.reason, 200)}"
    return text


def _checklist(view: RunView) -> list[str]:
    run = view.run
    entered = dict(reversed(run.phases))  # the first time counts
    # A run that failed or was stopped came to its end in the last phase of the list it entered.
    reached = max(
        (index for index, (phase, _, _) in enumerate(_CHECKLIST) if phase in entered), default=0
    )
    lines = []
    for index, (phase, infinitive, gerund) in enumerate(_CHECKLIST):
        is_current = index == reached and run.phase is not RunPhase.SUCCEEDED
        span = _time_in(phase, index, entered, run)
        if index > reached:
            lines.append(f"{md.COMING}\u2002{infinitive}")
        elif not is_current:
            lines.append(f"{md.DONE}\u2002{infinitive}{span}")
        elif run.phase in (RunPhase.FAILED, RunPhase.STOPPED):
            lines.append(f"{md.FAILED}\u2002*{infinitive}*{span}")
        else:
            lines.append(f"{md.CURRENT}\u2002*{gerund}*{span}")
        if is_current:
            lines += _details(phase, view)
    lines.append(_last_line(run))
    return lines


def _time_in(phase: RunPhase, index: int, entered: dict[RunPhase, datetime], run: Run) -> str:
    if phase not in entered or phase is RunPhase.REQUESTED:
        return ""
    following = [entered[later] for later, _, _ in _CHECKLIST[index + 1 :] if later in entered]
    until = following[0] if following else run.ended_at
    if until is None:
        return f"  _began {md.ago(entered[phase])}_"  # Slack itself counts on between two edits
    return f"  _{md.duration(until - entered[phase])}_"


def _details(phase: RunPhase, view: RunView) -> list[str]:
    match phase, view.cluster:
        case RunPhase.PROVISIONING, Cluster() as cluster:
            return [f"{_INDENT}{part}" for part in _provisioning(cluster)]
        case RunPhase.VALIDATING, Cluster() as cluster:
            shown = [
                f"{_INDENT}{md.DONE if check.passed else md.FAILED} {md.escape(check.name, 60)}"
                f"  _{md.escape(check.detail, 120)}_"
                for check in cluster.checks[:_MAX_CHECKS]
            ]
            hidden = len(cluster.checks) - len(shown)
            return [*shown, f"{_INDENT}and {hidden} more"] if hidden > 0 else shown
        case ((RunPhase.SUBMITTING | RunPhase.RUNNING), _):
            return [f"{_INDENT}{line}" for line in _pods(view.run)]
        case _:
            return []


def _provisioning(cluster: Cluster) -> list[str]:
    lines = []
    for kind, label in _SHOWN_RESOURCES:
        of_kind = [resource for resource in cluster.resources.values() if resource.kind is kind]
        if of_kind:
            lines.append(_resource_line(label, of_kind))
    if cluster.plugins:
        names = ", ".join(md.escape(plugin, 40) for plugin in cluster.plugins[:10])
        more = f" and {len(cluster.plugins) - 10} more" if len(cluster.plugins) > 10 else ""
        lines.append(f"{md.DONE} plugins: {names}{more}")
    return lines


def _resource_line(label: str, resources: list[Resource]) -> str:
    waiting = [one for one in resources if one.status is ResourceStatus.REQUESTED]
    if waiting:
        ready = f" ({len(resources) - len(waiting)} of {len(resources)} ready)"
        return f"{md.CURRENT} {label}{ready if len(resources) > 1 else ''}"
    waited = max(
        ((one.active_at or one.requested_at) - one.requested_at for one in resources),
        default=timedelta(),
    )
    return f"{md.DONE} {label}  _{md.duration(waited)}_"


def _pods(run: Run) -> list[str]:
    if run.phase.is_terminal or not run.pods:
        return []
    of_phase: dict[str, int] = {}
    for pod in run.pods.values():
        of_phase[pod.phase] = of_phase.get(pod.phase, 0) + 1
    counts = ", ".join(
        f"{number} {md.escape(phase.lower(), 20)}" for phase, number in sorted(of_phase.items())
    )
    return [f"pods: {counts}"]


def _last_line(run: Run) -> str:
    match run.phase:
        case RunPhase.SUCCEEDED:
            return f"{md.DONE}\u2002*Done*"
        case RunPhase.FAILED:
            return f"{md.FAILED}\u2002*Failed*"
        case RunPhase.STOPPED:
            return f"{md.FAILED}\u2002*Stopped*"
        case _:
            return f"{md.COMING}\u2002Done"


def _progress(view: RunView, *, now: datetime) -> list[Block]:
    run, cluster = view.run, view.cluster
    spent = words.cost(view, now=now)
    is_final = cluster is not None and cluster.final_cost_usd is not None
    cost_label = "Cost" if is_final else "Cost so far"
    progress = run.progress
    if progress is None:
        if cluster is None or not cluster.resources:
            return []
        planned = md.money_escaped(run.estimated_cost_usd)
        return [fields([(cost_label, spent), ("Planned cost", planned)])]
    fraction = progress.step / progress.total_steps if progress.total_steps > 0 else 0.0
    percent = min(100, int(fraction * 100))
    bar = (
        f"`{md.progress_bar(fraction)}`  *{percent}%*  {md.DOT}  "
        f"step {progress.step:,} of {progress.total_steps:,}"
    )
    spark = md.sparkline([value for _, value in run.loss_points])
    shown_loss = f"*{md.loss(progress.loss_nats)}*"
    if run.first_loss_nats is not None and len(run.loss_points) > 1:
        shown_loss = f"{md.loss(run.first_loss_nats)} {md.ARROW} {shown_loss}"
    pairs = [
        ("Loss", f"{shown_loss}\n`{spark}`" if spark else shown_loss),
        ("Throughput", _throughput(run)),
        (cost_label, spent),
    ]
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
    if progress is None or progress.total_steps <= progress.step:
        return "saving and finishing"
    step_time_s = progress.step_time_s
    if not step_time_s and started is not None and progress.step > 0:
        step_time_s = (progress.at - started).total_seconds() / progress.step
    if not step_time_s or step_time_s < 0:
        return "not known yet"
    return f"about {md.duration((progress.total_steps - progress.step) * step_time_s)}"


def _notices(run: Run) -> list[Block]:
    notices = []
    if run.phase is RunPhase.RECOVERING:
        reason = run.reason.replace(f"{run.run_id}-", "")  # as the pods are called in the thread
        why = f": {md.escape(reason, 300)}" if reason else ""
        notices.append(f"\u26a0\ufe0f *Recovering*{why}")
    elif run.resumed_from_step is not None:
        times = f"{run.num_restarts} restarts" if run.num_restarts > 1 else "a restart"
        notices.append(f"\u21bb Resumed from step {run.resumed_from_step:,} after {times}")
    if run.stop_requested_by and run.phase is not RunPhase.STOPPED:
        notices.append(f"\U0001f6d1 Stop requested by {md.user(run.stop_requested_by)}")
    return [section("\n".join(notices))] if notices else []


def _moved(channel_id: str, code: str) -> str:
    return (
        f"\u26a0\ufe0f {md.channel(channel_id)} takes no posts of this app any more "
        f"({md.escape(code, 60)}), so the run is followed here, with the person who asked for it."
    )


def _outcome(view: RunView, *, now: datetime) -> list[Block]:
    run = view.run
    if not run.phase.is_terminal:
        return []
    blocks = []
    match run.phase:
        case RunPhase.FAILED:
            why = [md.escape(run.reason, 900) or "no reason was recorded"]
            if run.trainer_failure and run.trainer_failure not in run.reason:
                why.append(f"trainer: {md.escape(run.trainer_failure, 600)}")
            blocks.append(section("*Why it failed*\n" + "\n".join(f"> {line}" for line in why)))
        case RunPhase.STOPPED:
            by = f" by {md.user(run.stop_requested_by)}" if run.stop_requested_by else ""
            why = [md.escape(run.reason, 600)] if run.reason else []
            blocks.append(section("\n".join([f"*Stopped*{by}", *why])))
    parts = []
    if run.progress is None:  # otherwise a field has it
        parts.append(f"ended after {md.duration((run.ended_at or now) - run.requested_at)}")
    if run.last_checkpoint_step is not None:
        parts.append(f"last checkpoint at step {run.last_checkpoint_step:,}")
    parts.append(words.teardown_status(view))
    blocks.append(context(f" {md.DOT} ".join(part for part in parts if part)))
    if view.cluster is not None and view.teardown is TeardownStatus.FAILED:
        blocks.append(section(_left_behind(view.cluster)))
    return blocks


def _left_behind(cluster: Cluster) -> str:
    left = cluster.left_behind or cluster.billable_left
    named = ", ".join(md.code(name, 100) for name in left[:8]) or "not known"
    more = f" and {len(left) - 8} more" if len(left) > 8 else ""
    why = cluster.teardown_reason
    reason = f" {md.DOT} {md.escape(why, 300)}" if why else ""
    return f"\u26a0\ufe0f *Still there:* {named}{more}{reason}"


def _buttons(run: Run) -> list[Block]:
    elements = []
    value = RunButton(run_id=run.run_id).model_dump_json()
    if not run.phase.is_terminal and not run.stop_requested_by:
        stop = button("Stop", action_id=ActionId.STOP_RUN, value=value)
        elements.append(
            dangerous(
                stop,
                title="Stop this run?",
                text=f"{md.code(run.run_id, 120)} ends, and everything it created is deleted.",
                confirm="Stop and tear down",
            )
        )
    if run.pods:
        elements.append(button("Logs", action_id=ActionId.SHOW_LOGS, value=value))
    return [actions(elements)] if elements else []

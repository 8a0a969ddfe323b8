"""What a command answers to the one person who typed it; always ephemeral."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

from bot.actions import MOST_TYPED, ActionId
from bot.blocks import cluster_parts as parts
from bot.blocks import mrkdwn as md
from bot.blocks import words
from bot.blocks.elements import (
    Block,
    Content,
    actions,
    button,
    context,
    divider,
    fields,
    header,
    section,
    typed_at_once,
)
from bot.blocks.log_lines import shown
from stationmaster.domain.bus import LogTail
from stationmaster.domain.catalogue.instances import get_instance
from stationmaster.domain.catalogue.recipes import FRAMEWORK_NAMES, Recipe
from stationmaster.domain.catalogue.training_config import ImageTraining
from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.commands.table import APP_NAME, COMMAND, START, TYPED_SUBCOMMANDS
from stationmaster.domain.keys.names import key_names
from stationmaster.domain.planning.cost import hourly_price
from stationmaster.domain.planning.plan import Plan
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.view import RunView
from stationmaster.domain.sizes import counted

if TYPE_CHECKING:
    from stationmaster.commands.studying import Begun
    from stationmaster.preflight.findings import Finding

_MAX_BLOCKS: Final = 48
# Slack takes 3,000 characters in a section.
_MOST_FINDINGS: Final = 2_900
_MARKS: Final = {"error": md.FAILED, "warning": md.WARNING, "info": md.DONE}
_MAX_RUNS: Final = 20


def help_text(recipes: Iterable[Recipe], *, has_rules: bool) -> Content:
    """Explain how to use the command; `has_rules` says whether roles decide who may do what."""
    who = "roles decide who may do what" if has_rules else "everybody here may do everything"
    names = [recipe.name for recipe in recipes]
    lines = [f"`{row.typed}`  {row.help}" for row in (START, *TYPED_SUBCOMMANDS)]
    return Content(
        text="how to use /train",
        blocks=[
            header("\U0001f682 Train from this channel"),
            section("\n".join(lines)),
            section(f"*Try this*\n```{COMMAND} {START.example}```"),
            actions([button("Fill in a form", action_id=ActionId.OPEN_FORM, value="{}")]),
            context(
                f"recipes: {', '.join(names)}, or hf:ORG/MODEL for a language model of the "
                f"Hugging Face hub {md.DOT} preset=smoke runs any recipe small, on CPUs {md.DOT} "
                "every run gets one live card, a thread, and a receipt once everything it created "
                f"is deleted {md.DOT} keep=2h keeps its cluster for the next run, on=NAME uses one "
                f"{md.DOT} in threads: @{APP_NAME} status {md.DOT} {who} (docs/approvals.md)"
            ),
        ],
    )


def form_not_opened() -> Content:
    """Say what to do where Slack does not open the form."""
    text = f"Slack did not open the form; press again, or type {COMMAND} {START.example}"
    return Content(text=text, blocks=[section(f"{md.WARNING} {text}")])


def recipes_list(recipes: Iterable[Recipe]) -> Content:
    """List the catalogue, and once for each kind of model the keys that its recipes take."""
    blocks: list[Block] = [header("Recipes")]
    keys: dict[str, tuple[str, ...]] = {}
    for recipe in recipes:
        instance = get_instance(recipe.default_instance)
        price = hourly_price(recipe, instance, nodes=recipe.default_nodes)
        training = recipe.training
        if isinstance(training, ImageTraining):
            kind, sample = "on images", "images"
        else:
            kind, sample = "on text", f"{md.TIMES} {training.sequence_length:,} tokens"
        if not recipe.uses_own_trainer:
            kind = f"of {FRAMEWORK_NAMES[recipe.framework]}"
        facts = [
            f"{md.count(recipe.model.num_parameters)} parameters",
            f"{recipe.default_nodes} {md.TIMES} {recipe.default_instance}",
            f"{md.money(price)} an hour",
            f"{training.steps:,} steps of {training.global_batch_size:,} {sample}",
        ]
        blocks.append(
            section(
                f"*{recipe.name}*\n{md.escape(recipe.summary)}\n```/train {recipe.name} "
                f"nodes={recipe.default_nodes}```"
            )
        )
        blocks.append(context(f" {md.DOT} ".join(facts)))
        keys.setdefault(kind, key_names(recipe))
    blocks = blocks[: _MAX_BLOCKS - len(keys)]
    for kind, names in keys.items():
        blocks.append(context(f"*keys of recipes {kind}*: {', '.join(names)}"))
    return Content(text="the recipes that can be trained", blocks=blocks)


def preflight_findings(examined: Sequence[tuple[str, Sequence[Finding]]]) -> Content:
    """List what is lacking, what may be, and what is there, for deployment and starts."""
    every = [finding for _, findings in examined for finding in findings]
    lacking = sum(finding.severity == "error" for finding in every)
    verdict = f"{counted(lacking, 'thing')} lacking" if lacking else "nothing is lacking"
    if unanswered := sum(finding.is_unanswered for finding in every):
        verdict += f", {counted(unanswered, 'question')} without an answer"
    blocks: list[Block] = [header(f"Preflight: {verdict}")]
    for name, findings in examined:
        lines = [
            f"{mark} {md.code(each.check, 40)} {md.escape(each.sentence, 600)}"
            for severity, mark in _MARKS.items()
            for each in findings
            if each.severity == severity
        ]
        if lines:
            text = "\n".join([f"*{md.escape(name, 200)}*", *lines])
            blocks.append(section(text[:_MOST_FINDINGS]))
    return Content(text=f"preflight: {verdict}", blocks=blocks[:_MAX_BLOCKS])


def plan_summary(plan: Plan, *, command: str) -> Content:
    """Say what a run would create, whether it fits, and what it costs.

    Args:
        command: what starts it, or, where it does not fit and something helps, plans what would.
    """
    if not plan.trains_recipe:
        return _command_summary(plan, command=command)
    memory = plan.memory_per_gpu_gib
    holder = "GPU" if plan.num_gpus else "process"
    mark = md.DONE if plan.fits else md.FAILED
    parts = memory.model_dump(exclude={"total", "available", "in_host_memory"})
    shares = " + ".join(f"{name} {_gib(size)}" for name, size in parts.items() if size)
    if memory.in_host_memory:
        shares += f"; {_gib(memory.in_host_memory)} of each process in host memory"
    fit = "fits" if plan.fits else "does not fit"
    unit = "images" if plan.counts_images else "tokens"
    price_label, cost_label = "Price", "Cost, teardown included"
    if plan.on_cluster is not None:
        price_label, cost_label = "Its share of the price", "Its share of the cost"
    blocks = [
        header(f"Plan: {plan.recipe} on {plan.node_words} {md.TIMES} {plan.instance_type}"),
        section(
            f"{mark} *{fit}*: {_gib(memory.total)} of {memory.available:.1f} GiB on each {holder}\n"
            f"`{md.progress_bar(memory.total / memory.available)}`\n{shares}"
        ),
        fields(
            [
                (price_label, f"{md.money(plan.price_per_hour_usd)} an hour"),
                (cost_label, f"about {md.money_escaped(plan.estimated_cost_usd)}"),
                ("First step after", f"about {md.duration(plan.time_to_first_step_s)}"),
                ("Duration", f"about {md.duration(plan.estimated_duration_s)}"),
                ("Throughput", f"{md.count(plan.tokens_per_s)} {unit}/s"),
                ("Limited by", md.escape(plan.limited_by)),
                ("Parallelism", md.escape(plan.parallelism)),
                (
                    "Checkpoint",
                    f"{plan.checkpoint_gb:.3g} GB in {md.duration(plan.checkpoint_write_s)}",
                ),
            ]
        ),
        section(_made_or_used(plan)),
    ]
    if plan.warnings:
        blocks.append(context("\n".join(md.escape(warning, 400) for warning in plan.warnings[:8])))
    if plan.fits or plan.suggestion:
        invitation = "Start it" if plan.fits else "This would fit"
        blocks += _offered(invitation, command)
    text = f"plan of {plan.recipe}: {fit}, {md.money_escaped(plan.estimated_cost_usd)}"
    return Content(text=text, blocks=blocks)


def _command_summary(plan: Plan, *, command: str) -> Content:
    """Summarise the plan of a custom command: its machines, data and price."""
    label = "Price" if plan.on_cluster is None else "Its share of the price"
    price = f"{md.money(plan.price_per_hour_usd)} an hour"
    starts = f"about {md.duration(plan.time_to_first_step_s)}"
    blocks = [
        header(f"Plan: a command on {plan.nodes} {md.TIMES} {plan.instance_type}"),
        fields([(label, price), ("Starts after", starts)]),
        section(_made_or_used(plan)),
        context("\n".join(md.escape(warning, 400) for warning in plan.warnings[:8])),
        *_offered("Start it", command),
    ]
    return Content(text=f"plan of a command, {price}", blocks=blocks)


def _offered(invitation: str, command: str) -> list[Block]:
    """Show a command that starts or plans something, and open it in a form."""
    words = command.removeprefix(f"{COMMAND} ").removeprefix("plan ")
    edit = typed_at_once("Edit\u2026", words, action_id=ActionId.EDIT_COMMAND)
    shown = section(f"*{invitation}*\n```{md.in_code(command, 500)}```")
    return [shown, *([actions([edit])] if len(words) <= MOST_TYPED else [])]


def _made_or_used(plan: Plan) -> str:
    if plan.on_cluster is None:
        created = [f"\u2022 {md.escape(line, 300)}" for line in plan.will_create[:12]]
        return "\n".join(["*It would create*", *created])
    least = f"{plan.min_nodes} to " if plan.min_nodes is not None else ""
    nodes = f"{least}{counted(plan.nodes, 'node')}"
    label = md.code(plan.on_cluster, 60)
    return f"*It would create nothing:* it would use {nodes} of cluster {label}, which stays"


def _gib(size: float) -> str:
    return f"{size:.1f} GiB" if size >= 1 else f"{size * 1024:.0f} MiB"


def run_requested(run: Run, plan: Plan, *, created: bool) -> Content:
    """Answer a start: what was understood, and where to look."""
    request = run.request
    run_id = md.code(run.run_id, 120)
    verb = "is on its way" if not run.awaits_approval else "waits for an approval"
    verb = verb if created else "was requested a moment ago; nothing new was started"
    place = f"cluster {md.code(plan.on_cluster, 60)} {md.DOT} " if plan.on_cluster else ""
    cost = f"about {words.planned_cost(run)} in all"
    if run.request.program:
        cost = f"in all {words.planned_cost(run)}"
    facts = (
        f"{place}{request.node_words} {md.TIMES} {md.escape(request.instance_type, 60)} {md.DOT} "
        f"{md.money(run.price_per_hour_usd)} an hour {md.DOT} "
        f"{cost}"
    )
    blocks = [
        section(f"{md.DONE} {run_id} {verb}\n{facts}"),
        context(_what_follows(run)),
    ]
    notes = [warning for warning in plan.warnings if warning != plan.price_note]
    if notes:
        lines = "\n".join(f"\u26a0\ufe0f {md.escape(note, 400)}" for note in notes[:4])
        blocks.insert(1, section(lines))
    return Content(text=f"run {md.escape(run.run_id, 120)} {verb}", blocks=blocks)


def study_requested(begun: Begun) -> Content:
    """Answer a study: the runs in their order, and what follows."""
    verb = "are on their way" if begun.created else "were requested a moment ago; nothing is new"
    title = f"{md.DONE} *{counted(len(begun.runs), 'run')} of a study* {verb}"
    lines = [
        f"{md.code(run.run_id, 120)} {md.DOT} {counted(run.request.nodes, 'node')} {md.DOT} "
        f"{md.escape(run.request.title, 100)} {md.DOT} about {words.planned_cost(run)}"
        for run in begun.runs
    ]
    if begun.cluster is not None:
        lines.append(_cluster_of_study(begun.cluster))
    blocks = [
        section("\n".join([title, *lines])),
        context(
            "One after another, each with the cluster for itself; with the last comes a table of "
            "what they have measured. `/train stop RUN` ends one, and the others go on."
        ),
    ]
    return Content(text=f"{len(begun.runs)} runs of a study {verb}", blocks=blocks)


def _cluster_of_study(cluster: Cluster) -> str:
    """Say what is made for a study, for how long, and what all of it costs."""
    planned = (cluster.study_until or cluster.requested_at) - cluster.requested_at
    usd = cluster.spec.price_per_hour_usd * planned.total_seconds() / 3600
    return (
        f"Cluster {md.code(cluster.label, 60)} is made for them"
        f"{', once it is approved' if cluster.awaits_approval else ''}, and goes with the last: "
        f"{parts.machines(cluster.spec)}, for all of it about {md.duration(planned)} and "
        f"{md.money(usd)}"
    )


def _what_follows(run: Run) -> str:
    if run.awaits_approval:
        return "Its card says who decides; nothing is made or paid before."
    if run.awaits_card:
        return (
            "Slack takes its card in a moment; the run starts with it, and nothing is made before."
        )
    return "Its card is in this channel and follows the run to its receipt."


def runs_list(runs: Sequence[RunView], *, now: datetime) -> Content:
    """List the newest runs of a channel."""
    if not runs:
        return Content(
            text="there is no run in this channel yet",
            blocks=[
                section("There is no run in this channel yet."),
                context("`/train recipes` shows what can be trained"),
            ],
        )
    blocks: list[Block] = [header("Newest runs")]
    blocks += [section(run_line(run, now=now)) for run in runs[:_MAX_RUNS]]
    blocks.append(context("`/train status RUN` shows one of them, `/train logs RUN` its log"))
    return Content(text=f"the newest {len(runs[:_MAX_RUNS])} runs of this channel", blocks=blocks)


def run_line(view: RunView, *, now: datetime) -> str:
    run = view.run
    parts = [words.status(run)]
    if run.progress is not None:
        parts.append(words.step(run.progress))
        parts += words.reported_loss(run.progress)
    parts.append(words.cost(view, now=now))
    parts.append(f"{md.duration(now - run.requested_at)} ago")
    parts.append(f"by {md.user(run.request.user_id)}")
    details = f" {md.DOT} ".join(parts)
    title = md.escape(run.request.title, 100)
    return f"{words.emoji(run)} *{title}* {md.code(run.run_id, 120)}\n{details}"


def run_logs(run: Run, tails: Sequence[LogTail], *, with_file: bool, now: datetime) -> Content:
    """Show the newest log lines of a run's pods."""
    run_id = md.code(run.run_id, 120)
    text = f"logs of {md.escape(run.run_id, 120)}"
    if not tails:
        why = "its pods have not written anything yet"
        if not run.pods:
            why = f"it has no pods yet, it is {words.status(run)}"
        return Content(text=text, blocks=[section(f"There is no log of {run_id}: {why}.")])
    blocks: list[Block] = [section(f"*Newest log lines of* {run_id}")]
    parts = shown(tails)
    for tail, lines in parts:
        pod = md.code(tail.pod.removeprefix(f"{run.run_id}-"), 80)
        blocks.append(divider())
        blocks.append(context(f"{pod} {md.DOT} {md.duration(now - tail.at)} ago"))
        blocks.append(section(lines))
    if len(tails) > len(parts):
        blocks.append(context(f"and {len(tails) - len(parts)} more pods"))
    saved = "are saved" if run.results is not None else "will be saved"
    whole = f"the whole logs {saved} with the run's results, in `logs/`"
    if with_file:
        more = "they follow" if run.results is not None else "more lines follow"
        whole += f"; {more} as a file in the run's thread"
    blocks.append(context(whole))
    return Content(text=text, blocks=blocks)


def report_follows(run: Run) -> Content:
    text = f"the report of {md.code(run.run_id, 120)} follows as a file in its thread"
    more = "One page for a browser, which needs no network; `stationmaster report` writes the same."
    return Content(text=text, blocks=[section(f"{text[0].upper()}{text[1:]}."), context(more)])


def stop_accepted(run: Run) -> Content:
    stays = run.request.cluster_id is not None or run.request.keep_s > 0
    what = "its cluster stays" if stays else "everything it created will be deleted"
    if run.request.goes_with_study:
        what = "the others of its study go on, and their cluster goes with the last"
    text = f"{md.code(run.run_id, 120)} is being stopped; {what}"
    return Content(text=text, blocks=[section(f"\U0001f6d1 {text}.")])


def budget_changed(run: Run) -> Content:
    """Answer another budget, or that a larger one waits for an approval."""
    budget, asked = md.money(run.request.budget_usd or 0), run.open_approval
    text = f"{md.code(run.run_id, 120)} is stopped once it has cost {budget}"
    if asked is not None and asked.is_of_budget:
        budget = md.money(asked.wish.usd)
        text = f"the budget of {budget} waits for an approval on the card, nothing changes before"
    return Content(text=text, blocks=[section(f"{md.DONE} {text}.")])


def run_scaled(view: RunView, *, nodes: int) -> Content:
    """Answer /train scale: when the run gets the nodes, and how many of them there are."""
    has, cluster = view.leased_nodes or 0, view.cluster
    free = cluster.free_nodes if cluster is not None and cluster.resizes_from is None else 0
    text = (
        f"{md.code(view.run.run_id, 120)} has {counted(has, 'node')} and is to have {nodes}; it "
        "changes once it has saved a checkpoint, and continues from there"
    )
    if nodes - has > free:
        text += f". {free} more are free now: it gets the others when they are, if nobody waits"
    return Content(text=text, blocks=[section(f"\u2194\ufe0f {text}.")])


def saving_again(run: Run) -> Content:
    """Answer "Save again"."""
    text = f"the results of {md.code(run.run_id, 120)} are being saved again"
    return Content(text=text, blocks=[section(f"\u25b8 {text}.")])


def results_given_up(run: Run) -> Content:
    """Answer "Delete without saving"."""
    existing = run.request.file_system
    become = f"stay on {existing.existing_id}" if existing is not None else "will be deleted"
    text = f"{md.code(run.run_id, 120)} ends without its results; they {become}"
    return Content(text=text, blocks=[section(f"\U0001f6d1 {text}.")])

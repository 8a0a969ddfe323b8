"""A run's results and backups: on its card, in its thread and in its receipt.

Where they are and how to use them, or why they are not saved; what stays then, with its price.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final, assert_never

from bot.actions import ActionId, RunButton
from bot.blocks import mrkdwn as md
from bot.blocks import words
from bot.blocks.elements import (
    Block,
    Content,
    asked_again,
    button,
    context,
    paragraph,
    section,
)
from stationmaster.commands import Links
from stationmaster.domain.catalogue.training_config import ImageTraining
from stationmaster.domain.commands.table import COMMAND
from stationmaster.domain.keys.own_code import IN_OUTPUT
from stationmaster.domain.planning.recipe_lookup import get_recipe
from stationmaster.domain.reactions.backups import TRAINING
from stationmaster.domain.results import MANIFEST_FILE, OUTPUT
from stationmaster.domain.run import events as ev
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import RunPhase
from stationmaster.domain.run.kept import Backup, Results
from stationmaster.domain.run.view import RunView
from stationmaster.domain.sizes import counted, size_text

# Where the commands that are shown put a result.
_FOLDER: Final = "my-model"
_OUTPUT_FOLDER: Final = "my-results"
_DISK: Final = "\U0001f4be"
_HUB: Final = "\U0001f917"  # hugging face


def result_blocks(view: RunView) -> list[Block]:
    """Show the result of a run, or why there is none; nothing while it trains."""
    run = view.run
    if run.results is not None:
        shown = f"{_saved(run, run.results)}\n```{_usage(run, run.results)}```"
        notes = [*_without_steps(run), *_without_output(run, run.results)]
        if run.best_step is not None:
            notes.append(context(f"the model is of step {run.best_step:,}, {words.BEST}"))
        return [*notes, section(shown), *_without_model(run), *_push(run)]
    if run.unsaved_reason:
        return [section(_unsaved(view))]
    why = ""
    if run.results_lost:
        why = f"{md.FAILED} *No result:* {md.escape(run.results_lost, 400)}"
    elif run.results_given_up_by:
        why = f"{md.FAILED} *No result:* given up by {md.user(run.results_given_up_by)}"
    newest = fallback(run) if why or run.phase.is_terminal else ""
    return paragraph([line for line in (why, newest) if line])


def _without_steps(run: Run) -> list[Block]:
    """Say that nothing shows that a command trained which ended well and reported no step."""
    if run.phase is not RunPhase.SUCCEEDED or not run.request.program or run.progress is not None:
        return []
    return [
        section(
            f"{md.WARNING} *Ended without a step:* it ended with exit code 0 and reported no "
            "step, so nothing shows that it trained; its log says what it did. `stationmaster "
            "snippet torch` prints a function that reports steps."
        )
    ]


def _without_output(run: Run, results: Results) -> list[Block]:
    """Say that a command has kept nothing, which is not seen from a list of files."""
    if not run.request.program or results.has_output:
        return []
    elsewhere = "and what it wrote elsewhere is not kept"
    if run.request.working_directory != IN_OUTPUT:
        elsewhere += f"; with `directory={IN_OUTPUT}` it starts there"
    return [
        section(
            f"{md.WARNING} *Nothing but its log is saved:* it wrote nothing below `{IN_OUTPUT}`, "
            f"{elsewhere}"
        )
    ]


def _without_model(run: Run) -> list[Block]:
    """Say why the result of another framework's run has no model."""
    if run.export is None or not run.export.reason:
        return []
    return [section(f"{md.WARNING} *No model:* {md.escape(run.export.reason, 600)}")]


def export_line(event: ev.ExportEnded) -> str:
    """Write the outcome of making a model of a framework's checkpoint as a thread's line."""
    if not event.reason:
        return "\u25b8 a model that transformers loads was made of the newest checkpoint"
    return (
        f"{md.WARNING} *no model was made of the newest checkpoint*, which is saved all the same: "
        f"{md.escape(event.reason, 600)}"
    )


def _push(run: Run) -> list[Block]:
    """Say what became of the model on the Hugging Face hub."""
    if run.pushed is not None:
        repository, revision = md.code(run.pushed.repository, 200), run.pushed.revision[:12]
        return [section(f"{_HUB} *Pushed* to {repository}, revision {md.code(revision)}")]
    if run.not_pushed:
        where, why = md.code(run.request.push_to, 200), md.escape(run.not_pushed, 600)
        return [section(f"\u26a0\ufe0f *Not pushed* to {where}: {why}")]
    if run.has_unpushed_model:
        return [context(f"the model is being pushed to {md.code(run.request.push_to, 200)}")]
    return []


def push_line(event: ev.PushEvent) -> str:
    """Write the outcome of a push as a line of the thread."""
    where = md.code(event.repository, 200)
    match event:
        case ev.ResultsPushed():
            revision = md.code(event.revision[:12])
            return f"{_HUB} model pushed to {where}, revision {revision}, and verified there"
        case ev.ResultsNotPushed():
            why = md.escape(event.reason, 600)
            return f"\u26a0\ufe0f *the model was not pushed* to {where}: {why}"
        case _:
            assert_never(event)


def _existing(view: RunView) -> str:
    """Return the id of a file system that stays without the run's cluster; "" for none."""
    return view.cluster.spec.file_system.existing_id if view.cluster is not None else ""


def result_buttons(view: RunView) -> list[Block]:
    """Offer what a person may do with a result, or about one that is not saved."""
    run, existing = view.run, _existing(view)
    value = RunButton(run_id=run.run_id).model_dump_json()
    if run.results is not None:
        return [button("Links", action_id=ActionId.LINK_RESULTS, value=value)]
    if not run.unsaved_reason or not run.has_unsaved_results:
        return []
    what = f"Model, checkpoints and logs of {md.code(run.run_id, 120)}"
    if existing:
        label, title = "End without saving", "End without saving?"
        confirm, deny = "End it", "Wait"
        what += f" stay on file system {existing} only, and are not saved."
    else:
        label, title = "Delete without saving", "Delete the results?"
        confirm, deny = "Delete them", "Keep them"
        newest = run.backups.newest
        only = f"Only the backup of step {newest.step:,} stays." if newest else ""
        left = only or "They exist nowhere else."
        what += f" are deleted with its file system, for good. {left}"
    give_up = button(label, action_id=ActionId.GIVE_UP_RESULTS, value=value)
    return [
        button("Save again", action_id=ActionId.SAVE_AGAIN, value=value),
        asked_again(give_up, title=title, text=what, confirm=confirm, deny=deny),
    ]


def report_button(run: Run) -> Block:
    """Offer the page with all that is known of a run."""
    value = RunButton(run_id=run.run_id).model_dump_json()
    return button("Report", action_id=ActionId.REPORT_RUN, value=value)


def results_links(links: Links, *, now: datetime) -> Content:
    """Answer one person who asked for links; they work for whoever has them."""
    until = md.clock(now + timedelta(seconds=links.seconds))
    name = md.code(links.run_id, 120)
    blocks = [
        section(
            f"*Result of {name}*\nThe links are valid until {until} at most, for whoever has them: "
            "do not pass them on."
        )
    ]
    for file, address in links.files:
        path = file.path if file is not None else MANIFEST_FILE
        size = f"  {size_text(file.num_bytes)}" if file is not None else ""
        blocks.append(section(f"{md.link(address, path)}{size}"))
    if links.num_others:
        more = counted(links.num_others, "more file")
        blocks.append(context(f"{more}; the command on the card brings all of them"))
    return Content(text=f"links to the result of {links.run_id}", blocks=blocks)


def results_line(event: ev.ResultsEvent, run: Run) -> str:
    """Write what happened to the results as a line of the thread."""
    match event:
        case ev.ResultsSaved():
            size = f"{event.num_files} files, {size_text(event.num_bytes)}"
            return f"\U0001f4be results saved and verified: {size} in {md.code(event.uri, 300)}"
        case ev.ResultsUnsaved():
            ping, why = md.user(run.request.user_id), md.escape(event.reason, 600)
            return f"\u26a0\ufe0f {ping} *the results are not saved*, and stay at a price: {why}"
        case ev.SavingRequested():
            return "\u25b8 saving the results again" + (", as asked" if event.user_id else "")
        case ev.ResultsLost():
            lost = f"{md.FAILED} nothing can be saved: {md.escape(event.reason, 400)}"
            return "\n".join(filter(None, (lost, fallback(run))))
        case ev.ResultsGivenUp():
            return f"{md.FAILED} the results that are not saved were given up"
        case _:
            assert_never(event)


def saved_in_words(results: Results) -> str:
    """Say in one line of mrkdwn where a result is, and its size."""
    size = f"{results.num_files} files, {size_text(results.num_bytes)}"
    return f"{md.code(results.uri, 300)}  {size}"


def _saved(run: Run, results: Results) -> str:
    shown = f"\U0001f4be *Result*  {saved_in_words(results)}"
    if run.progress is not None:
        shown += "".join(f", {said}" for said in words.reported_loss(run.progress))
    return shown


def _usage(run: Run, results: Results) -> str:
    """List the commands that download the result and use it."""
    # Local mode's bucket is found by itself; that of a deployment is named.
    bucket = "" if run.emulated_speed else f" --bucket {results.uri.split('/')[2]}"
    has_model = run.export is not None and not run.export.reason
    is_model = run.request.uses_own_trainer or has_model
    folder = _FOLDER if is_model else _OUTPUT_FOLDER
    lines = [f"stationmaster results {run.run_id} --to {folder}{bucket}"]
    if not is_model:
        lines.append(f"ls -R {folder}" + (f"/{OUTPUT}" if results.has_output else ""))
    elif run.phase is RunPhase.SUCCEEDED:
        lines.append(f'{_model_class(run)}.from_pretrained("{_FOLDER}/model")')
    return "\n".join(md.escape(line, 600) for line in lines)


def _model_class(run: Run) -> str:
    recipe = get_recipe(run.request.recipe, run.request.model)
    is_image = isinstance(recipe.training, ImageTraining)
    return "AutoModelForImageClassification" if is_image else "AutoModelForCausalLM"


def _unsaved(view: RunView) -> str:
    why = md.escape(view.run.unsaved_reason, 600)
    lines = [f"\u26a0\ufe0f *The results are not saved:* {why}"]
    if view.cluster is not None:
        price = md.money_escaped(words.price_per_hour(view.cluster))
        existing = _existing(view)
        where = (
            f"They are on file system {md.code(existing, 50)} only, so what is needed to save them "
            "stays"
            if existing
            else "They are on the file system only, so it stays, with what is needed to save them"
        )
        lines.append(f"{where}: *{price} an hour*. Saving is tried again every hour.")
    if (newest := fallback(view.run)) != "":
        lines.append(newest)
    return "\n".join(lines)


def backup_blocks(run: Run) -> list[Block]:
    """Show the state of the backups of a run that trains; nothing before the first."""
    backups = run.backups
    if run.phase not in TRAINING:
        return []
    blocks = []
    if backups.failed:
        why = md.escape(backups.failed, 400)
        blocks.append(section(f"{md.WARNING} *The last backup failed:* {why}. It is tried again."))
    shown = []
    if backups.newest is not None:
        shown.append(
            f"backup of {_step_and_size(backups.newest)} {md.ago(backups.newest.saved_at)}"
        )
    if backups.is_running:
        shown.append("a backup is being made")
    if shown:
        blocks.append(context(f" {md.DOT} ".join(shown)))
    return blocks


def fallback(run: Run) -> str:
    """Say how to continue from the newest backup of a run that has no result; "" otherwise."""
    newest = run.backups.newest
    if newest is None or run.results is not None:
        return ""
    where = md.code(newest.uri, 300)
    return (
        f"{_DISK} *Newest backup:* {_step_and_size(newest)} in {where}\n"
        f"```{COMMAND} resume {md.in_code(run.run_id, 120)}```"
    )


def backup_line(event: ev.BackupEvent) -> str:
    """Write what happened to a backup as a line of the thread."""
    match event:
        case ev.BackupSaved():
            size = size_text(event.num_bytes)
            where = md.code(event.uri, 300)
            return f"{_DISK} backup of step {event.step:,} saved and verified: {size} in {where}"
        case ev.BackupFailed():
            return (
                f"{md.WARNING} *a backup failed:* {md.escape(event.reason, 600)}; it is tried again"
            )
        case ev.BackupStarted():
            return f"\u25b8 a backup was begun at step {event.step:,}"
        case ev.BackupLookedAt():
            return "\u25b8 a backup was looked at"
        case _:
            assert_never(event)


def _step_and_size(backup: Backup) -> str:
    return f"step {backup.step:,} ({size_text(backup.num_bytes)})"

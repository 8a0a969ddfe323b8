"""`resume_from=`, and a run after `weights=`: what a run trains on of other runs' results.

Of a run of a custom command, the same command is resumed, and given what that run has saved.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from stationmaster.domain.catalogue.continuing import MAY_CHANGE, changed_keys, falls_to_its_end
from stationmaster.domain.catalogue.recipes import FRAMEWORK_NAMES, Recipe
from stationmaster.domain.errors import BadCommand, BadParameter, NotPossibleNow, PermanentError
from stationmaster.domain.ids import RunId
from stationmaster.domain.keys.key import Family, Key, Part, Start, Typed
from stationmaster.domain.keys.own_code import Option as OwnCode
from stationmaster.domain.keys.own_code import refuse_with_framework
from stationmaster.domain.keys.questions import SavedRun
from stationmaster.domain.planning.plan import Plan
from stationmaster.domain.restoring import (
    ResumePoint,
    checkpoint_files,
    model_files,
    output_files,
    saved_step,
)
from stationmaster.domain.results import ResultManifest, is_backup

NEWEST: Final = "last"
"""Stands for the newest run of the channel that has ended."""

RESUME_FROM: Final = Key(
    name="resume_from",
    help="a run of this channel (RUN or RUN@STEP) whose saved checkpoint training continues from; "
    "steps=+N means N more than it had; beside command=, a run of a command, see "
    "docs/your-own-script.md",
    meanings=("resume", "checkpoint", "restore", "from_checkpoint"),
    turn=4,
    typed=lambda options: (
        f"{options.resume_from.run_id}@{options.resume_from.step}"
        if options.resume_from is not None
        else options.output_from
    ),
)

# As `new_run_id` makes them. No repository of the hub without an owner looks like this.
_RUN_ID: Final = re.compile(r"[a-z][a-z0-9-]*-[0-9a-f]{8}")
_GB: Final = 1e9


class Option(Part):
    """What comes back before the run trains; nothing of it for most runs."""

    resume_from: ResumePoint | None = None
    """The checkpoint of another run that training goes on from."""
    output_from: RunId | None = None
    """The run whose output a custom command goes on from."""
    weights_from: RunId | None = None
    """The run whose trained model has the first weights; `overrides` name it as well."""

    @property
    def restores(self) -> bool:
        """Whether something of another run's result comes back."""
        sources = (self.resume_from, self.output_from, self.weights_from)
        return any(each is not None for each in sources)


def read(typed: Typed) -> Option:
    """Read both, and make `steps=+N` a number of steps."""
    label, first = typed.get(RESUME_FROM), typed.overrides.get("weights", "")
    if label is not None and "command" in typed.words:
        return Option(output_from=_output(label, typed))
    resumed = None if label is None else _checkpoint(label, typed)
    _read_steps(typed, resumed[0] if resumed else None)
    weights = None
    if _RUN_ID.fullmatch(first):
        weights = _of_recipe("weights", typed.ask.find_saved(first), is_model_enough=True)
        try:
            model_files(weights.manifest)
        except PermanentError as exc:
            raise NotPossibleNow(f"weights={first}: {exc}") from exc
    return Option(
        resume_from=ResumePoint(run_id=resumed[0].run_id, step=resumed[1]) if resumed else None,
        weights_from=weights.run_id if weights is not None else None,
    )


def _output(label: str, typed: Typed) -> RunId:
    """Return the run of a custom command whose output the command that was typed goes on from."""
    saved = typed.ask.find_saved(label)
    if not saved.program:
        raise NotPossibleNow(
            f"{RESUME_FROM.name}={saved.run_id}: the recipe's trainer trained that run, and "
            "command= takes its place, which cannot go on from it; leave one of them out"
        )
    try:
        output_files(saved.manifest)
    except PermanentError as exc:
        again = f"/train rerun {saved.run_id}"
        raise NotPossibleNow(f"{exc}; {again} starts it again", suggestion=again) from exc
    return saved.run_id


def _checkpoint(label: str, typed: Typed) -> tuple[SavedRun, int]:
    name, at, step_typed = label.partition("@")
    if not name or (at and not (step_typed.isascii() and step_typed.isdigit())):
        raise BadCommand(
            f"resume_from={label[:80]} is not accepted: expected a run's id or {NEWEST}, or "
            "RUN@STEP"
        )
    saved = _of_recipe(RESUME_FROM.name, typed.ask.find_saved(name))
    step = saved_step(saved.manifest)
    if step is None:
        has = "; weights= takes its model" if _has_model(saved.manifest) else ""
        raise NotPossibleNow(
            f"the result of run {saved.run_id} has no checkpoint to resume from{has}"
        )
    if at and int(step_typed[:9]) != step:
        raise NotPossibleNow(
            f"run {saved.run_id} has saved no checkpoint of step {step_typed[:9]}; it has saved "
            f"step {step:,}: use resume_from={saved.run_id}@{step}"
        )
    return saved, step


def _of_recipe(key: str, saved: SavedRun, *, is_model_enough: bool = False) -> SavedRun:
    """Return the run, unless another program trained it.

    A framework leaves a model as well, which is all that is needed where `is_model_enough`.

    Raises:
        NotPossibleNow: it did.
    """
    if saved.program:
        raise NotPossibleNow(
            f"{key}={saved.run_id}: that run ran a command of its own, and what it has saved is "
            "not known to a recipe's trainer; stationmaster results "
            f"{saved.run_id} --to DIR downloads it"
        )
    if not (saved.resolved.uses_own_trainer or is_model_enough):
        name = FRAMEWORK_NAMES[saved.resolved.framework]
        raise NotPossibleNow(
            f"{key}={saved.run_id}: {name} trained that run, and no run continues from its "
            f"checkpoints; weights={saved.run_id} takes its model, and stationmaster results "
            f"{saved.run_id} --to DIR downloads both"
        )
    return saved


def _has_model(manifest: ResultManifest) -> bool:
    try:
        return bool(model_files(manifest))
    except PermanentError:
        return False


def _read_steps(typed: Typed, resumed: SavedRun | None) -> None:
    steps = typed.overrides.get("steps", "")
    if not steps.startswith("+"):
        return
    if resumed is None:
        raise BadCommand(
            f"steps={steps[:40]} means more than another run had; add resume_from=RUN, or leave "
            "the + out"
        )
    more = steps.removeprefix("+")
    if not (more.isascii() and more.isdigit()) or len(more) > 9:
        raise BadCommand(f"steps={steps[:40]} is not accepted: expected + and a whole number")
    had = resumed.resolved.training.steps
    if resumed.resolved.counts_epochs:
        had = saved_step(resumed.manifest) or 0
    typed.overrides["steps"] = str(had + int(more))


def _resumed(start: Start) -> SavedRun | None:
    """Return the run whose checkpoint is meant, asked for by the same words as before."""
    label = start.words.get(RESUME_FROM.name)
    return start.ask.find_saved(label.partition("@")[0]) if label is not None else None


def _weights(start: Start) -> SavedRun | None:
    run_id = start.part(Option).weights_from
    return start.ask.find_saved(run_id) if run_id is not None else None


def restored_bytes(start: Start) -> int:
    """Count the bytes that come back of both results together."""
    point, resumed, weights = start.part(Option).resume_from, _resumed(start), _weights(start)
    files = list(checkpoint_files(resumed.manifest, point.step)) if resumed and point else []
    files += model_files(weights.manifest) if weights is not None else ()
    files += output_files(resumed.manifest) if resumed and point is None else ()
    return sum(file.num_bytes for file in files)


def planned(start: Start, recipe: Recipe) -> Recipe:
    """Return the recipe as far as this run trains it, for the plan."""
    own = start.part(Option)
    changes: dict[str, object] = {}
    if own.resume_from is not None:
        changes["steps"] = max(1, recipe.training.steps - own.resume_from.step)
    if own.weights_from is not None:
        changes["weights"] = "random"  # the plan must not look for them on the hub
    return recipe.model_copy(update={"training": recipe.training.model_copy(update=changes)})


def refuse(start: Start) -> None:
    """Refuse a recipe that cannot go on from the checkpoint, or start from the weights."""
    resolved, weights, saved = start.resolved, _weights(start), _resumed(start)
    if weights is not None and weights.resolved.model != resolved.model:
        raise BadParameter(
            f"weights={weights.run_id} are of another model: that run trained "
            f"{weights.resolved.name}, which has another shape than {resolved.name} here"
        )
    if saved is not None and start.part(Option).resume_from is not None:
        _refuse_unfit(start, saved)
    refuse_with_framework(start, RESUME_FROM)
    is_framework = not resolved.uses_own_trainer and not start.part(OwnCode).program
    if is_framework and weights is not None:
        raise BadParameter(
            f"weights={weights.run_id} names a run, whose model is in Hugging Face's form, and "
            f"{FRAMEWORK_NAMES[resolved.framework]} reads checkpoints of its own; leave it out"
        )


def _refuse_unfit(start: Start, saved: SavedRun) -> None:
    resolved, point = start.resolved, start.part(Option).resume_from
    if resolved.name not in (saved.recipe, saved.resolved.name):
        raise BadParameter(
            f"resume_from={saved.run_id}: that run trained {saved.recipe}, and a "
            f"checkpoint of it cannot be continued as {resolved.name}"
        )
    changed = changed_keys(saved.resolved, resolved)
    if changed:
        told = ", ".join(
            "another model" if key == "model" else f"{key}={theirs} and not {ours}"
            for key, (theirs, ours) in changed.items()
        )
        raise BadParameter(
            f"resume_from={saved.run_id}: that run was trained with {told}, which a checkpoint "
            f"does not let change; /train resume {saved.run_id} takes its values (what may change: "
            f"{', '.join(sorted(MAY_CHANGE - {'weights'}))}, and whatever changes no weights)"
        )
    is_over = point is not None and resolved.training.steps <= point.step
    if point is not None and is_over and not resolved.counts_epochs:
        again = saved.words | {RESUME_FROM.name: saved.run_id, "steps": "+100"}
        raise NotPossibleNow(
            f"run {saved.run_id} has trained {point.step:,} steps already, and "
            f"steps={resolved.training.steps} leaves none; add steps=+N for N more",
            suggestion=f"/train plan {saved.recipe} "
            + " ".join(f"{key}={value}" for key, value in again.items()),
        )


def note(start: Start, plan: Plan) -> Iterable[str]:
    """Say what comes back before training, and what that means."""
    resumed, point = _resumed(start), start.part(Option).resume_from
    if resumed is not None and point is not None:
        yield from _resume_notes(resumed, point.step, plan, start.resolved)
    elif resumed is not None:
        yield (
            f"what {resumed.run_id} has saved lies in $STATIONMASTER_OUTPUT_DIR of the command; "
            "whether training continues from it is the command's part"
        )
    if (weights := _weights(start)) is not None:
        yield f"starts from the trained model of run {weights.run_id}"
    if num_bytes := restored_bytes(start):
        size = num_bytes / _GB
        told = f"{size:,.1f} GB" if size >= 0.1 else f"{num_bytes / 1e6:,.1f} MB"
        yield f"{told} come back from the artifacts bucket to the file system first"


def _resume_notes(saved: SavedRun, step: int, plan: Plan, resolved: Recipe) -> Iterable[str]:
    total, is_counted = resolved.training.steps, resolved.counts_epochs
    end = "the end of its epochs" if is_counted else f"{total:,}"
    what = f"a backup of {saved.run_id}" if is_backup(saved.manifest) else saved.run_id
    yield f"resumes from {what} at step {step:,}: steps {step + 1:,} to {end} are trained"
    if is_backup(saved.manifest):
        yield "what that run trained after its newest backup is not saved"
    if falls_to_its_end(resolved) and not is_counted and total != saved.resolved.training.steps:
        yield (
            f"schedule={resolved.training.schedule} falls to the last step: at step {step + 1:,} "
            f"the learning rate becomes what a run of {total:,} steps has there, so the result is "
            f"not that of one run of {total:,} steps; runs with schedule=constant or step are "
            "continued exactly"
        )
    if (plan.nodes, plan.instance_type) != (saved.nodes, saved.instance_type):
        yield (
            f"the checkpoint was written on {saved.nodes} x {saved.instance_type} and is spread "
            f"over {plan.nodes} x {plan.instance_type}: the order of samples stays, figures differ "
            "by rounding, and dropout and batch statistics are each rank's own"
        )


FAMILY: Final = Family(keys=(RESUME_FROM,), read=read, refuse=refuse, note=note)

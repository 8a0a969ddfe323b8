"""What a start uses of other runs' results: `resume_from=`, `weights=RUN`, and `/train resume`.

`parameters` calls it while it reads a start, `grammar` for `/train resume`. Pure: who finds a run
and reads its manifest is given by the caller.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Final

from stationmaster.domain.catalogue.continuing import MAY_CHANGE, changed_keys, falls_to_its_end
from stationmaster.domain.catalogue.recipes import FRAMEWORK_NAMES, Recipe
from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.commands.backing_up import BACKUP_EVERY, typed_backup_every
from stationmaster.domain.commands.hosting import CLUSTER, typed_host
from stationmaster.domain.commands.job_options import (
    PRIORITY_CLASS,
    QUEUE,
    typed_job_options,
)
from stationmaster.domain.commands.meanings import key_meant
from stationmaster.domain.commands.storing import (
    FILE_SYSTEM,
    FILE_SYSTEM_TYPE,
    is_size,
    type_typed,
)
from stationmaster.domain.errors import BadCommand, BadParameter, NotPossibleNow, PermanentError
from stationmaster.domain.ids import RunId
from stationmaster.domain.planning.plan import Plan
from stationmaster.domain.restoring import (
    ResumePoint,
    checkpoint_files,
    model_files,
    saved_step,
)
from stationmaster.domain.results import ResultFile, ResultManifest, is_backup
from stationmaster.domain.run.request import Placement, TrainingRequest

NEWEST: Final = "last"
"""Stands for the newest run of the channel that has ended."""

RESUME_FROM: Final = "resume_from"
# As `new_run_id` makes them. No repository of the hub without an owner looks like this.
_RUN_ID: Final = re.compile(r"[a-z][a-z0-9-]*-[0-9a-f]{8}")
_GB: Final = 1e9


@dataclass(frozen=True)
class SavedRun:
    """A run of the channel that has ended, and what its manifest says that it has left."""

    run_id: RunId
    request: TrainingRequest
    placement: Placement
    """Of its last attempt."""
    manifest: ResultManifest


FindSaved = Callable[[str], SavedRun]
"""Finds a run by its id, or the newest that has ended by `last`, and reads its manifest.

Raises a UserError that says why its result cannot be used."""


def no_results(label: str) -> SavedRun:
    """Find nothing: where no channel is at hand.

    Raises:
        NotPossibleNow: always.
    """
    raise NotPossibleNow(
        f"{label} names a run of a channel, and none is known here; type the command in the channel"
    )


@dataclass(frozen=True)
class Returning:
    """What comes back before the run trains; nothing of it for most runs."""

    resumed: SavedRun | None = None
    step: int = 0
    """Of the checkpoint that training goes on from."""
    files: tuple[ResultFile, ...] = ()
    """Of both results together."""
    weights: SavedRun | None = None

    @property
    def resume_from(self) -> ResumePoint | None:
        """The checkpoint that training goes on from."""
        if self.resumed is None:
            return None
        return ResumePoint(run_id=self.resumed.run_id, step=self.step)

    @property
    def weights_from(self) -> RunId | None:
        """The run whose final model has the first weights."""
        return self.weights.run_id if self.weights is not None else None

    @property
    def num_bytes(self) -> int:
        """Bytes that come back."""
        return sum(file.num_bytes for file in self.files)

    def planned(self, recipe: Recipe) -> Recipe:
        """The recipe as far as this run trains it, for the plan."""
        changes: dict[str, object] = {}
        if self.resumed is not None:
            changes["steps"] = recipe.training.steps - self.step
        if self.weights is not None:
            changes["weights"] = "random"  # the plan must not look for them on the hub
        training = recipe.training.model_copy(update=changes)
        return recipe.model_copy(update={"training": training})


def read_returning(values: MutableMapping[str, str], *, find_saved: FindSaved) -> Returning:
    """Take `resume_from` out of the values, and make `steps=+N` a number of steps.

    Raises:
        UserError: a run, its result, or the part of it that is needed is not there.
    """
    label = values.pop(RESUME_FROM, None)
    resumed, step, files = None, 0, []
    if label is not None:
        resumed, step = _checkpoint(label, find_saved)
        files += checkpoint_files(resumed.manifest, step)
    _read_steps(values, resumed)
    weights = None
    first = values.get("weights", "")
    if _RUN_ID.fullmatch(first):
        weights = _of_recipe("weights", find_saved(first), is_model_enough=True)
        try:
            files += model_files(weights.manifest)
        except PermanentError as exc:
            raise NotPossibleNow(f"weights={first}: {exc}") from exc
    return Returning(resumed, step, tuple(files), weights)


def _checkpoint(label: str, find_saved: FindSaved) -> tuple[SavedRun, int]:
    name, at, typed = label.partition("@")
    if not name or (at and not (typed.isascii() and typed.isdigit())):
        raise BadCommand(
            f"{RESUME_FROM}={label[:80]} is not accepted: expected a run's id or {NEWEST}, or "
            "RUN@STEP"
        )
    saved = _of_recipe(RESUME_FROM, find_saved(name))
    step = saved_step(saved.manifest)
    if step is None:
        has = "; weights= takes its model" if _has_model(saved.manifest) else ""
        raise NotPossibleNow(
            f"the result of run {saved.run_id} has no checkpoint to resume from{has}"
        )
    if at and int(typed[:9]) != step:
        raise NotPossibleNow(
            f"run {saved.run_id} has saved no checkpoint of step {typed[:9]}; it has saved step "
            f"{step:,}: use {RESUME_FROM}={saved.run_id}@{step}"
        )
    return saved, step


def _of_recipe(key: str, saved: SavedRun, *, is_model_enough: bool = False) -> SavedRun:
    """The run, unless another program trained it.

    A framework leaves a model as well, which is all that is needed where `is_model_enough`.

    Raises:
        NotPossibleNow: it did.
    """
    if saved.request.program:
        raise NotPossibleNow(
            f"{key}={saved.run_id}: that run ran a command of its own, and what it has saved is "
            "not known to a recipe's trainer; stationmaster results "
            f"{saved.run_id} --to DIR downloads it"
        )
    if not (saved.request.uses_own_trainer or is_model_enough):
        name = FRAMEWORK_NAMES[saved.request.resolved.framework]
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


def _read_steps(values: MutableMapping[str, str], resumed: SavedRun | None) -> None:
    typed = values.get("steps", "")
    if not typed.startswith("+"):
        return
    if resumed is None:
        raise BadCommand(
            f"steps={typed[:40]} means more than another run had; add {RESUME_FROM}=RUN, or leave "
            "the + out"
        )
    more = typed.removeprefix("+")
    if not (more.isascii() and more.isdigit()) or len(more) > 9:
        raise BadCommand(f"steps={typed[:40]} is not accepted: expected + and a whole number")
    values["steps"] = str(resumed.request.resolved.training.steps + int(more))


def refuse_unfit(returning: Returning, resolved: Recipe) -> None:
    """Refuse a recipe that cannot go on from the checkpoint, or start from the weights.

    Raises:
        BadParameter: the recipe or a key is another one; names it.
        NotPossibleNow: no step is left to train.
    """
    if returning.weights is not None:
        theirs = returning.weights.request.resolved
        if theirs.model != resolved.model:
            raise BadParameter(
                f"weights={returning.weights.run_id} are of another model: that run trained "
                f"{theirs.name}, which has another shape than {resolved.name} here"
            )
    saved = returning.resumed
    if saved is None:
        return
    if resolved.name not in (saved.request.recipe, saved.request.resolved.name):
        raise BadParameter(
            f"{RESUME_FROM}={saved.run_id}: that run trained {saved.request.recipe}, and a "
            f"checkpoint of it cannot be continued as {resolved.name}"
        )
    changed = changed_keys(saved.request.resolved, resolved)
    if changed:
        told = ", ".join(
            "another model" if key == "model" else f"{key}={theirs} and not {ours}"
            for key, (theirs, ours) in changed.items()
        )
        raise BadParameter(
            f"{RESUME_FROM}={saved.run_id}: that run was trained with {told}, which a checkpoint "
            f"does not let change; /train resume {saved.run_id} takes its values (what may change: "
            f"{', '.join(sorted(MAY_CHANGE - {'weights'}))}, and whatever changes no weights)"
        )
    if resolved.training.steps <= returning.step:
        raise NotPossibleNow(
            f"run {saved.run_id} has trained {returning.step:,} steps already, and "
            f"steps={resolved.training.steps} leaves none; add steps=+N for N more",
            suggestion=f"/train plan {saved.request.recipe} "
            + " ".join(_pairs(_kept(saved) | {RESUME_FROM: saved.run_id, "steps": "+100"})),
        )


def continued_words(
    saved: SavedRun, typed: Mapping[str, str], *, at: str, cluster: Cluster | None
) -> list[str]:
    """The key=value words of `/train resume`: the run's own, with what was typed over them.

    Args:
        at: "@STEP" where that was typed.
        cluster: the one that `on=` names; its machines stand for those of the run.
    """
    kept = _kept(saved)
    if cluster is not None:
        del kept["instance"]
        for key in (FILE_SYSTEM, FILE_SYSTEM_TYPE, CLUSTER, QUEUE, PRIORITY_CLASS):
            kept.pop(key, None)
        least, has = saved.request.min_nodes, cluster.spec.nodes
        if least is None or least > has:
            kept["nodes"] = str(min(saved.placement.nodes, has))
    if _names_existing(typed):
        kept.pop(FILE_SYSTEM_TYPE, None)
    # A mistyped key is corrected later: it must not meet the one that it means.
    # The one key of the file system is no mistyped form of the other, which may be kept alone.
    meant = {key_meant(key, (*kept, FILE_SYSTEM, FILE_SYSTEM_TYPE)) for key in typed}
    kept = {key: value for key, value in kept.items() if key not in meant}
    return _pairs(kept | dict(typed) | {RESUME_FROM: f"{saved.run_id}{at}"})


def _names_existing(typed: Mapping[str, str]) -> bool:
    """Whether a file system that exists was typed, which has a type already."""
    keys = (FILE_SYSTEM, FILE_SYSTEM_TYPE)
    return any(
        key_meant(key, keys) == FILE_SYSTEM and not is_size(value) for key, value in typed.items()
    )


def _kept(saved: SavedRun) -> dict[str, str]:
    request = saved.request
    is_range = request.min_nodes is not None
    nodes = f"{request.min_nodes}:{request.nodes}" if is_range else str(saved.placement.nodes)
    kept = {
        "nodes": nodes,
        "instance": saved.placement.instance_type,
        **saved.request.overrides,
        **({"image": saved.request.image} if saved.request.image else {}),
    }
    if saved.request.file_system is not None:
        kept[FILE_SYSTEM] = saved.request.file_system.existing_id
    elif (type_name := type_typed(saved.request.file_system_mbps_per_tib)) is not None:
        kept[FILE_SYSTEM_TYPE] = type_name
    if (host := typed_host(saved.request.eks_name)) is not None:
        kept[CLUSTER] = host
    options = typed_job_options(request.job_options)
    of_cluster = (QUEUE, PRIORITY_CLASS) if host is None else ()  # it is not named again
    kept |= {key: value for key, value in options.items() if key not in of_cluster}
    if (every := typed_backup_every(saved.request.backup_every_s)) is not None:
        kept[BACKUP_EVERY] = every
    resolved = saved.request.resolved.training
    # A warm-up is no longer than its run: the longer run must not have a longer one.
    if resolved.warmup_steps == resolved.steps:
        kept.setdefault("warmup_steps", str(resolved.warmup_steps))
    return kept


def _pairs(values: Mapping[str, str]) -> list[str]:
    return [f"{key}={value}" for key, value in values.items()]


def plan_with_returning(plan: Plan, returning: Returning, resolved: Recipe) -> Plan:
    """The plan with what comes back before training, and what that means."""
    notes = []
    if returning.resumed is not None:
        notes += _resume_notes(returning.resumed, returning.step, plan, resolved)
    if returning.weights is not None:
        notes.append(f"starts from the trained model of run {returning.weights.run_id}")
    if returning.files:
        size = returning.num_bytes / _GB
        told = f"{size:,.1f} GB" if size >= 0.1 else f"{returning.num_bytes / 1e6:,.1f} MB"
        notes.append(f"{told} come back from the artifacts bucket to the file system first")
    return plan.model_copy(update={"warnings": [*notes, *plan.warnings]}) if notes else plan


def _resume_notes(saved: SavedRun, step: int, plan: Plan, resolved: Recipe) -> list[str]:
    total = resolved.training.steps
    what = f"a backup of {saved.run_id}" if is_backup(saved.manifest) else saved.run_id
    notes = [f"resumes from {what} at step {step:,}: steps {step + 1:,} to {total:,} are trained"]
    if is_backup(saved.manifest):
        notes.append("what that run trained after its newest backup is not saved")
    before = saved.request.resolved
    if falls_to_its_end(resolved) and total != before.training.steps:
        notes.append(
            f"schedule={resolved.training.schedule} falls to the last step: at step {step + 1:,} "
            f"the learning rate becomes what a run of {total:,} steps has there, so the result is "
            f"not that of one run of {total:,} steps; runs with schedule=constant or step are "
            "continued exactly"
        )
    now = Placement(nodes=plan.nodes, instance_type=plan.instance_type)
    if now != saved.placement:
        notes.append(
            f"the checkpoint was written on {saved.placement.nodes} x "
            f"{saved.placement.instance_type} and is spread over {plan.nodes} x "
            f"{plan.instance_type}: the order of samples stays, figures differ by rounding, and "
            "dropout and batch statistics are each rank's own"
        )
    return notes

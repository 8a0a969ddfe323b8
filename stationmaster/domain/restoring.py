"""What a run brings back of another one's result before it trains, and where that lies then. Pure.

    OUTPUT/restored/checkpoint/step-N/   the checkpoint to resume from; the trainer moves it
    OUTPUT/restored/model/               the model whose weights are the first ones
    OUTPUT/output/                       what a custom command had written, where it writes again
    OUTPUT/restored/restored.json        the order; written last: without it nothing is complete

OUTPUT is the trainer's output directory. Below `restored` the names are those of the result. Many
programs look for a checkpoint where they write, and one that saves nothing new loses nothing.
"""

from __future__ import annotations

from typing import Final

from pydantic import Field, model_validator

from stationmaster.domain.checkpoints import DESCRIPTION, step_of
from stationmaster.domain.errors import PermanentError
from stationmaster.domain.frozen import Frozen
from stationmaster.domain.ids import RunId
from stationmaster.domain.results import (
    CHECKPOINT,
    MODEL,
    OUTPUT,
    ResultFile,
    ResultManifest,
    checkpoint_directory,
    is_backup,
)

DIRECTORY: Final = "restored"
MARKER: Final = "restored.json"
# The configuration and tokenizer of the checkpoint's model.
_DESCRIPTION: Final = f"{CHECKPOINT}/{DESCRIPTION}/"


class ResumePoint(Frozen):
    """A checkpoint in a run's result."""

    run_id: RunId
    step: int = Field(ge=0)

    @property
    def directory(self) -> str:
        """Its place in the output directory once it was brought back."""
        return f"{DIRECTORY}/{checkpoint_directory(self.step)}"


class RestoringOrder(Frozen):
    """What is brought back for a run: a checkpoint, a model or one of each, or an output."""

    run_id: RunId
    """The run that needs it."""
    checkpoint: ResumePoint | None = None
    model_of: RunId | None = None
    output_of: RunId | None = None
    manifests: dict[RunId, str] = {}
    """The SHA-256 of the manifest of each result, as it was verified."""

    @model_validator(mode="after")
    def _something(self) -> RestoringOrder:
        if not self.sources():
            raise ValueError("no checkpoint, model or output is asked for")
        return self

    def by_source(self) -> dict[RunId, RestoringOrder]:
        """Split it by the run whose result is needed: a pod reaches one result only."""
        sources = self.sources()
        return {
            source: self.model_copy(
                update={part: None for part, of in sources.items() if of != source}
            )
            for source in sources.values()
        }

    def sources(self) -> dict[str, RunId]:
        """Return the run that each part is of, for the parts that are asked for."""
        checkpoint_of = self.checkpoint.run_id if self.checkpoint is not None else None
        of = {
            "checkpoint": checkpoint_of,
            "model_of": self.model_of,
            "output_of": self.output_of,
        }
        return {part: run_id for part, run_id in of.items() if run_id is not None}


def model_directory() -> str:
    """Name the place of a model in the output directory once it was brought back."""
    return f"{DIRECTORY}/{MODEL}"


def saved_step(manifest: ResultManifest) -> int | None:
    """Return the step whose checkpoint a result has, or None."""
    step = step_of(manifest.checkpoint_source.rpartition("/")[2])
    return step if step is not None and _below(manifest, f"{checkpoint_directory(step)}/") else None


def checkpoint_files(manifest: ResultManifest, step: int) -> list[ResultFile]:
    """List the files of a step's checkpoint, and what describes its model.

    Raises:
        PermanentError: the result has no checkpoint of that step.
    """
    files = _below(manifest, f"{checkpoint_directory(step)}/")
    if not files:
        raise PermanentError(
            f"the result of run {manifest.run_id} has no checkpoint of step {step}; "
            f"{_what_there_is(manifest)}"
        )
    return [*files, *_below(manifest, _DESCRIPTION)]


def model_files(manifest: ResultManifest) -> list[ResultFile]:
    """List the files of the trained model.

    Raises:
        PermanentError: the result has no model.
    """
    files = _below(manifest, f"{MODEL}/")
    if not files:
        why = f"the run {manifest.outcome} before its last step"
        if is_backup(manifest):
            why = "it is a backup of while the run trained"
        elif manifest.program and manifest.outcome == "succeeded":
            why = "none was made of what its program has saved"
        raise PermanentError(
            f"the result of run {manifest.run_id} has no trained model, because {why}; "
            f"{_what_there_is(manifest)}"
        )
    return files


def output_files(manifest: ResultManifest) -> list[ResultFile]:
    """List what a custom command has written.

    Raises:
        PermanentError: it has written nothing.
    """
    files = _below(manifest, f"{OUTPUT}/")
    if not files:
        raise PermanentError(
            f"run {manifest.run_id} has saved nothing to resume from: its command wrote nothing "
            "below $STATIONMASTER_OUTPUT_DIR"
        )
    return files


def _below(manifest: ResultManifest, prefix: str) -> list[ResultFile]:
    return [file for file in manifest.files if file.path.startswith(prefix)]


def _what_there_is(manifest: ResultManifest) -> str:
    step = saved_step(manifest)
    if step is not None:
        return f"its checkpoint is of step {step}"
    if _below(manifest, f"{MODEL}/"):
        return "it has a trained model"
    return f"it has {OUTPUT}/" if _below(manifest, f"{OUTPUT}/") else "it has logs only"

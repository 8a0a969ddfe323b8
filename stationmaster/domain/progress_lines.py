"""The lines in which a training container reports, one JSON object each, schema version first.

It imports little of the domain, because the trainer starts with it. A figure that is not finite
travels as a string, "NaN", "Infinity" or "-Infinity" (source: Protocol Buffers, "ProtoJSON
Format"). The bare words NaN and Infinity of Python's json module are read, too.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Annotated, Final, Literal

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    TypeAdapter,
    ValidationError,
)

from stationmaster.domain.frozen import LATE, Frozen
from stationmaster.domain.outside import Count, Moment

SCHEMA_VERSION: Final = 1
_NOT_FINITE: Final = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


def _number(value: object) -> object:
    return _NOT_FINITE.get(value, value) if isinstance(value, str) else value


def _milliseconds(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds")


Kind = Literal[
    "preparing",
    "started",
    "progress",
    "evaluated",
    "checkpoint_saved",
    "resumed",
    "finished",
    "failed",
]
Figure = Annotated[float, BeforeValidator(_number)]
"""A number that may be nan or infinite."""
_At = Annotated[Moment, PlainSerializer(_milliseconds, when_used="json")]


class PrintedLine(Frozen, strict=True, ser_json_inf_nan="strings"):
    """The fields that every line begins with; the writer fills in `run_id`, `seq` and `at`."""

    stationmaster: Literal[1] = SCHEMA_VERSION
    kind: str
    run_id: str | None = None
    seq: Count | None = None
    """A number that grows within a run, over restarts too."""
    at: _At | None = None

    def text(self) -> str:
        """Write the line without its end: the head, and every field that was given."""
        head = self.model_copy(update={"stationmaster": SCHEMA_VERSION, "kind": self.kind})
        return head.model_dump_json(exclude_unset=True)


class PreparingLine(PrintedLine):
    """The trainer has not taken its first step, and waits for this."""

    kind: Literal["preparing"] = "preparing"
    waits_for: str


class StartedLine(PrintedLine):
    """The trainer is up on every rank; the line says what it trains on what data."""

    model_config = ConfigDict(extra="allow")

    kind: Literal["started"] = "started"
    total_steps: Count
    recipe: str = ""
    world_size: Count = 0
    num_parameters: Count = 0
    device: str = ""
    parallelism: str = ""
    global_batch_size: Count | None = None
    micro_batch_size: Count | None = None
    grad_accumulation_steps: Count | None = None
    steps_per_epoch: Figure | None = None
    dataset: str | None = None


class ProgressLine(PrintedLine):
    """Figures of one step, or means since the line before."""

    kind: Literal["progress"] = "progress"
    step: Count
    total_steps: Count
    loss_nats: Figure | None
    """None of a program that tells no loss."""
    tokens_per_s: Figure | None = None
    samples_per_s: Figure | None = None
    learning_rate: Figure | None = None
    grad_norm: Figure | None = None
    mfu: Figure | None = None
    step_time_s: Figure | None = None
    memory_gib: Figure | None = None
    gpu_use: Figure | None = None
    """The part of the time, 0 to 1, in which the idlest GPU ran a kernel."""
    data_wait: Figure | None = None
    """The part of the time, 0 to 1, in which the rank that waits longest waited for data."""
    slowest: Figure | None = None
    """How many times as long as the median rank the slowest one computes, waits apart."""
    slowest_rank: Count | None = None
    slowest_node: str = ""


class EvaluatedLine(PrintedLine):
    """Means over the held-out samples; `targets` is their number of tokens or images."""

    kind: Literal["evaluated"] = "evaluated"
    step: Count
    total_steps: Count | None = None
    loss_nats: Figure
    perplexity: Figure | None = None
    targets: Count | None = None
    top1: Figure | None = None
    top5: Figure | None = None


class CheckpointSavedLine(PrintedLine):
    """A checkpoint is complete; training stood still for `stall_s` of its `duration_s`."""

    kind: Literal["checkpoint_saved"] = "checkpoint_saved"
    step: Count
    path: str = ""
    size_bytes: Count | None = None
    stall_s: Figure | None = None
    duration_s: Figure | None = None
    free_bytes: Count | None = None
    """What the file system has left after it."""


class ResumedLine(PrintedLine):
    """Training continues from a checkpoint; `passed_over` says why newer ones were not used."""

    kind: Literal["resumed"] = "resumed"
    step: Count
    total_steps: Count | None = None
    samples_seen: Count | None = None
    path: str = ""
    passed_over: str = ""


class Sample(Frozen, strict=True):
    """A text of the data, and what the trained language model writes after it."""

    prompt: str
    text: str


class FinishedLine(PrintedLine):
    """The last step was taken, and everything that training leaves is written."""

    kind: Literal["finished"] = "finished"
    step: Count
    total_steps: Count | None = None
    loss_nats: Figure | None = None
    samples_seen: Count | None = None
    tokens_seen: Count | None = None
    model_path: str = ""
    """The directory of the trained model, for trainers that write one."""
    best_step: Count | None = None
    """The step of the best checkpoint by evaluation, which the model is of; None for the last."""
    samples: tuple[Sample, ...] = ()


class FailedLine(PrintedLine):
    """The trainer cannot continue; `restarting` where its agent starts it again."""

    kind: Literal["failed"] = "failed"
    error: str = ""
    """The name of the error's class."""
    reason: str = ""
    """A sentence; other trainers may call it `message`."""
    message: str = ""
    step: Count | None = None
    restarting: bool = False


class SmokeLine(PrintedLine):
    """The last line of a rank of `training.smoke`; no relay reads it.

    It has the losses of all steps in order.
    """

    kind: Literal["smoke"] = "smoke"
    rank: Count
    world_size: Annotated[int, Field(ge=1)]
    node: str
    device: str
    losses_nats: tuple[Figure, ...]
    resumed_from_step: int
    checkpoint_bytes: int


Line = Annotated[
    PreparingLine
    | StartedLine
    | ProgressLine
    | EvaluatedLine
    | CheckpointSavedLine
    | ResumedLine
    | FinishedLine
    | FailedLine,
    Field(discriminator="kind"),
]

_LINE: Final[TypeAdapter[Line]] = TypeAdapter(Line, config=LATE)


def read_line(text: str) -> Line | None:
    """Read the line in `text`, behind whatever prefix a launcher adds, or None. Never raises.

    A field of a wrong type or out of range is left out. Without a field that its kind needs, or
    with another schema version, the text is no line of ours.
    """
    start = text.find("{")
    if start < 0 or '"stationmaster"' not in text:
        return None
    try:
        line = _LINE.validate_json(text[start:])
    except ValidationError as error:
        wrong = [place["loc"] for place in error.errors(include_url=False, include_context=False)]
        if not all(len(loc) > 1 for loc in wrong):
            return None  # no JSON object, or of no kind that we know
        sound = _without(json.loads(text[start:]), {str(loc[1]) for loc in wrong})
        try:
            line = _LINE.validate_json(sound)
        except ValidationError:
            return None
    return line if "stationmaster" in line.model_fields_set else None


def _without(fields: dict[str, object], names: set[str]) -> str:
    return json.dumps({name: value for name, value in fields.items() if name not in names})

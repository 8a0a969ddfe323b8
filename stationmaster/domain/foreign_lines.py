"""Progress lines of other trainers, so that unmodified containers stream too. Pure.

Understood: the FSDP pre-training examples (old and new), Megatron-LM, llama-cookbook's tqdm, the
CPU DDP toy, the ImageNet elastic example and torchtitan. Any other line is None, never an error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from stationmaster.domain.outside import MAX_COUNT, plausible


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A progress line; `total_steps` is None where the format does not say it.

    `loss_nats` is None where the trainer prints nan or inf, or no loss at all (`has_loss`).
    """

    step: int
    loss_nats: float | None
    has_loss: bool = True
    total_steps: int | None = None
    figures: Mapping[str, float | None] = field(default_factory=dict)
    """The further figures that are in the line, by the names that an event has."""


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint is complete."""

    step: int
    path: str


@dataclass(frozen=True, slots=True)
class Resumed:
    """A checkpoint was loaded."""

    step: int
    path: str


@dataclass(frozen=True, slots=True)
class Saving:
    """A checkpoint is being written to `path`; a later line says when it is complete."""

    path: str


@dataclass(frozen=True, slots=True)
class SavingDone:
    """The checkpoint announced before is complete."""


@dataclass(frozen=True, slots=True)
class TotalSteps:
    """The trainer says how many steps it will take."""

    total_steps: int


Finding = Progress | Saved | Resumed | Saving | SavingDone | TotalSteps

# Digits are bounded so that no line can cost more than its length.
_F: Final = r"([-+]?[\d.,]{1,30}(?:[eE][-+]?\d{1,3})?|[-+]?(?:nan|inf))"
_N: Final = r"(\d{1,15})"

_FSDP = re.compile(
    rf"\bBatch {_N} Loss: {_F}, Speed: {_F} samples/sec"
    rf"(?:, Tokens/s: {_F})?(?:, TFLOPS/GPU: {_F})?(?:, MFU: {_F})?, lr: {_F}"
)
_FSDP_WRITING = re.compile(r"Writing checkpoint to (\S{1,1000})\.(?:\s|$)")
_FSDP_LOADED = re.compile(
    rf"Checkpoint loaded from (\S{{0,1000}}?-{_N}steps\S{{0,200}}?)\.(?:\s|$)"
)
_FSDP_STEP = re.compile(rf"-{_N}steps\b")

_MEGATRON = re.compile(rf"\biteration\s+{_N}\s*/\s*{_N}\s*\|(.*)$")
_MEGATRON_SAVED = re.compile(
    rf"successfully saved checkpoint from iteration\s+{_N}(?: to (\S{{1,1000}}))?"
)
_MEGATRON_LOADED = re.compile(
    rf"successfully loaded checkpoint from (\S{{1,1000}}).{{0,60}}? at iteration {_N}"
)

_COOKBOOK = re.compile(
    rf"Training Epoch: {_N}/{_N}, step {_N}/{_N} completed \(loss: (?:tensor\()?{_F}"
)

_DDP = re.compile(
    rf"\[(?:RANK|GPU) ?{_N}\] Epoch {_N} \| Batchsize: {_N} \| Steps: {_N}(?: \| Loss: {_F})?"
)
_DDP_SAVED = re.compile(rf"\bEpoch {_N} \| Training snapshot saved at (\S{{1,1000}})")
_DDP_RESUMED = re.compile(rf"Resuming training from snapshot at Epoch {_N}")

_IMAGENET = re.compile(rf"Epoch: ?\[{_N}\]\[ *{_N}/{_N}\]\s+Time\s+{_F}.{{0,200}}?\bLoss\s+{_F}")

# Its evaluations print "validate step:", with a loss that is not training's.
_TITAN = re.compile(rf"(?<!validate )\bstep: *{_N}  +(.*\bloss: .*)$")
# Newer versions name the total before they say where they start.
_TITAN_TOTAL = re.compile(
    rf"\b(?:Training starts at step|Trainer is initialized with)\b.{{0,300}}?\btotal steps:? {_N}"
)
_TITAN_LOADED = re.compile(rf"\bLoading the checkpoint from (\S{{0,1000}}?step-{_N})\.?(?:\s|$)")
_TITAN_FIELD = re.compile(rf"\b(loss|grad_norm|memory|tps|mfu|lr): *{_F}")


def read(text: str) -> Finding | None:
    """Return what the line says about training, or None."""
    # A look for a word is far cheaper than a pattern, and most lines have none of these.
    if "Batch " in text and (match := _FSDP.search(text)):
        return _fsdp(match)
    if "iteration" in text:
        return _megatron(text)
    if "Epoch" in text:
        return _epochs(text)
    if "step" in text:
        return _titan(text)
    if "heckpoint" in text:
        return _fsdp_checkpoint(text)
    return None


def number(text: str | None) -> float | None:
    """Read a plausible number, with thousands separators allowed, or None."""
    return plausible(_parsed(text))


def _parsed(text: str | None) -> float | None:
    """Read a number that may be nan or infinite, or None."""
    if text is None:
        return None
    try:
        return float(text.replace(",", "").rstrip("."))
    except ValueError:
        return None


def _fsdp(match: re.Match[str]) -> Progress | None:
    step, loss, speed, tokens, _tflops, mfu, lr = match.groups()
    return _progress(
        step=int(step),
        loss=loss,
        samples_per_s=number(speed),
        tokens_per_s=number(tokens),
        mfu=_fraction(number(mfu)),
        learning_rate=number(lr),
    )


def _fsdp_checkpoint(text: str) -> Finding | None:
    if match := _FSDP_WRITING.search(text):
        return Saving(match[1])
    if "Completed checkpoint." in text:
        return SavingDone()
    return None


def checkpoint_step(path: str) -> int | None:
    """Read the step in the directory name `<model type>-<step>steps`."""
    found = _FSDP_STEP.findall(path)
    return int(found[-1]) if found else None


def _megatron(text: str) -> Finding | None:
    if match := _MEGATRON.search(text):
        # Fields come and go with Megatron's flags, so they are read as a bag.
        fields: dict[str, str] = {}
        for part in match[3].split("|"):
            key, colon, value = part.partition(":")
            if colon:
                fields[key.strip()] = value.strip()
        elapsed_ms = number(fields.get("elapsed time per iteration (ms)"))
        step_time_s = elapsed_ms / 1000 if elapsed_ms else None
        batch = number(fields.get("global batch size"))
        return _progress(
            step=int(match[1]),
            total_steps=int(match[2]),
            loss=fields.get("lm loss"),
            learning_rate=number(fields.get("learning rate")),
            grad_norm=number(fields.get("grad norm")),
            step_time_s=step_time_s,
            samples_per_s=batch / step_time_s if batch and step_time_s else None,
        )
    if match := _MEGATRON_SAVED.search(text):
        return Saved(int(match[1]), match[2] or "")
    if match := _MEGATRON_LOADED.search(text):
        return Resumed(int(match[2]), match[1])
    return None


def _epochs(text: str) -> Finding | None:
    if match := _COOKBOOK.search(text):
        epoch, epochs, step, steps = (int(group) for group in match.groups()[:4])
        # The bar counts steps from 0 within an epoch that counts from 1.
        return _progress(
            step=(epoch - 1) * steps + step + 1, total_steps=epochs * steps, loss=match[5]
        )
    if match := _IMAGENET.search(text):
        epoch, batch, batches = (int(group) for group in match.groups()[:3])
        return _progress(step=epoch * batches + batch, loss=match[5], step_time_s=number(match[4]))
    # The DDP toy reports once an epoch: its epochs are its steps. Every rank prints, rank 0 counts.
    if match := _DDP.search(text):
        return _ddp(match) if int(match[1]) == 0 else None
    if match := _DDP_SAVED.search(text):
        return Saved(int(match[1]), match[2])
    if match := _DDP_RESUMED.search(text):
        return Resumed(int(match[1]), "")
    return None


def _ddp(match: re.Match[str]) -> Progress | None:
    """Read a line; first versions print no loss, only how far training is."""
    step, loss = int(match[2]), match[5]
    if loss is None and step < MAX_COUNT:
        return Progress(step=step, loss_nats=None, has_loss=False)
    return _progress(step=step, loss=loss)


def _titan(text: str) -> Finding | None:
    if match := _TITAN.search(text):
        fields = dict(_TITAN_FIELD.findall(match[2]))
        mfu = number(fields.get("mfu"))
        # tps is per device there, and the line does not say how many: left out rather than wrong.
        return _progress(
            step=int(match[1]),
            loss=fields.get("loss"),
            grad_norm=number(fields.get("grad_norm")),
            memory_gib=number(fields.get("memory")),
            mfu=mfu / 100 if mfu is not None else None,
            learning_rate=number(fields.get("lr")),
        )
    if match := _TITAN_TOTAL.search(text):
        return TotalSteps(int(match[1]))
    if match := _TITAN_LOADED.search(text):
        return Resumed(int(match[2]), match[1])
    if match := _FSDP_LOADED.search(text):
        return Resumed(int(match[2]), match[1])
    return _fsdp_checkpoint(text)


def _progress(
    *, step: int, loss: str | None, total_steps: int | None = None, **figures: float | None
) -> Progress | None:
    if _parsed(loss) is None or not 0 <= step < MAX_COUNT:
        return None
    return Progress(
        step=step,
        loss_nats=number(loss),
        total_steps=total_steps if total_steps is not None and total_steps < MAX_COUNT else None,
        figures={name: plausible(figure) for name, figure in figures.items()},
    )


def _fraction(value: float | None) -> float | None:
    """Return MFU as a fraction; some versions print percent."""
    if value is None:
        return None
    return value / 100 if value > 1 else value

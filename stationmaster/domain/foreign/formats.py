"""The formats of other trainers, in three parts, each of which reads one line by itself. Pure.

Those that count steps: FSDP examples, Megatron-LM and what is like it, torchtitan, nanoGPT,
DeepSpeed, and "step N ... loss X" of anybody's. Those that count within epochs: llama-cookbook, DDP
toy, ImageNet, MNIST, minGPT, accelerate's examples. And progress bars of tqdm and rich, with what
is printed beside them: Hugging Face's Trainer (TRL, accelerate's and axolotl's, too) prints a dict
of figures and a bar without a title; Lightning a bar titled "Epoch N" with its figures behind it;
torchtune a bar whose title has epoch, step and loss.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Final

from stationmaster.domain.foreign.findings import (
    COUNT,
    NUMBER,
    Bar,
    Evaluated,
    Finding,
    InEpoch,
    Logged,
    Progress,
    Resumed,
    Saved,
    Saving,
    SavingDone,
    TotalSteps,
    evaluated,
    number,
    parsed,
    progress,
)
from stationmaster.domain.outside import MAX_COUNT

_FSDP = re.compile(
    rf"\bBatch {COUNT} Loss: {NUMBER}, Speed: {NUMBER} samples/sec"
    rf"(?:, Tokens/s: {NUMBER})?(?:, TFLOPS/GPU: {NUMBER})?(?:, MFU: {NUMBER})?, lr: {NUMBER}"
)
_FSDP_WRITING = re.compile(r"Writing checkpoint to (\S{1,1000})\.(?:\s|$)")
_FSDP_LOADED = re.compile(
    rf"Checkpoint loaded from (\S{{0,1000}}?-{COUNT}steps\S{{0,200}}?)\.(?:\s|$)"
)
_FSDP_STEP = re.compile(rf"-{COUNT}steps\b")

_MEGATRON = re.compile(rf"\biteration\s+{COUNT}\s*/\s*{COUNT}\s*\|(.*)$")
_MEGATRON_SAVED = re.compile(
    rf"[Ss]uccessfully saved checkpoint from iteration\s+{COUNT}(?: to (\S{{1,1000}}))?"
)
_MEGATRON_LOADED = re.compile(
    rf"successfully loaded checkpoint from (\S{{1,1000}}).{{0,60}}? at iteration {COUNT}"
)

# NeMo's checkpoints have the number of their last step in their names. Source: NeMo r2.5.0.
_NEMO_STEP = re.compile(rf"\bstep={COUNT}\b")
_NEMO_LOADED = re.compile(
    rf"Restored all states from the checkpoint at (\S{{1,999}}?step={COUNT}\S*)"
)

# Its evaluations print "validate step:", with a loss that is not training's.
_TITAN = re.compile(rf"(?<!validate )\bstep: *{COUNT}  +(.*\bloss: .*)$")
# Newer versions name the total before they say where they start.
_TITAN_TOTAL = re.compile(
    r"\b(?:Training starts at step|Trainer is initialized with)\b.{0,300}?"
    rf"\btotal steps:? {COUNT}"
)
_TITAN_LOADED = re.compile(rf"\bLoading the checkpoint from (\S{{0,1000}}?step-{COUNT})\.?(?:\s|$)")
_TITAN_FIELD = re.compile(rf"\b(loss|grad_norm|memory|tps|mfu|lr): *{NUMBER}")

# nanoGPT, and nanochat's "step 00010/00100 (10.00%) | loss: ...".
_NANOGPT = re.compile(rf"^(?:\[\w+\]:? ?)?iter {COUNT}: loss {NUMBER}, time {NUMBER}ms")
_NANOGPT_VALUED = re.compile(rf"\bstep {COUNT}: train loss {NUMBER}, val loss {NUMBER}")
# Its configuration: a file's text first, then what the command line overrides.
_NANOGPT_TOTAL = re.compile(rf"^(?:Overriding: )?max_iters = {COUNT}\b")
_VALIDATED = re.compile(rf"validation loss at iteration {COUNT} .{{0,80}}?loss value: {NUMBER}")
_TITAN_VALIDATED = re.compile(rf"\bvalidate step: *{COUNT}  +loss: *{NUMBER}")
_DEEPSPEED = re.compile(
    rf"\bsteps: {COUNT} loss: {NUMBER} iter time \(s\): {NUMBER} samples/sec: {NUMBER}"
)
_DEEPSPEED_STEP = re.compile(rf"\[Rank 0\] step={COUNT}, skipped={COUNT}, lr=\[{NUMBER}")
# Anybody's own line: a step, with its total or not, and a loss that is training's, not far behind.
_ANY = re.compile(
    rf"(?<![\w-])(?:global[_ ])?(?:step|iter|iteration)s?[ :=#\[]{{1,4}}{COUNT}"
    rf"(?: ?(?:/|of) ?{COUNT})?(?![\w.]).{{0,120}}?(?<![\w-])(?:train(?:ing)?[_ ])?loss[ :=]{{1,4}}"
    rf"(?:tensor\()?{NUMBER}",
    re.IGNORECASE,
)
_NOT_TRAINING = re.compile(
    r"(?<![A-Za-z])(?:val|valid|validat\w+|eval\w*|test\w*)(?![A-Za-z])|\[(?:rank|gpu) ?[1-9]",
    re.IGNORECASE,
)


def read_steps(text: str) -> Finding | None:
    """Return what a line says that counts steps, or None."""
    # A look for a word is far cheaper than a pattern, and most lines have none of these.
    if "Batch " in text and (match := _FSDP.search(text)):
        return _fsdp(match)
    if "iteration" in text and (found := _megatron(text)):
        return found
    if "iter " in text and (match := _NANOGPT.search(text)):
        step_time_s = _seconds(match[3])
        return progress(
            step=int(match[1]), loss=match[2], step_time_s=step_time_s, of_one_rank=True
        )
    if "step" in text and (found := _titan(text) or _steps(text)):
        return found
    if "oss" in text and (match := _ANY.search(text)) and not _NOT_TRAINING.search(text):
        total = int(match[2]) if match[2] else None
        return progress(step=int(match[1]), total_steps=total, loss=match[3])
    if "heckpoint" in text:
        return _fsdp_checkpoint(text)
    if match := _NANOGPT_TOTAL.match(text):
        return TotalSteps(int(match[1]))
    return None


def _steps(text: str) -> Finding | None:
    if match := _NANOGPT_VALUED.search(text):
        return evaluated(int(match[1]), match[3])
    if match := _TITAN_VALIDATED.search(text):
        return evaluated(int(match[1]), match[2])
    if match := _DEEPSPEED.search(text):
        return progress(
            step=int(match[1]),
            loss=match[2],
            step_time_s=number(match[3]),
            samples_per_s=number(match[4]),
        )
    if (match := _DEEPSPEED_STEP.search(text)) and int(match[1]) < MAX_COUNT:
        figures = {"learning_rate": number(match[3])}
        return Progress(
            step=int(match[1]), loss_nats=None, has_loss=False, figures=figures, of_one_rank=True
        )
    return None


def _seconds(milliseconds: str) -> float | None:
    value = number(milliseconds)
    return value / 1000 if value is not None else None


def _fsdp(match: re.Match[str]) -> Progress | None:
    step, loss, speed, tokens, _tflops, mfu, lr = match.groups()
    return progress(
        step=int(step),
        loss=loss,
        samples_per_s=number(speed),
        tokens_per_s=number(tokens),
        mfu=_fraction(number(mfu)),
        learning_rate=number(lr),
    )


def _fsdp_checkpoint(text: str) -> Finding | None:
    if match := _NEMO_LOADED.search(text):
        return Resumed(int(match[2]) + 1, match[1])
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
        step_time_s = _seconds(fields.get("elapsed time per iteration (ms)", "")) or number(
            fields.get("train_step_timing in s")
        )
        batch = number(_first(fields, "global batch size", "global_batch_size"))
        step = number(fields.get("global_step"))  # NeMo counts from 0, and iterations by epoch
        return progress(
            step=int(match[1]) if step is None else int(step) + 1,
            total_steps=int(match[2]) + (step is not None),
            loss=_first(fields, "lm loss", "loss", "reduced_train_loss"),
            learning_rate=number(_first(fields, "learning rate", "lr")),
            grad_norm=number(_first(fields, "grad norm", "grad_norm")),
            step_time_s=step_time_s,
            samples_per_s=batch / step_time_s if batch and step_time_s else None,
            of_one_rank=True,
        )
    if match := _VALIDATED.search(text):
        return evaluated(int(match[1]), match[2])
    if match := _MEGATRON_SAVED.search(text):
        named = _NEMO_STEP.search(match[2] or "")
        return Saved(int(named[1]) + 1 if named else int(match[1]), match[2] or "")
    if match := _MEGATRON_LOADED.search(text):
        return Resumed(int(match[2]), match[1])
    return None


def _first(fields: Mapping[str, str], *names: str) -> str | None:
    return next((fields[name] for name in names if name in fields), None)


def _titan(text: str) -> Finding | None:
    if match := _TITAN.search(text):
        fields = dict(_TITAN_FIELD.findall(match[2]))
        mfu = number(fields.get("mfu"))
        # tps is per device there, and the line does not say how many: left out rather than wrong.
        return progress(
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
    return _fsdp_checkpoint(text) if "heckpoint" in text else None


def _fraction(value: float | None) -> float | None:
    """Return MFU as a fraction; some versions print percent."""
    if value is None:
        return None
    return value / 100 if value > 1 else value


_COOKBOOK = re.compile(
    rf"Training Epoch: {COUNT}/{COUNT}, step {COUNT}/{COUNT} completed "
    rf"\(loss: (?:tensor\()?{NUMBER}"
)
_DDP = re.compile(
    rf"\[(?:RANK|GPU) ?{COUNT}\] Epoch {COUNT} \| Batchsize: {COUNT} \| Steps: {COUNT}"
    rf"(?: \| Loss: {NUMBER})?"
)
_DDP_SAVED = re.compile(rf"\bEpoch {COUNT} \| Training snapshot saved at (\S{{1,1000}})")
_DDP_RESUMED = re.compile(rf"Resuming training from snapshot at Epoch {COUNT}")
_IMAGENET = re.compile(
    rf"Epoch: ?\[{COUNT}\]\[ *{COUNT}/{COUNT}\]\s+Time\s+{NUMBER}.{{0,200}}?\bLoss\s+{NUMBER}"
)
# pytorch/examples mnist, with "loss=" in the operators' old examples; it counts samples.
_MNIST = re.compile(
    rf"Train Epoch: {COUNT} \[ *{COUNT}/{COUNT} \(.{{1,8}}\)\]\s+(Loss: |[Ll]oss[:=] ?){NUMBER}"
)
_MINGPT = re.compile(
    rf"\[(?:GPU|RANK){COUNT}\] Epoch {COUNT} \| Iter {COUNT} \| (Train|Eval) Loss {NUMBER}"
)
# The examples of accelerate print once an epoch what evaluation gave, on one process a node.
_ACCELERATE = re.compile(rf"(?:^|[-:>] ?)epoch {COUNT}: \{{'")


def read_epochs(text: str) -> Finding | None:
    """Return what a line with "poch" says of training, or None."""
    if match := _COOKBOOK.search(text):
        epoch, epochs, step, steps = (int(group) for group in match.groups()[:4])
        # The bar counts steps from 0 within an epoch that counts from 1.
        return progress(
            step=(epoch - 1) * steps + step + 1, total_steps=epochs * steps, loss=match[5]
        )
    if match := _IMAGENET.search(text):
        epoch, batch, batches = (int(group) for group in match.groups()[:3])
        return progress(step=epoch * batches + batch, loss=match[5], step_time_s=number(match[4]))
    if match := _MNIST.search(text):
        epoch, seen, samples = (int(group) for group in match.groups()[:3])
        step = (epoch - 1) * samples + seen
        # The operators' examples give every rank the same batches; the original has no ranks.
        return progress(step=step, loss=match[5], of_own_batch=match[4] == "Loss: ")
    if match := _MINGPT.search(text):
        return _mingpt(match) if int(match[1]) == 0 else None
    # The DDP toy reports once an epoch: its epochs are its steps. Every rank prints, rank 0 counts.
    if match := _DDP.search(text):
        return _ddp(match) if int(match[1]) == 0 else None
    if match := _DDP_SAVED.search(text):
        return Saved(int(match[1]), match[2])
    if match := _DDP_RESUMED.search(text):
        return Resumed(int(match[1]), "")
    if (match := _ACCELERATE.search(text)) and int(match[1]) + 1 < MAX_COUNT:
        return Progress(step=int(match[1]) + 1, loss_nats=None, has_loss=False)
    return None


def _ddp(match: re.Match[str]) -> Progress | None:
    """Read a line; first versions print no loss, only how far training is."""
    step, loss = int(match[2]), match[5]
    if loss is None and step < MAX_COUNT:
        return Progress(step=step, loss_nats=None, has_loss=False)
    return progress(step=step, loss=loss)


def _mingpt(match: re.Match[str]) -> Finding | None:
    if match[4] == "Eval":
        return evaluated(None, match[5]) if int(match[3]) == 0 else None
    epoch, iteration = int(match[2]), int(match[3])
    if parsed(match[5]) is None or max(epoch, iteration) >= MAX_COUNT:
        return None
    return InEpoch(epoch, iteration, number(match[5]))


_BAR: Final = rf"\d{{1,3}}%\|[^|]{{0,100}}\| *{COUNT}/{COUNT} \["
_UNTITLED = re.compile(rf"(?:^|[\]\r])\s*{_BAR}")
_LIGHTNING = re.compile(rf"\bEpoch {COUNT}: +{_BAR}(.{{0,400}})")
_RICH = re.compile(
    rf"\bEpoch {COUNT}/{COUNT} +[\u2578-\u257a\u2501 ]+ +{COUNT}/{COUNT} (.{{0,400}})"
)
_LOSS = re.compile(rf"(?<![A-Za-z_])(?:train_)?loss(?:_step)?[:=] *{NUMBER}")
_TORCHTUNE = re.compile(rf"(?:^|\s){COUNT}\|{COUNT}\|Loss: {NUMBER}")
# {'loss': 2.5, ...}; newer versions quote the numbers, too.
_DICT = re.compile(r"\{'[A-Za-z_]{1,40}': .{1,2000}?\}")
_NAMES: Final = {"grad_norm": "grad_norm", "learning_rate": "learning_rate"}


def read_bars(text: str) -> Finding | None:
    """Return what a line with a bar or a dict of figures says of training, or None."""
    if "loss': " in text and (match := _DICT.search(text)):
        return _dict(match[0])
    if match := _TORCHTUNE.search(text):
        return progress(step=int(match[2]), loss=match[3])
    if "Epoch " in text:
        return _lightning(text)
    found = [(int(step), int(total)) for step, total in _UNTITLED.findall(text)]
    if found and max(found[-1]) < MAX_COUNT:
        return Bar(*found[-1])
    return None


def _lightning(text: str) -> Finding | None:
    """Read the newest state of a bar; its epochs count from 0, and rich's total is the last one."""
    if rows := list(_RICH.finditer(text)):
        epoch, last, step, steps = (int(group) for group in rows[-1].groups()[:4])
        total = (last + 1) * steps
        loss = _LOSS.search(rows[-1][5])
    elif rows := list(_LIGHTNING.finditer(text)):
        epoch, step, steps = (int(group) for group in rows[-1].groups()[:3])
        total = None
        loss = _LOSS.search(rows[-1][4])
    else:
        return None
    if loss is None:
        return None
    # Anybody's bar may have this title; the version of the logger is Lightning's, on rank 0.
    is_lightning = "v_num" in rows[-1][0]
    return progress(
        step=epoch * steps + step, total_steps=total, loss=loss[1], of_one_rank=is_lightning
    )


def _dict(text: str) -> Finding | None:
    try:
        said = ast.literal_eval(_NOT_LITERAL.sub(r"'\1'", text))
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    if not isinstance(said, dict):
        return None
    figures = {str(name): str(value) for name, value in said.items()}
    loss = figures.get("loss") or figures.get("train_loss")
    if parsed(loss) is not None:
        return Logged(
            number(loss),
            {ours: number(figures.get(theirs)) for theirs, ours in _NAMES.items()},
            epoch=number(figures.get("epoch")),
            of_one_rank={"learning_rate", "epoch"} <= figures.keys(),  # as the Trainer's dict
        )
    if parsed(figures.get("eval_loss")) is not None:
        return Evaluated(None, number(figures["eval_loss"]))
    return None


_NOT_LITERAL: Final = re.compile(r"(?<![\w'])(nan|-?inf)(?![\w'])")

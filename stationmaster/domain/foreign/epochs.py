"""Formats that count within epochs: llama-cookbook, DDP toy, ImageNet, MNIST, minGPT, accelerate's
examples. Pure.
"""

from __future__ import annotations

import re

from stationmaster.domain.foreign.findings import (
    COUNT,
    NUMBER,
    Finding,
    InEpoch,
    Progress,
    Resumed,
    Saved,
    evaluated,
    number,
    parsed,
    progress,
)
from stationmaster.domain.outside import MAX_COUNT

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


def read(text: str) -> Finding | None:
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

"""Progress bars of tqdm and rich, and what is printed beside them. Pure.

Hugging Face's Trainer (TRL, accelerate's and axolotl's, too) prints a dict of figures and a bar
without a title; Lightning a bar titled "Epoch N" with its figures behind it; torchtune a bar whose
title has epoch, step and loss.
"""

from __future__ import annotations

import ast
import re
from typing import Final

from stationmaster.domain.foreign.findings import (
    COUNT,
    NUMBER,
    Bar,
    Evaluated,
    Finding,
    Logged,
    number,
    parsed,
    progress,
)
from stationmaster.domain.outside import MAX_COUNT

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


def read(text: str) -> Finding | None:
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

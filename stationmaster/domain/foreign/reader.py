"""Reads the lines of a program in their order: what one says may need what came before it. Pure."""

from __future__ import annotations

import re

from stationmaster.domain.foreign.findings import (
    Bar,
    Evaluated,
    Finding,
    InEpoch,
    Logged,
    Progress,
    TotalSteps,
    number,
)
from stationmaster.domain.foreign.formats import read_bars, read_epochs, read_steps
from stationmaster.domain.outside import MAX_COUNT

# What Hugging Face's Trainer says at level INFO before it begins: enough where no bar is printed.
_EXAMPLES, _BATCH, _STEPS = "Num examples", "Total train batch size", "Total optimization steps"
_SIZE = re.compile(rf"({_EXAMPLES}|{_BATCH}|{_STEPS})[^=]{{0,60}} = ([\d,]{{1,20}})$")


def read(text: str) -> Finding | None:
    """Return what a line says by itself about training, or None; never an error."""
    if ("|" in text or "{" in text or "\u2501" in text) and (found := read_bars(text)):
        return found
    if "poch" in text and (found := read_epochs(text)):
        return found
    return read_steps(text)


class Reader:
    """Reads a program from its first line to its last; memory does not grow with the log."""

    def __init__(self) -> None:
        self._bar: Bar | None = None
        self._sizes: dict[str, float] = {}
        self._step = 0
        self._has_loss = False
        self._epoch: int | None = None
        self._before = self._within = 0

    def read(self, text: str) -> Finding | None:
        """Return what the line says, its step filled in from lines before; None for nothing."""
        if " = " in text and (match := _SIZE.search(text)):
            self._sizes[match[1]] = size = number(match[2]) or 0.0
            return TotalSteps(int(size)) if match[1] == _STEPS and size < MAX_COUNT else None
        match read(text):
            case Bar() as bar:
                return self._moved(bar)
            case Logged() as logged:
                self._has_loss = True
                return self._progress(logged)
            case InEpoch(epoch, iteration, loss):
                if self._epoch is not None and epoch > self._epoch:
                    self._before += self._within + 1
                self._epoch = epoch
                self._within = iteration
                self._step = self._before + iteration
                return Progress(step=self._step, loss_nats=loss)
            case Evaluated(None, loss):
                return Evaluated(self._step, loss)
            case Progress(has_loss=False) if self._bar is not None:
                return None  # the bar knows better
            case Progress() as progress:
                self._step = progress.step
                self._has_loss = self._has_loss or progress.has_loss
                return progress
            case found:
                return found

    def _moved(self, bar: Bar) -> Progress | None:
        """Take the training's bar, which is the first; evaluations have others of other lengths."""
        if self._bar is not None and bar.total_steps != self._bar.total_steps:
            return None
        self._bar, self._step = bar, bar.step
        if self._has_loss:
            return None
        return Progress(step=bar.step, total_steps=bar.total_steps, loss_nats=None, has_loss=False)

    def _progress(self, logged: Logged) -> Progress | None:
        bar = self._bar or self._place(logged.epoch)
        if bar is None:
            return None  # nothing says which step it is
        return Progress(
            step=bar.step,
            total_steps=bar.total_steps,
            loss_nats=logged.loss_nats,
            figures=logged.figures,
            of_one_rank=logged.of_one_rank and self._bar is not None,  # without, one a node prints
        )

    def _place(self, epoch: float | None) -> Bar | None:
        """Return how far training is by its sizes; None where they were not said."""
        examples, batch, steps = (self._sizes.get(each) for each in (_EXAMPLES, _BATCH, _STEPS))
        if not epoch or not examples or not batch or not steps or steps >= MAX_COUNT:
            return None
        return Bar(max(1, round(min(epoch * examples / batch, steps))), int(steps))

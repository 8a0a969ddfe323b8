"""Lines of a pod's log as a person reads them, for `/train logs`.

What a trainer reports in JSON becomes a sentence; every other line stays as its program wrote it.
"""

from __future__ import annotations

from typing import assert_never

from bot.blocks import mrkdwn as md
from bot.blocks import words
from stationmaster.domain.progress_lines import (
    CheckpointSavedLine,
    EvaluatedLine,
    FailedLine,
    FinishedLine,
    Line,
    ProgressLine,
    ResumedLine,
    StartedLine,
    read_line,
)
from stationmaster.domain.sizes import counted


def readable(text: str) -> str:
    """The line, or the sentence for it behind whatever prefix a launcher has put there."""
    line = read_line(text)
    return text if line is None else text[: text.find("{")] + _sentence(line)


def _sentence(line: Line) -> str:
    match line:
        case StartedLine():
            return f"training started: {counted(line.total_steps, 'step')}"
        case ProgressLine():
            speed = f", {md.count(line.tokens_per_s)} tokens/s" if line.tokens_per_s else ""
            return f"{words.step(line)}, {words.loss(line.loss_nats)}{speed}"
        case EvaluatedLine():
            return f"step {line.step:,}, held-out: {words.evaluation(line)}"
        case CheckpointSavedLine() | ResumedLine():
            return f"{line.kind.replace('_', ' ')}: step {line.step:,} in {line.path}"
        case FinishedLine():
            return f"last step {line.step:,} taken"
        case FailedLine():
            return f"failed: {line.message or line.reason or line.error}"
        case _:
            assert_never(line)

"""Lines of a pod's log as people read them, for `/train logs` and for the file that it leaves.

What a trainer reports in JSON becomes a sentence; every other line stays as its program wrote it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, assert_never

from bot.blocks import mrkdwn as md
from bot.blocks import words
from stationmaster.domain.bus import LogTail
from stationmaster.domain.progress_lines import (
    CheckpointSavedLine,
    EvaluatedLine,
    FailedLine,
    FinishedLine,
    Line,
    PreparingLine,
    ProgressLine,
    ResumedLine,
    StartedLine,
    read_line,
)
from stationmaster.domain.sizes import counted

_MAX_PODS: Final = 8
# All code blocks of one answer together; Slack refuses messages of about 13,200 characters.
_CHARACTERS: Final = 10_000
_LINES_PER_POD: Final = 30
_NO_LIMIT: Final = 10**9


def shown(tails: Sequence[LogTail]) -> list[tuple[LogTail, str]]:
    """Choose the pods that an answer has room for, each with its newest lines as a code block."""
    pods = tails[:_MAX_PODS]
    room = min(2_800, _CHARACTERS // max(1, len(pods)))
    return [(tail, md.code_block(_readable(tail)[-_LINES_PER_POD:], room)) for tail in pods]


def is_shortened(tails: Sequence[LogTail]) -> bool:
    """Say whether an answer has no room for all lines."""
    return len(tails) > _MAX_PODS or any(
        block != md.code_block(_readable(tail), _NO_LIMIT, width=_NO_LIMIT)
        for tail, block in shown(tails)
    )


def _readable(tail: LogTail) -> list[str]:
    return [readable(line) for line in tail.lines]


def readable(text: str) -> str:
    """Return the line, or the sentence for it behind a launcher's prefix."""
    line = read_line(text)
    return text if line is None else text[: text.find("{")] + _sentence(line)


def _sentence(line: Line) -> str:
    match line:
        case PreparingLine():
            return f"waits for {line.waits_for}"
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

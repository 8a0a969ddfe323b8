"""Rows of instruction data sets to prompts and responses, in the forms of `instructions`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from stationmaster.domain.errors import BadParameter
from training.data.rows import read_rows

Segment = tuple[str, bool]
"""A text, and whether it is a response, which is learned."""

_EXPECTED: Final = (
    "expected prompt and response, instruction and output, dialogue and summary, or messages"
)
# Source: Stanford Alpaca's prompt, the frame that most instruction data are published for.
_ALPACA: Final = (
    "Below is an instruction that describes a task{paired}. Write a response that appropriately "
    "completes the request.\n\n### Instruction:\n{instruction}\n\n{given}### Response:\n"
)
_ALPACA_PAIRED: Final = ", paired with an input that provides further context"
# Source: llama-cookbook's samsum_dataset.
_SAMSUM: Final = "Summarize this dialog:\n{dialogue}\n---\nSummary:\n"


def read_examples(file: str) -> Iterator[list[Segment]]:
    """Yield the examples of a file, in order.

    Raises:
        BadParameter: a row of another form, named by file and line.
        PermanentError: reading broke off.
    """
    for where, row in read_rows(file):
        if row is not None:
            yield _segments(row, where=where)


def _segments(row: Mapping[str, Any], *, where: str) -> list[Segment]:
    if row.get("messages") is not None:
        return _conversation(row["messages"], where=where)
    if "prompt" in row and "response" in row:
        prompt = _text(row, "prompt", where=where)
        separator = "" if prompt[-1:].isspace() else "\n"
        return [(prompt + separator, False), (_text(row, "response", where=where), True)]
    if "instruction" in row and "output" in row:
        given = str(row.get("input") or "")
        frame = _ALPACA.format(
            paired=_ALPACA_PAIRED if given else "",
            instruction=_text(row, "instruction", where=where),
            given=f"### Input:\n{given}\n\n" if given else "",
        )
        return [(frame, False), (_text(row, "output", where=where), True)]
    if "dialogue" in row and "summary" in row:
        dialogue = _text(row, "dialogue", where=where)
        summary = _text(row, "summary", where=where)
        return [(_SAMSUM.format(dialogue=dialogue), False), (summary, True)]
    raise BadParameter(f"{where} has the keys {', '.join(map(str, row))[:200]}; {_EXPECTED}")


def _conversation(messages: Any, *, where: str) -> list[Segment]:
    segments: list[Segment] = []
    if not isinstance(messages, list):
        raise BadParameter(f"{where}: messages is {type(messages).__name__}, expected a list")
    for message in messages:
        if not isinstance(message, dict) or not {"role", "content"} <= message.keys():
            raise BadParameter(
                f"{where}: {str(message)[:80]!r} is not a message; expected role and content"
            )
        role = str(message["role"])
        segments.append((f"### {role.capitalize()}:\n", False))
        is_response = role == "assistant"
        content = _text(message, "content", where=where)
        segments.append((content if is_response else f"{content}\n\n", is_response))
    if not any(is_response for _, is_response in segments):
        raise BadParameter(f"{where} has no message of the assistant, which is what is learned")
    return segments


def _text(row: Mapping[str, Any], key: str, *, where: str) -> str:
    value = row[key]
    if not isinstance(value, str) or not value.strip():
        raise BadParameter(f"{where}: {key} is {str(value)[:60]!r}, expected a text")
    return value

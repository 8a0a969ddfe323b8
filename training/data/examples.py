"""Rows of instruction data sets to prompts and responses, whatever form the rows have.

Called by `instructions`, whose docstring lists the forms. It knows files and words, and nothing of
tokens.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Final

from stationmaster.domain.errors import BadParameter, PermanentError

Segment = tuple[str, bool]
"""A text, and whether it is a response, that is: learned."""

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
_HUB_FILE: Final = "hf://"


def read_examples(file: str) -> Iterator[list[Segment]]:
    """The examples of a file, in order.

    Raises:
        BadParameter: a row of another form, named by file and line.
        PermanentError: reading broke off.
    """
    try:
        for number, row in _rows(file):
            yield _segments(row, where=f"{file}:{number}")
    except (OSError, EOFError) as exc:
        raise PermanentError(
            f"reading {file} broke off ({exc}); check the file and the network and start again"
        ) from exc


def _rows(file: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Line or row numbers, from 1, and rows."""
    if file.endswith(".parquet"):
        yield from enumerate(_parquet_rows(file), start=1)
    elif file.endswith(".csv"):
        yield from _csv_rows(file)
    else:
        yield from _json_rows(file)


def _json_rows(file: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """One object a line, or one array of them, as Alpaca's own data are."""
    with _open(file) as raw:
        lines = gzip.GzipFile(fileobj=raw) if file.endswith(".gz") else raw
        for number, line in enumerate(lines, start=1):
            where = f"{file}:{number}"
            if number == 1 and line.lstrip().startswith(b"["):
                for index, row in enumerate(_json(line + lines.read(), where=where), start=1):
                    yield index, _object(row, where=f"{file}:{index}")
                return
            if line.strip():
                yield number, _object(_json(line, where=where), where=where)


def _json(text: bytes, *, where: str) -> Any:
    try:
        return json.loads(text)
    except (json.JSONDecodeError, UnicodeDecodeError) as exc:
        raise BadParameter(f"{where} is not JSON ({exc}); expected one object a line") from exc


def _object(row: Any, *, where: str) -> Mapping[str, Any]:
    if not isinstance(row, dict):
        raise BadParameter(f"{where} is {type(row).__name__}, not an object; {_EXPECTED}")
    return row


def _csv_rows(file: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    csv.field_size_limit(2**27)  # a long dialogue is one field; the default is 128 KiB
    with _open(file) as raw:
        reader = csv.DictReader(io.TextIOWrapper(raw, encoding="utf-8-sig", newline=""))
        try:
            for row in reader:
                yield reader.line_num, row
        except (csv.Error, UnicodeDecodeError) as exc:
            raise BadParameter(
                f"{file}:{reader.line_num} is not CSV in UTF-8 ({exc}); expected a header and rows"
            ) from exc


def _parquet_rows(file: str) -> Iterator[Mapping[str, Any]]:
    from pyarrow import ArrowInvalid, parquet  # 0.2 s, for parquet only

    with _open(file, seekable=True) as raw:
        try:
            table = parquet.ParquetFile(raw)
        except ArrowInvalid as exc:
            raise BadParameter(f"{file} is not a parquet file: {exc}") from exc
        for batch in table.iter_batches(batch_size=256):
            yield from batch.to_pylist()


def _open(file: str, *, seekable: bool = False) -> IO[bytes]:
    if file.startswith(_HUB_FILE):
        from training.data.hub_files import open_on_hub  # the hub's client; local runs need none

        return open_on_hub(file, seekable=seekable)
    return Path(file).open("rb")


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

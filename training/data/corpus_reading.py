"""Reads the documents of a data set's files, on this machine or over the network.

Called by `pack`, `streaming` and `sources`. A file of rows (.jsonl, .json, both also gzipped, .csv,
.parquet) holds a document in the column `text` of every row; any other file is one document, UTF-8.
A position in a file is a row number, so reading can continue anywhere.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections.abc import Iterator
from typing import IO, Final

from stationmaster.domain.errors import BadParameter, PermanentError
from training.data.corpus import CSV, JSON_LINES, PARQUET, TEXT_COLUMN, Corpus

_ROWS_AT_ONCE: Final = 64
_HUB_FILE: Final = "hf://"


def read_documents(file: str, *, start: int = 0) -> Iterator[str]:
    """The texts of a file's rows from row `start` on, "" for a row without text.

    Raises:
        BadParameter: not in the form that the file's name says, or no column `text`.
        PermanentError: the file cannot be read to its end, on the hub after several tries.
    """
    try:
        if file.endswith(PARQUET):
            yield from _read_parquet(file, start=start)
        elif file.endswith(JSON_LINES):
            yield from _read_json_lines(file, start=start)
        elif file.endswith(CSV):
            yield from _read_csv(file, start=start)
        elif start == 0:
            with _open(file) as raw:
                # A few standard library files are Latin-1; a replaced byte in a comment harms
                # nobody.
                yield raw.read().decode("utf-8", errors="replace")
    except (OSError, EOFError, zlib.error) as exc:
        raise PermanentError(
            f"reading {file} broke off ({exc}); check the file and the network, then start again "
            "to continue from where this was saved last"
        ) from exc


def read_corpus(corpus: Corpus) -> Iterator[str]:
    """The texts of all files for training, in order."""
    for file in corpus.files:
        yield from read_documents(file)


def _read_json_lines(file: str, *, start: int) -> Iterator[str]:
    with _open(file) as raw:
        lines = gzip.GzipFile(fileobj=raw) if file.endswith(".gz") else raw
        for number, line in enumerate(lines):
            # Rows before `start` are not parsed: that costs as much again as unpacking them.
            if number >= start:
                yield _text_of(line, where=f"{file}:{number + 1}")


def _text_of(line: bytes, *, where: str) -> str:
    if not line.strip():
        return ""
    try:
        row = json.loads(line)
    except (json.JSONDecodeError, UnicodeDecodeError) as exc:
        raise BadParameter(f"{where} is not JSON: {exc}; expected one object a line") from exc
    if not isinstance(row, dict) or TEXT_COLUMN not in row:
        keys = ", ".join(row) if isinstance(row, dict) else type(row).__name__
        raise BadParameter(f'{where} has no "{TEXT_COLUMN}" but {keys[:200]}; rename the column')
    return str(row[TEXT_COLUMN] or "")


def _read_csv(file: str, *, start: int) -> Iterator[str]:
    csv.field_size_limit(2**31 - 1)  # a document may be longer than the 128 KiB it starts with
    with _open(file) as raw:
        rows = csv.DictReader(io.TextIOWrapper(raw, "utf-8-sig", errors="replace", newline=""))
        try:
            _check_column(list(rows.fieldnames or ()), file=file)
            for number, row in enumerate(rows):
                if number >= start:
                    yield row[TEXT_COLUMN] or ""
        except csv.Error as exc:
            raise BadParameter(f"{file}:{rows.line_num} is not CSV: {exc}") from exc


def _check_column(names: list[str], *, file: str) -> None:
    if TEXT_COLUMN not in names:
        raise BadParameter(
            f'{file} has no column "{TEXT_COLUMN}" but {", ".join(names)[:200]}; rename the column'
        )


def _read_parquet(file: str, *, start: int) -> Iterator[str]:
    from pyarrow import ArrowInvalid, parquet  # 0.2 s, for parquet only

    with _open(file) as raw:
        try:
            # pre_buffer would hold whole row groups in memory, for every lane of a stream.
            table = parquet.ParquetFile(raw, pre_buffer=False, buffer_size=2**20)
        except ArrowInvalid as exc:
            raise BadParameter(f"{file} is not a parquet file: {exc}") from exc
        _check_column(table.schema_arrow.names, file=file)
        skip = start
        for group in range(table.num_row_groups):
            num_rows = table.metadata.row_group(group).num_rows
            if skip >= num_rows:
                skip -= num_rows
                continue
            for batch in table.iter_batches(
                batch_size=_ROWS_AT_ONCE, row_groups=[group], columns=[TEXT_COLUMN]
            ):
                texts = batch.column(0).to_pylist()
                yield from (text or "" for text in texts[skip:])
                skip = max(0, skip - len(texts))


def _open(file: str) -> IO[bytes]:
    if file.startswith(_HUB_FILE):
        from training.data.hub_files import open_on_hub  # the hub's client; local runs need none

        return open_on_hub(file, seekable=file.endswith(PARQUET))
    return io.BufferedReader(io.FileIO(file), 2**20)

"""Opens the files of a data set and reads their rows, whatever they are compressed with.

`corpus_lookup` refuses with it what is no text before anything is trained on;
`stationmaster.domain.data_files` says what a file is. This module must not import torch.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import IO, Any, Final

from stationmaster.domain.data_files import (
    ARROW,
    CSV,
    HEAD_BYTES,
    PARQUET,
    TSV,
    compression_of,
    is_table,
    strangeness,
    uncompressed,
)
from stationmaster.domain.errors import BadParameter, PermanentError

BROKEN: Final = (OSError, EOFError, zlib.error, lzma.LZMAError)
"""The errors of a network or a compressed file that breaks off."""

Row = Mapping[str, Any]

TEXT_COLUMN: Final = "text"
_HUB_FILE: Final = "hf://"
_BUFFER_BYTES: Final = 2**20
_ROWS_AT_ONCE: Final = 64


def read_rows(
    file: str, *, start: int = 0, columns: Sequence[str] | None = None
) -> Iterator[tuple[str, Row | None]]:
    """Yield the rows of a file from row `start` on, with their places for messages; None for no
    row.

    In JSON Lines a row is a line, or an element where the file is one array. `columns` are those
    that are needed of a file that stores columns.

    Raises:
        BadParameter: it is not in the form that its name says.
        PermanentError: the file cannot be read to its end, on the hub after several tries.
    """
    bare = uncompressed(file)
    try:
        if bare.endswith((PARQUET, ARROW)):
            yield from _read_columns(file, start=start, columns=columns)
        elif bare.endswith(CSV):
            yield from _read_csv(file, start=start)
        else:
            yield from _read_json(file, start=start)
    except BROKEN as exc:
        raise broken_off(file, exc) from exc


def read_text(file: str) -> str:
    """Read a file that is one document.

    Raises:
        BadParameter: it is no UTF-8.
        PermanentError: as `read_rows`.
    """
    try:
        with opened(file) as stream:
            data = stream.read()
    except BROKEN as exc:
        raise broken_off(file, exc) from exc
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        line = data.count(b"\n", 0, exc.start) + 1
        raise BadParameter(
            f"{file}:{line} is no UTF-8 (byte {data[exc.start]:#04x}); convert the file, e.g. with "
            "iconv -f latin1 -t utf-8, or remove it"
        ) from exc


def read_documents(file: str, *, start: int = 0) -> Iterator[str]:
    """Yield the documents of a file from row `start` on, "" for a row without text.

    A file of rows holds a document in the column `text` of every row; any other is one document.

    Raises:
        BadParameter: not in the form that the file's name says, no column `text`, or no UTF-8.
        PermanentError: the file cannot be read to its end, on the hub after several tries.
    """
    if not is_table(file):
        if start == 0:
            yield read_text(file)
        return
    for where, row in read_rows(file, start=start, columns=[TEXT_COLUMN]):
        yield "" if row is None else _text_of(row, where=where)


def strangeness_of(file: str) -> str:
    """Say why a file cannot be read, as text or as rows, by its first bytes; "" if it can."""
    try:
        with opened(file, checked=False) as stream:
            head = stream.peek(HEAD_BYTES)
            return strangeness(file, head[:HEAD_BYTES], is_whole=len(head) < HEAD_BYTES)
    except BROKEN as exc:
        return f"damaged ({_reason(exc)})"


@contextmanager
def opened(file: str, *, checked: bool = True) -> Iterator[io.BufferedReader]:
    """Open a file for reading, uncompressed; its buffer has the first bytes.

    Raises:
        BadParameter: with `checked`, it is neither text nor rows.
    """
    with ExitStack() as stack:
        stream = stack.enter_context(_open(file))
        compression = compression_of(stream.peek(HEAD_BYTES))
        if compression is not None:
            inner = stack.enter_context(_uncompressed(stream, compression))
            stream = stack.enter_context(io.BufferedReader(inner, _BUFFER_BYTES))
        head = stream.peek(HEAD_BYTES)[:HEAD_BYTES]
        if checked and (what := strangeness(file, head)):
            raise BadParameter(f"{file} is {what}; convert or remove it")
        yield stream


def broken_off(file: str, exc: BaseException) -> PermanentError:
    """Make the error for a file that could not be read to its end."""
    return PermanentError(
        f"reading {file} broke off ({_reason(exc)}); check the file and the network, then start "
        "again to continue from where this was saved last"
    )


def _reason(exc: BaseException) -> str:
    if "too much memory" in str(exc):  # zstd's own words for a window above 128 MiB
        return f"{exc}: compress it again without --long"
    return str(exc)


def _text_of(row: Row, *, where: str) -> str:
    if TEXT_COLUMN not in row:
        keys = ", ".join(map(str, row))[:200]
        raise BadParameter(f'{where} has no "{TEXT_COLUMN}" but {keys}; rename the column')
    text = row[TEXT_COLUMN]
    if text is not None and not isinstance(text, str):
        raise BadParameter(
            f'{where}: "{TEXT_COLUMN}" is {type(text).__name__}, {str(text)[:60]}; expected a text'
        )
    return text or ""


def _open(file: str) -> io.BufferedReader:
    if file.startswith(_HUB_FILE):
        from training.data.hub_files import open_on_hub  # the hub's client; local runs need none

        return open_on_hub(file, seekable=file.endswith((PARQUET, ARROW)))
    return io.BufferedReader(io.FileIO(file), _BUFFER_BYTES)


def _uncompressed(stream: IO[bytes], compression: str) -> Any:
    match compression:
        case "gzip":
            return gzip.GzipFile(fileobj=stream)
        case "bzip2":
            return _Streams(stream, bz2.BZ2Decompressor)
        case "xz":
            return _Streams(stream, lzma.LZMADecompressor)
        case _:
            import pyarrow  # 0.1 s

            return pyarrow.CompressedInputStream(pyarrow.PythonFile(stream, mode="r"), compression)


class _Streams(io.RawIOBase):
    """Reads compressed streams that were joined; Python's own readers end at a damaged one."""

    def __init__(
        self, file: IO[bytes], begin: Callable[[], bz2.BZ2Decompressor | lzma.LZMADecompressor]
    ) -> None:
        self._file, self._begin, self._stream = file, begin, begin()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while True:
            data = b""
            if self._stream.eof:
                # Zeros fill up what was written in blocks.
                data = self._stream.unused_data.lstrip(b"\0")
                data = data or self._file.read(_BUFFER_BYTES).lstrip(b"\0")
                if not data:
                    return 0
                self._stream = self._begin()
            elif self._stream.needs_input:
                data = self._file.read(_BUFFER_BYTES)
                if not data:
                    raise EOFError("it ends before its compressed data does")
            part = self._stream.decompress(data, max_length=len(buffer))
            if part:
                buffer[: len(part)] = part
                return len(part)


def _read_json(file: str, *, start: int) -> Iterator[tuple[str, Row | None]]:
    with opened(file) as lines:
        for number, line in enumerate(lines):
            where = f"{file}:{number + 1}"
            if number == 0 and line.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"["):
                rows = _parse(line + lines.read(), where=where)
                for index in range(start, len(rows)):
                    yield f"{file}:{index + 1}", _object(rows[index], where=f"{file}:{index + 1}")
                return
            # Rows before `start` are not parsed: that costs as much again as unpacking them.
            if number >= start:
                is_empty = not line.strip()
                row = None if is_empty else _object(_parse(line, where=where), where=where)
                yield where, row


def _parse(line: bytes, *, where: str) -> Any:
    try:
        text = line.decode("utf-8-sig")
        # Half a surrogate pair is no character: it becomes the replacement character.
        if "\\ud" in text or "\\uD" in text:
            text = json.dumps(json.loads(text), ensure_ascii=False)
            text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        return json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise BadParameter(f"{where} is not JSON ({exc}); expected one object a line") from exc


def _object(row: Any, *, where: str) -> Row:
    if not isinstance(row, dict):
        raise BadParameter(f"{where} is {type(row).__name__}, expected an object")
    return row


def _read_csv(file: str, *, start: int) -> Iterator[tuple[str, Row | None]]:
    csv.field_size_limit(2**31 - 1)  # a document may be longer than the 128 KiB it starts with
    with opened(file) as stream:
        # Not strict, a quote that nothing closes would take in all that follows.
        text = io.TextIOWrapper(stream, "utf-8-sig", newline="")
        delimiter = "\t" if uncompressed(file).endswith(TSV) else ","
        rows = csv.DictReader(text, strict=True, delimiter=delimiter)
        try:
            for number, row in enumerate(rows):
                where = f"{file}:{rows.line_num}"
                if None in row or None in row.values():
                    raise BadParameter(
                        f"{where} has not the {len(rows.fieldnames or ())} fields of the header; "
                        'write a text with commas or line breaks in quotes ("")'
                    )
                if number >= start:
                    yield where, row
        except (csv.Error, UnicodeDecodeError) as exc:
            where = f"{file}:{rows.line_num + 1}"
            raise BadParameter(
                f"{where} is not CSV in UTF-8 ({exc}); expected a header and rows"
            ) from exc


def _read_columns(
    file: str, *, start: int, columns: Sequence[str] | None
) -> Iterator[tuple[str, Row | None]]:
    import pyarrow  # 0.2 s, for these only

    number = start
    with opened(file) as stream:
        try:
            read = _parquet_batches if file.endswith(PARQUET) else _arrow_batches
            for batch in read(stream, start=start, columns=columns):
                for row in batch.to_pylist():
                    number += 1
                    yield f"{file}:{number}", row
        except (pyarrow.ArrowException, UnicodeDecodeError) as exc:
            if isinstance(exc, OSError):
                raise
            raise BadParameter(f"{file} is damaged ({exc}); make it again") from exc


def _parquet_batches(
    stream: IO[bytes], *, start: int, columns: Sequence[str] | None
) -> Iterator[Any]:
    from pyarrow import parquet

    # pre_buffer would hold whole row groups in memory, for every lane of a stream.
    table = parquet.ParquetFile(stream, pre_buffer=False, buffer_size=_BUFFER_BYTES)
    there = set(table.schema_arrow.names)
    wanted = [name for name in columns if name in there] if columns is not None else None
    skip = start
    for group in range(table.num_row_groups):
        num_rows = table.metadata.row_group(group).num_rows
        if skip >= num_rows:
            skip -= num_rows
            continue
        for batch in table.iter_batches(
            batch_size=_ROWS_AT_ONCE, row_groups=[group], columns=wanted or None
        ):
            yield batch.slice(skip)
            skip = max(0, skip - batch.num_rows)


def _arrow_batches(
    stream: IO[bytes], *, start: int, columns: Sequence[str] | None
) -> Iterator[Any]:
    """Yield batches of a file or a stream: `datasets.save_to_disk` writes streams."""
    from pyarrow import ipc

    if stream.peek(1).startswith(b"A"):  # type: ignore[attr-defined]  # of a buffered reader
        reader = ipc.open_file(stream)
        batches = (reader.get_batch(number) for number in range(reader.num_record_batches))
    else:
        batches = iter(ipc.open_stream(stream))
    skip = start
    for batch in batches:
        there = set(batch.schema.names)
        wanted = [name for name in columns if name in there] if columns is not None else []
        part = batch.select(wanted) if wanted else batch
        for first in range(min(skip, part.num_rows), part.num_rows, _ROWS_AT_ONCE):
            yield part.slice(first, _ROWS_AT_ONCE)
        skip = max(0, skip - part.num_rows)

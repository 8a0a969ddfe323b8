"""What `dataset=` names, as files of documents: where text comes from, before any tokenizer.

Called by `sources`, `pack` and `streaming`. A data set is one of

    python-stdlib                the sources of Python's own library: text that every machine has
    DIR                          a directory of files
    stream:DIR                   the same files, read while training instead of packed before
    hub:ORG/NAME[/CONFIG]        a data set of the Hugging Face hub, streamed; c4 is short for one

A file of rows (.jsonl, .json, both also gzipped, .csv, .parquet) holds a document in the column
`text` of every row; any other file is one document, UTF-8. A position in a file is a row number, so
reading can go on anywhere. This module must not import torch and knows nothing of tokens.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import os
import re
import sysconfig
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Final

from stationmaster.domain.errors import BadParameter, PermanentError

PYTHON_STDLIB: Final = "python-stdlib"
STREAM_PREFIX: Final = "stream:"
HUB_PREFIX: Final = "hub:"
SHORT_NAMES: Final = {"c4": "hub:allenai/c4/en"}
TEXT_COLUMN: Final = "text"

# 5 MB of source is about 1.5 M tokens, 12,000 sequences of 128: 700 steps of tiny-llama before a
# sample comes twice, and about 2 s to prepare on one core.
_STDLIB_BYTES: Final = 5_000_000
_STDLIB_SKIPPED: Final = {"test", "tests", "idlelib", "lib2to3", "site-packages", "dist-packages"}
_JSON_LINES: Final = (".jsonl", ".json", ".jsonl.gz", ".json.gz")
_CSV: Final = ".csv"
_PARQUET: Final = ".parquet"
TABLES: Final = (*_JSON_LINES, _CSV, _PARQUET)
"""Endings of files with many documents."""
_HELD_OUT_NAMES: Final = ("validation", "valid", "val", "dev", "eval", "test")
_ROWS_AT_ONCE: Final = 64
_HUB_FILE: Final = "hf://"


@dataclass(frozen=True, kw_only=True, slots=True)
class Corpus:
    """The files of a data set: paths on this machine, or hf:// addresses of one commit."""

    dataset: str
    """The name it was found under."""
    revision: str
    """The commit on the hub; "" on this machine."""
    files: tuple[str, ...]
    held_out: tuple[str, ...]
    """Files that the data set itself sets apart for evaluation; often none."""

    @property
    def identity(self) -> str:
        """Names the contents: the data set on the hub, or the names and sizes of local files.

        A hub data set keeps its identity when its repository moves on, so that a run finds its
        checkpoints; these say which commit to go on with.
        """
        if self.revision:
            return SHORT_NAMES.get(self.dataset, self.dataset)
        listed = [(Path(file).name, Path(file).stat().st_size) for file in self.files]
        return hashlib.sha256(json.dumps(listed).encode()).hexdigest()

    @property
    def on_hub(self) -> bool:
        """Whether reading goes over the network."""
        return bool(self.revision)

    def with_held_out(self) -> Corpus:
        """The same, with a file held out for evaluation where the data set itself has none.

        Raises:
            BadParameter: it is a single file.
        """
        if self.held_out:
            return self
        if len(self.files) == 1:
            raise BadParameter(
                f'dataset="{self.dataset}" is one file and has none to evaluate on; add one with '
                "validation in its name, or set eval_every=0 eval_samples=0"
            )
        return replace(self, files=self.files[:-1], held_out=self.files[-1:])


def find_corpus(dataset: str, *, revision: str = "") -> Corpus:
    """List a data set's files, in an order that depends on their names only.

    Args:
        dataset: as in the module's table.
        revision: the commit of a hub data set; the newest without.

    Raises:
        BadParameter: no such data set, not readable, or no text in it.
        PermanentError: the hub cannot be reached.
    """
    name = SHORT_NAMES.get(dataset, dataset)
    if name.startswith(HUB_PREFIX):
        from training.data.hub_files import find_on_hub  # the hub's client; local runs need none

        return find_on_hub(dataset, name.removeprefix(HUB_PREFIX), revision=revision)
    if name == PYTHON_STDLIB:
        return Corpus(
            dataset=dataset,
            revision="",
            files=tuple(str(path) for path in _stdlib_files()),
            held_out=(),
        )
    files, held_out = split_files([str(path) for path in _list_directory(dataset)])
    return Corpus(dataset=dataset, revision="", files=tuple(files), held_out=tuple(held_out))


def split_files(files: Sequence[str]) -> tuple[list[str], list[str]]:
    """Tell files for training from those that their names set apart for evaluation.

    Only files of rows are told apart, and all others are for training. `validation` goes before
    `test` where there are both; when some names say `train`, names that say nothing are left out.
    """
    tables = [file for file in files if file.endswith(TABLES)]
    others = [file for file in files if not file.endswith(TABLES)]
    said = {file: set(re.split(r"[^a-z]+", Path(file).name.lower())) for file in tables}
    by_name = {
        name: [file for file in tables if name in said[file]]
        for name in (*_HELD_OUT_NAMES, "train")
    }
    held_out = next((by_name[name] for name in _HELD_OUT_NAMES if by_name[name]), [])
    if by_name["train"]:
        return [*by_name["train"], *others], held_out
    remaining = [file for file in tables if not said[file] & set(_HELD_OUT_NAMES)]
    return ([*remaining, *others], held_out) if remaining or others else (tables, [])


def read_documents(file: str, *, start: int = 0) -> Iterator[str]:
    """The texts of a file's rows from row `start` on, "" for a row without text.

    Raises:
        BadParameter: not in the form that the file's name says, or no column `text`.
        PermanentError: the file cannot be read to its end, on the hub after several tries.
    """
    try:
        if file.endswith(_PARQUET):
            yield from _read_parquet(file, start=start)
        elif file.endswith(_JSON_LINES):
            yield from _read_json_lines(file, start=start)
        elif file.endswith(_CSV):
            yield from _read_csv(file, start=start)
        elif start == 0:
            with _open(file) as raw:
                # A few standard library files are Latin-1; a replaced byte in a comment harms
                # nobody.
                yield raw.read().decode("utf-8", errors="replace")
    except (OSError, EOFError, zlib.error) as exc:
        raise PermanentError(
            f"reading {file} broke off ({exc}); check the file and the network, then start again "
            "to go on from where this was saved last"
        ) from exc


def read_corpus(corpus: Corpus) -> Iterator[str]:
    """The texts of all files for training, in order."""
    for file in corpus.files:
        yield from read_documents(file)


def _list_directory(dataset: str) -> list[Path]:
    streamed = dataset.startswith(STREAM_PREFIX)
    root = Path(dataset.removeprefix(STREAM_PREFIX))
    if not root.is_dir():
        raise BadParameter(
            f'dataset="{dataset}" is not a directory on this machine; expected {PYTHON_STDLIB}, '
            f"{', '.join(SHORT_NAMES)}, hub:ORG/NAME[/CONFIG], or the path of a directory of text "
            "files, or of packed ones, that every node can read"
        )
    files = sorted(
        path
        for path in root.rglob("*")
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(root).parts)
    )
    if not files:
        example = "files of rows (.jsonl, .parquet)" if streamed else "UTF-8 text files"
        raise BadParameter(f'dataset="{dataset}" holds no files; expected {example}')
    return files


def _stdlib_files() -> list[Path]:
    root = Path(sysconfig.get_path("stdlib"))
    found: list[Path] = []
    for parent, directories, names in os.walk(root):
        directories[:] = [name for name in directories if name not in _STDLIB_SKIPPED]
        found += [Path(parent, name) for name in names if name.endswith(".py")]
    # Ordered by the hash of the name, so that a prefix of the list is a fair sample of the library.
    found.sort(key=lambda path: hashlib.sha256(str(path.relative_to(root)).encode()).digest())
    chosen: list[Path] = []
    total = 0
    for path in found:
        if total >= _STDLIB_BYTES:
            break
        chosen.append(path)
        total += path.stat().st_size
    return chosen


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
        from training.data.hub_files import open_on_hub  # as in find_corpus

        return open_on_hub(file, seekable=file.endswith(_PARQUET))
    return io.BufferedReader(io.FileIO(file), 2**20)

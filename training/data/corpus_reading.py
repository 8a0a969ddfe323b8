"""Reads the documents of a data set's files, on this machine or over the network.

A file of rows holds a document in the column `text` of every row; any other file is one document. A
position in a file is a row number, so reading can continue anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator

from stationmaster.domain.data_files import is_table
from stationmaster.domain.errors import BadParameter
from training.data.corpus import TEXT_COLUMN, Corpus
from training.data.rows import Row, read_rows, read_text


def read_documents(file: str, *, start: int = 0) -> Iterator[str]:
    """Yield the texts of a file's rows from row `start` on, "" for a row without text.

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


def read_corpus(corpus: Corpus) -> Iterator[str]:
    """Yield the texts of all files for training, in order."""
    for file in corpus.files:
        yield from read_documents(file)


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

"""Finds the files of a data set: on this machine or on the Hugging Face hub.

The table of names is in `corpus`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import partial
from importlib.metadata import distribution
from itertools import accumulate, chain
from pathlib import Path
from typing import Final

from stationmaster.domain.data_files import ARROW, refusal
from stationmaster.domain.errors import BadParameter
from training.data.corpus import (
    HUB_PREFIX,
    PYTHON_CODE,
    SHORT_NAMES,
    STREAM_PREFIX,
    Corpus,
    split_files,
)
from training.data.rows import read_documents, strangeness_of

# 5 MB of source is about 1.5 M tokens, 12,000 sequences of 128: 700 steps of tiny-llama before a
# sample comes twice, and about 2 s to prepare on one core. Of a package whose one wheel every
# Python installs, in the version of constraints.txt, so that everybody sees the same losses.
_CODE_PACKAGE: Final = "transformers"
_CODE_BYTES: Final = 5_000_000

# Each look is a round trip or two to a shared file system; what they miss is refused when read.
_LOOKED_INTO: Final = 200
# Source: huggingface/datasets, config.py: what `save_to_disk` writes beside its arrow files.
_DESCRIPTIONS: Final = {"dataset_info.json", "state.json", "dataset_dict.json"}


def find_corpus(dataset: str, *, revision: str = "") -> Corpus:
    """List a data set's files, in an order that depends on their names only.

    Args:
        dataset: as in the table of `corpus`.
        revision: the commit of a hub data set; the newest without.

    Raises:
        BadParameter: no such data set, not readable, or no text in it.
        PermanentError: the hub cannot be reached.
    """
    name = SHORT_NAMES.get(dataset, dataset)
    if name.startswith(HUB_PREFIX):
        from training.data.hub_files import find_on_hub  # the hub's client; local runs need none

        return find_on_hub(dataset, name.removeprefix(HUB_PREFIX), revision=revision)
    if name == PYTHON_CODE:
        return Corpus(
            dataset=dataset,
            revision="",
            files=tuple(str(path) for path in _code_files()),
            held_out=(),
        )
    files, held_out = split_files([str(path) for path in _list_directory(dataset)])
    return Corpus(dataset=dataset, revision="", files=tuple(files), held_out=tuple(held_out))


def read_corpus(corpus: Corpus) -> Iterator[str]:
    """Yield the documents of all files for training, in order."""
    return chain.from_iterable(map(read_documents, corpus.files))


def _list_directory(dataset: str) -> list[Path]:
    streamed = dataset.startswith(STREAM_PREFIX)
    root = Path(dataset.removeprefix(STREAM_PREFIX))
    if not root.is_dir():
        raise BadParameter(
            f'dataset="{dataset}" is not a directory on this machine; expected {PYTHON_CODE}, '
            f"{', '.join(SHORT_NAMES)}, hub:ORG/NAME[/CONFIG], or the path of a directory of text "
            "files, or of packed ones, that every node can read"
        )
    files = sorted(
        path
        for path in root.rglob("*")
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(root).parts)
    )
    links = (path for path in root.rglob("*") if path.is_symlink() and not path.is_file())
    if (link := next(links, None)) is not None:
        raise BadParameter(
            f'dataset="{dataset}": {link} links to a folder or to nothing, and such links are not '
            "followed; name the folder itself, or put its files there"
        )
    if not files:
        example = "files of rows (.jsonl, .parquet)" if streamed else "UTF-8 text files"
        raise BadParameter(f'dataset="{dataset}" holds no files; expected {example}')
    if any(path.suffix == ARROW for path in files):
        files = [path for path in files if path.name not in _DESCRIPTIONS]
    names = [str(path) for path in files]
    if said := refusal(dataset, names, partial(map, strangeness_of), most=_LOOKED_INTO):
        raise BadParameter(said)
    return files


def _code_files() -> list[Path]:
    root = Path(str(distribution(_CODE_PACKAGE).locate_file(_CODE_PACKAGE)))
    # Ordered by the hash of the name, so that a prefix of the list is a fair sample of the package.
    found = sorted(
        root.rglob("*.py"),
        key=lambda path: hashlib.sha256(path.relative_to(root).as_posix().encode()).digest(),
    )
    sizes = accumulate(path.stat().st_size for path in found)
    return [path for path, total in zip(found, sizes, strict=False) if total < _CODE_BYTES]

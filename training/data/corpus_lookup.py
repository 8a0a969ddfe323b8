"""Finds the files of a data set: on this machine or on the Hugging Face hub.

Called by `sources`, `streaming`, `instructions` and `training.pack`; the table of names is in
`corpus`.
"""

from __future__ import annotations

import hashlib
import os
import sysconfig
from functools import partial
from pathlib import Path
from typing import Final

from stationmaster.domain.data_files import ARROW, refusal
from stationmaster.domain.errors import BadParameter
from training.data.corpus import (
    HUB_PREFIX,
    PYTHON_STDLIB,
    SHORT_NAMES,
    STREAM_PREFIX,
    Corpus,
    split_files,
)
from training.data.rows import strangeness_of

# 5 MB of source is about 1.5 M tokens, 12,000 sequences of 128: 700 steps of tiny-llama before a
# sample comes twice, and about 2 s to prepare on one core.
_STDLIB_BYTES: Final = 5_000_000
_STDLIB_SKIPPED: Final = {"test", "tests", "idlelib", "lib2to3", "site-packages", "dist-packages"}

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
    if name == PYTHON_STDLIB:
        return Corpus(
            dataset=dataset,
            revision="",
            files=tuple(str(path) for path in _stdlib_files()),
            held_out=(),
        )
    files, held_out = split_files([str(path) for path in _list_directory(dataset)])
    return Corpus(dataset=dataset, revision="", files=tuple(files), held_out=tuple(held_out))


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
    if any(path.suffix == ARROW for path in files):
        files = [path for path in files if path.name not in _DESCRIPTIONS]
    names = [str(path) for path in files]
    if said := refusal(dataset, names, partial(map, strangeness_of), most=_LOOKED_INTO):
        raise BadParameter(said)
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

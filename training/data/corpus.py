"""What `dataset=` names, as files of documents: where text comes from, before any tokenizer.

`corpus_lookup` finds the files and `rows` reads them. A data set is one of

    python-code                  5 MB of the sources of transformers: text that every trainer has
    DIR                          a directory of files
    stream:DIR                   the same files, read while training instead of packed before
    hub:ORG/NAME[/CONFIG]        a data set of the Hugging Face hub, streamed; c4 is short for one

This module must not import torch and knows nothing of tokens.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from stationmaster.domain.data_files import is_table
from stationmaster.domain.errors import BadParameter

PYTHON_CODE: Final = "python-code"
STREAM_PREFIX: Final = "stream:"
HUB_PREFIX: Final = "hub:"
SHORT_NAMES: Final = {"c4": "hub:allenai/c4/en"}

logger = logging.getLogger(__name__)

_NAMED: Final = 3  # files that a warning names
_HELD_OUT_NAMES: Final = ("validation", "valid", "val", "dev", "eval", "test")


@dataclass(frozen=True, kw_only=True, slots=True)
class Corpus:
    """The files of a data set: paths on this machine, or hf:// addresses of one commit."""

    dataset: str
    """The name under which it was found."""
    revision: str
    """The commit on the hub; "" on this machine."""
    files: tuple[str, ...]
    held_out: tuple[str, ...]
    """The files that the data set itself sets apart for evaluation; often none."""

    @property
    def identity(self) -> str:
        """Name the contents: the data set on the hub, or the names and sizes of local files.

        A hub data set keeps its identity when its repository changes, so that a run finds its
        checkpoints; these say which commit to continue with.
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
        """Hold a file out for evaluation where the data set itself has none.

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


def split_files(files: Sequence[str]) -> tuple[list[str], list[str]]:
    """Separate files for training from those that their names mark for evaluation.

    Only files of rows are separated, and all others are for training. `validation` goes before
    `test` where there are both; when some names say `train`, names that say nothing are left out,
    with a warning.
    """
    tables = [file for file in files if is_table(file)]
    others = [file for file in files if not is_table(file)]
    training, held_out = _split_tables(tables)
    if not training and not others:
        return tables, []
    kept = {*training, *held_out}
    if left := [Path(file).name for file in tables if file not in kept]:
        logger.warning(
            "left out: %d of %d files, by their names neither for training nor the evaluation: %s",
            len(left),
            len(tables),
            ", ".join(left[:_NAMED]) + (", ..." if len(left) > _NAMED else ""),
        )
    return [*training, *others], held_out


def _split_tables(tables: Sequence[str]) -> tuple[list[str], list[str]]:
    said = {file: set(re.split(r"[^a-z]+", Path(file).name.lower())) for file in tables}
    by_name = {
        name: [file for file in tables if name in said[file]]
        for name in (*_HELD_OUT_NAMES, "train")
    }
    held_out = next((by_name[name] for name in _HELD_OUT_NAMES if by_name[name]), [])
    if by_name["train"]:
        return by_name["train"], held_out
    return [file for file in tables if not said[file] & set(_HELD_OUT_NAMES)], held_out

"""Text, or files of Megatron, to the indexed data set that Megatron-LM and Megatron-Bridge read.

The result is `text_document` below the root of the staged data. This module must not import torch.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from stationmaster.domain.datasets import FILES
from stationmaster.domain.errors import BadParameter
from stationmaster.domain.indexed import BIN, DATA_NAME, IDX, IndexHead, check_indexed
from stationmaster.domain.staged_data import DataManifest
from training.data.indexed_parts import IndexedParts
from training.data.packed_parts import PART_BYTES
from training.data.preparing import SHARES, Pass, TokenWork
from training.data.shares import Result, Share
from training.data.targets import Target, data_files

JOINS: Final = "joins"
# Of a part's work, beside tokenising it: what copying its tokens is worth where progress is shown.
_JOIN_WEIGHT: Final = 8


@dataclass(frozen=True)
class IndexedWork:
    """Packs text as for the trainer, in parts, and joins these to one indexed data set."""

    target: Target
    part_bytes: int = PART_BYTES

    def passes(self) -> list[Pass]:
        """List the passes: parts are packed, then joined; none where files are Megatron's."""
        if self._ready is not None:
            return [Pass(SHARES, [], self._packing.do)]
        packed = self._packing.shares()
        joined = [Share(name=each.name, weight=each.weight // _JOIN_WEIGHT) for each in packed]
        return [Pass(SHARES, packed, self._packing.do), Pass(JOINS, joined, self.join)]

    def join(self, share: Share) -> Result:
        return self._indexed.join(share)

    def finish(self) -> DataManifest:
        """Write the index, or take in the files that were copied; compare their sizes.

        Raises:
            BadParameter: there is no text, or the files do not belong together.
        """
        files = self.target.directory / FILES
        if self._ready is not None:
            files.mkdir(parents=True, exist_ok=True)
            for ending in (BIN, IDX):
                # Not a hard link, which needs the right to write: another user has copied it.
                name = files / (DATA_NAME + ending)
                name.unlink(missing_ok=True)
                name.symlink_to(os.path.relpath(_with(self._ready, ending), files))
            sha256 = {}
        else:
            sha256 = {DATA_NAME + IDX: self._indexed.finish(files)}
        head, num_tokens = look_at_indexed(files / DATA_NAME)
        found = filter(Path.is_file, files.rglob("*"))
        return self.target.manifest(
            root=f"{self.target.name}/{FILES}",
            counts={"tokens": num_tokens, "documents": head.num_documents},
            files=data_files(files, found, sha256=sha256),
        )

    def needed_bytes(self) -> int:
        """Return the room: as for packed tokens, and the index."""
        return self._packing.needed_bytes()

    @cached_property
    def _packing(self) -> TokenWork:
        return TokenWork(self.target, self.part_bytes)

    @cached_property
    def _indexed(self) -> IndexedParts:
        return IndexedParts(self._packing.parts)

    @cached_property
    def _ready(self) -> Path | None:
        """Find the prefix of the files of Megatron that were copied, if any.

        Raises:
            BadParameter: of several data sets.
        """
        copied = self.target.copied
        if not copied.root:
            return None
        root = self.target.data / copied.root
        names = {file.path for file in copied.files} or set(os.listdir(root))
        found = sorted(name.removesuffix(IDX) for name in names if name.endswith(IDX))
        if not found:
            return None
        if len(found) > 1:
            raise BadParameter(
                f"{copied.source} holds {len(found):,} indexed data sets of Megatron, "
                f"{', '.join(found[:3])}; put the one to train on below a prefix of its own"
            )
        return root / found[0]


def look_at_indexed(prefix: Path) -> tuple[IndexHead, int]:
    """Return the head of an indexed data set, and how many tokens it has.

    Raises:
        BadParameter: a file is missing, or the sizes do not agree.
    """
    sizes = [
        path.stat().st_size if path.is_file() else None
        for path in (_with(prefix, BIN), _with(prefix, IDX))
    ]

    def read(offset: int, number: int) -> bytes:
        with _with(prefix, IDX).open("rb") as opened:
            opened.seek(offset)
            return opened.read(number)

    return check_indexed(str(prefix), bin_bytes=sizes[0], idx_bytes=sizes[1], read=read)


def _with(prefix: Path, ending: str) -> Path:
    return prefix.with_name(prefix.name + ending)

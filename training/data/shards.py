"""Packed data sets on disk: files of token ids with a manifest, written once and never changed.

    DIR/tokens-00000.bin ...   the ids of all documents one after the other, little-endian uint16 or
                               uint32, the same number in every file but the last
    DIR/tokenizer.json         the tokenizer that made them
    DIR/manifest.json          number and SHA-256 of each file's tokens; it is there: complete
    DIR/packing.json           until then: what is being packed, and how far it is

A file of tokens appears under its name when it is whole and on disk, then packing.json says so; a
packing that was killed continues after the last file it names. This module must not import torch.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, Literal

import numpy as np
from pydantic import ValidationError

from stationmaster.domain.errors import BadParameter
from stationmaster.domain.frozen import Frozen
from training.data.tokenizers import TokenIds, TokenizerFile
from training.files import sync, write_json

MANIFEST: Final = "manifest.json"
PACKING: Final = "packing.json"
TOKENIZER: Final = "tokenizer.json"
FORMAT_VERSION: Final = 2
_PIECE_BYTES: Final = 2**24


class PackPlan(Frozen):
    """Everything that decides the bytes of a packed data set."""

    format: Literal[2] = FORMAT_VERSION
    dataset: str
    revision: str
    """The commit of a data set on the hub; "" elsewhere."""
    corpus: str
    """The result of `Corpus.identity`."""
    tokenizer: str
    """The tokenizer as it was asked for."""
    tokenizer_sha256: str
    vocab_size: int
    begin_ids: tuple[int, ...]
    end_id: int
    dtype: Literal["uint16", "uint32"]
    shard_tokens: int
    """The number of tokens in every file but the last."""


class Shard(Frozen):
    """One file of token ids."""

    file: str
    num_tokens: int
    sha256: str


class Position(Frozen):
    """The document that the last whole file ends in, and how many of its tokens are in it."""

    file: int = 0
    row: int = 0
    offset: int = 0


class Packing(Frozen):
    """The contents of packing.json: a data set in the making."""

    plan: PackPlan
    shards: tuple[Shard, ...] = ()
    num_documents: int = 0
    """The documents begun in the shards; the one at `position` included."""
    position: Position = Position()


class Manifest(Frozen):
    """The contents of manifest.json: a complete data set."""

    plan: PackPlan
    num_tokens: int
    num_documents: int
    sha256: str
    """The hash of the hashes of the tokenizer and of the shards, in order."""
    shards: tuple[Shard, ...]

    @classmethod
    def of(cls, plan: PackPlan, shards: Sequence[Shard], *, num_documents: int) -> Manifest:
        """Describe the shards of a plan, all of them."""
        digests = [plan.tokenizer_sha256, *(shard.sha256 for shard in shards)]
        return cls(
            plan=plan,
            num_tokens=sum(shard.num_tokens for shard in shards),
            num_documents=num_documents,
            sha256=hashlib.sha256(" ".join(digests).encode()).hexdigest(),
            shards=tuple(shards),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedData:
    """A packed data set whose files are all there, at their sizes."""

    directory: Path
    manifest: Manifest

    @property
    def paths(self) -> list[Path]:
        """The files of tokens, in order."""
        return [self.directory / shard.file for shard in self.manifest.shards]

    @property
    def tokenizer(self) -> TokenizerFile:
        """The tokenizer that made the tokens."""
        plan = self.manifest.plan
        return TokenizerFile(
            path=self.directory / TOKENIZER,
            identity=plan.tokenizer_sha256,
            vocab_size=plan.vocab_size,
            begin_ids=plan.begin_ids,
            end_id=plan.end_id,
        )


def read_packed(directory: Path) -> PackedData:
    """Read a manifest and check the size of every file against it.

    Raises:
        BadParameter: not a manifest of this format, or a file is missing or has another size.
    """
    path = directory / MANIFEST
    try:
        manifest = Manifest.model_validate_json(path.read_bytes())
    except ValidationError as exc:
        raise BadParameter(
            f"{path} is not a manifest of format {FORMAT_VERSION}; pack the data set again with "
            "python -m training.pack, into a new directory"
        ) from exc
    itemsize = np.dtype(manifest.plan.dtype).itemsize
    for shard in manifest.shards:
        file = directory / shard.file
        found = file.stat().st_size if file.is_file() else 0
        if found != shard.num_tokens * itemsize:
            raise BadParameter(
                f"{file} has {found} bytes, its manifest says {shard.num_tokens * itemsize}; "
                f"remove {directory} and have it made again"
            )
    return PackedData(directory=directory, manifest=manifest)


def verify_share(
    data: PackedData, *, vocab_size: int, rank: int, world_size: int, stamps: Path
) -> None:
    """Compare one rank's share of the files with their hashes, and their ids with a vocabulary.

    Reads all of them, about 1 GB/s on a core, once: a file that was found well leaves a stamp, and
    is read again when its size or its time of change is another.

    Args:
        data: what is about to be trained on.
        vocab_size: of the model.
        rank: of the process; with `world_size` it decides the share.
        world_size: number of processes that share the work.
        stamps: a directory, best on the same file system.

    Raises:
        BadParameter: a file is not what was written, or holds ids that the model does not know.
        OSError: a file cannot be read.
    """
    dtype = np.dtype(data.manifest.plan.dtype)
    shards = list(zip(data.paths, data.manifest.shards, strict=True))
    for path, shard in shards[rank::world_size]:
        state = path.stat()
        stamp = stamps / f"{shard.sha256}-{state.st_ino}-{state.st_mtime_ns}"
        try:
            largest = int(stamp.read_text())
        except (FileNotFoundError, ValueError):
            largest = _verified(path, shard, dtype=dtype)
            with contextlib.suppress(OSError):  # without a stamp it is read again next time
                stamps.mkdir(parents=True, exist_ok=True)
                stamp.write_text(str(largest))
        if largest >= vocab_size:
            raise BadParameter(
                f"{path} holds the token id {largest}, the model's vocabulary is {vocab_size}; "
                "pack the data set with the tokenizer that the model was made for"
            )


def _verified(path: Path, shard: Shard, *, dtype: np.dtype[Any]) -> int:
    """Return the largest id of a file, after checking that it is as it was written."""
    digest, largest = hashlib.sha256(), 0
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            digest.update(piece)
            ids = np.frombuffer(piece, dtype=dtype, count=len(piece) // dtype.itemsize)
            largest = max(largest, int(ids.max(initial=0)))
    if digest.hexdigest() != shard.sha256:
        raise BadParameter(
            f"{path} is not what was packed: it has SHA-256 {digest.hexdigest()}, its manifest "
            f"says {shard.sha256}; remove {path.parent} and have it made again"
        )
    return largest


class ShardWriter:
    """Writes ids into files of `shard_tokens` each, and packing.json after every whole one."""

    def __init__(self, directory: Path, packing: Packing) -> None:
        self._directory = directory
        self._packing = packing
        self._dtype = np.dtype(packing.plan.dtype)
        self._file: IO[bytes] | None = None
        self._digest = hashlib.sha256()
        self._written = 0
        self._num_documents = packing.num_documents

    @property
    def num_tokens(self) -> int:
        """The number of tokens written so far, earlier starts included."""
        return sum(shard.num_tokens for shard in self._packing.shards) + self._written

    @property
    def num_shards(self) -> int:
        """The number of whole files so far."""
        return len(self._packing.shards)

    def add(self, ids: TokenIds, *, at: Position, begins: bool = True) -> None:
        """Append a document, or with `begins` false the rest of one.

        Args:
            ids: its tokens; those already in whole files left out.
            at: where the document is, `offset` being the number of tokens left out.
            begins: count it as a document.
        """
        self._num_documents += begins
        taken = 0
        while taken < len(ids):
            room = self._packing.plan.shard_tokens - self._written
            part = ids[taken : taken + room]
            self._write(part.astype(self._dtype, copy=False).tobytes(), len(part))
            taken += len(part)
            if self._written == self._packing.plan.shard_tokens:
                self._conclude(Position(file=at.file, row=at.row, offset=at.offset + taken))

    def finish(self) -> PackedData:
        """Conclude the last file and write the manifest."""
        if self._written:
            # The position only matters to a packing that continues, and this one is at its end.
            self._conclude(self._packing.position)
        packing = self._packing
        manifest = Manifest.of(packing.plan, packing.shards, num_documents=self._num_documents)
        write_json(self._directory / MANIFEST, manifest.model_dump(mode="json"))
        (self._directory / PACKING).unlink(missing_ok=True)
        return PackedData(directory=self._directory, manifest=manifest)

    def _write(self, data: bytes, num_tokens: int) -> None:
        if self._file is None:
            self._file = self._temporary.open("wb")
            self._digest = hashlib.sha256()
        self._file.write(data)
        self._digest.update(data)
        self._written += num_tokens

    def _conclude(self, position: Position) -> None:
        assert self._file is not None
        self._file.close()
        sync(self._temporary)
        name = f"tokens-{self.num_shards:05d}.bin"
        self._temporary.rename(self._directory / name)
        shard = Shard(file=name, num_tokens=self._written, sha256=self._digest.hexdigest())
        self._packing = self._packing.model_copy(
            update={
                "shards": (*self._packing.shards, shard),
                "num_documents": self._num_documents,
                "position": position,
            }
        )
        write_json(self._directory / PACKING, self._packing.model_dump(mode="json"))
        self._file, self._written = None, 0

    @property
    def _temporary(self) -> Path:
        return self._directory / ".tokens.tmp"

"""Text, or files of Megatron, to the indexed data set that Megatron-LM and Megatron-Bridge read.

    FILES/text_document.bin     the ids of all documents, each between the tokenizer's begin and end
    FILES/text_document.idx     where each begins
    FILES/text_document.json    the hash of every part, for whoever wants to compare
    FILES/tokenizer/            for Megatron's --tokenizer-model

The result equals that of Megatron's `tools/preprocess_data.py`, which works on one machine and
starts anew when it is killed. A file for each part would be split and sampled by itself.

Once all parts are packed, the place of each in the `.bin` is known, and any number of processes on
any nodes copy them there, each part once. The layout of the files is in
`stationmaster.domain.indexed`. This module must not import torch.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from stationmaster.domain.datasets import FILES
from stationmaster.domain.errors import BadParameter, PermanentError
from stationmaster.domain.indexed import (
    BIN,
    DATA_NAME,
    IDX,
    TOKENIZER_NAME,
    UINT16,
    IndexHead,
    check_indexed,
    id_type,
)
from stationmaster.domain.staged_data import DataManifest
from training.data.shards import Manifest, PackPlan
from training.data.shares import SHARES, Pass, Result, Share
from training.data.targets import data_files
from training.data.token_work import TokenWork
from training.data.tokenizers import copy_tokenizer, token_of
from training.files import sync, whole_file, write_json

JOINS: Final = "joins"
# Of a part's work, beside tokenising it: what copying its tokens is worth where progress is shown.
_JOIN_WEIGHT: Final = 8
_LENGTHS: Final = "lengths.int32"
_JOINED: Final = "joined.json"
_PIECE_BYTES: Final = 2**24
_LENGTHS_AT_ONCE: Final = 2**20

Lengths = npt.NDArray[np.int32]


@dataclass(frozen=True)
class IndexedWork(TokenWork):
    """Packs text as for the trainer, in parts, and joins these to one indexed data set."""

    def passes(self) -> list[Pass]:
        """List the passes: parts are packed, then joined; none where files are Megatron's."""
        if self._ready is not None:
            return [Pass(SHARES, [], self.pack)]
        packed = self.shares()
        joined = [Share(name=each.name, weight=each.weight // _JOIN_WEIGHT) for each in packed]
        return [Pass(SHARES, packed, self.pack), Pass(JOINS, joined, self.join)]

    def join(self, share: Share) -> Result:
        """Copy one part to its place, and keep the lengths of its documents.

        Raises:
            PermanentError: its tokens are not what was packed.
        """
        number = int(share.name)
        part, manifest = self.part(number), self._manifests[number]
        if not (part / _JOINED).exists():
            write_json(part / _JOINED, self._copy(number, part, manifest))
        # After its end is written: there is room for the parts once, not twice.
        for shard in manifest.shards:
            (part / shard.file).unlink(missing_ok=True)
        return {"num_tokens": manifest.num_tokens}

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
            sha256 = {DATA_NAME + IDX: self._write_joined(files)}
        head, num_tokens = look_at_indexed(files / DATA_NAME)
        found = filter(Path.is_file, files.rglob("*"))
        return self.target.manifest(
            root=f"{self.target.name}/{FILES}",
            counts={"tokens": num_tokens, "documents": head.num_documents},
            files=data_files(files, found, sha256=sha256),
        )

    def _write_joined(self, files: Path) -> str:
        """Give the `.bin` its name and write what belongs to it; repeating it changes nothing.

        Returns the hash of the `.idx`.

        Raises:
            BadParameter: there is no text in any part.
        """
        described = files / f"{DATA_NAME}.json"
        if described.exists():
            return str(json.loads(described.read_bytes())["index_sha256"])
        num_tokens = sum(each.num_tokens for each in self._manifests)
        num_documents = sum(each.num_documents for each in self._manifests)
        if not num_tokens:
            raise BadParameter(f"{self.target.copied.source} holds no text")
        files.mkdir(parents=True, exist_ok=True)
        if self._begun.exists():
            self._begun.rename(files / f"{DATA_NAME}{BIN}")
        parts = [self.part(number) for number in range(len(self._manifests))]
        lengths = [part / _LENGTHS for part in parts]
        head = IndexHead(self._id_type, num_sequences=num_documents, num_documents=num_documents)
        plan, sha256 = self.plan, write_index(files / f"{DATA_NAME}{IDX}", head, lengths)
        _copy_tokenizer(self._tokenizer.path, files / TOKENIZER_NAME, plan=plan)
        contents = {
            "plan": plan.model_dump(mode="json"),
            "num_tokens": num_tokens,
            "num_documents": num_documents,
            "parts": [json.loads((part / _JOINED).read_bytes()) for part in parts],
            "index_sha256": sha256,
        }
        write_json(described, contents)
        for each in lengths:
            each.unlink()
        return sha256

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

    @cached_property
    def _manifests(self) -> list[Manifest]:
        return self.manifests()

    @cached_property
    def _first_tokens(self) -> list[int]:
        """List where each part begins in the `.bin`, in tokens."""
        numbers = (each.num_tokens for each in self._manifests)
        return [0, *itertools.accumulate(numbers)]

    @property
    def _id_type(self) -> int:
        return id_type(self._manifests[0].plan.vocab_size)

    @property
    def _dtype(self) -> np.dtype[Any]:
        return np.dtype("<u2" if self._id_type == UINT16 else "<i4")

    @property
    def _begun(self) -> Path:
        return self.target.directory / f".{DATA_NAME}{BIN}"

    def _copy(self, number: int, part: Path, manifest: Manifest) -> dict[str, int | str]:
        """Copy the tokens of a part; return what text_document.json says of it."""
        digest = hashlib.sha256()
        ends = _DocumentEnds(manifest.plan)
        # Others write to other places of the same file, at the same time.
        descriptor = os.open(self._begun, os.O_WRONLY | os.O_CREAT, 0o644)
        with (
            os.fdopen(descriptor, "wb") as out,
            whole_file(part / _LENGTHS) as begun,
            begun.open("wb") as lengths,
        ):
            out.seek(self._first_tokens[number] * self._dtype.itemsize)
            for ids in _tokens(part, manifest):
                data = ids.astype(self._dtype, copy=False).tobytes()
                digest.update(data)
                out.write(data)
                lengths.write(ends.lengths(ids).tobytes())
            ends.check(manifest, part=part)
        sync(self._begun)
        return {
            "num_tokens": manifest.num_tokens,
            "num_documents": manifest.num_documents,
            "sha256": digest.hexdigest(),
        }


class _DocumentEnds:
    """Finds documents in a stream of tokens: no text spells the end token, so it ends each."""

    def __init__(self, plan: PackPlan) -> None:
        self._end_id = plan.end_id
        # Where a document begins with the end token as well, every second one ends it.
        self._every = 1 + plan.begin_ids.count(plan.end_id)
        self._seen = 0
        self._open = 0
        self._found = 0

    def lengths(self, ids: npt.NDArray[Any]) -> Lengths:
        """Return the lengths of the documents that end in these tokens, the next of the stream."""
        places = np.flatnonzero(ids == self._end_id) + 1
        first = (self._every - 1 - self._seen) % self._every
        self._seen += len(places)
        ends = places[first :: self._every]
        lengths = np.diff(ends, prepend=-self._open).astype(np.int32)
        self._open = len(ids) - int(ends[-1]) if len(ends) else self._open + len(ids)
        self._found += len(ends)
        return lengths

    def check(self, manifest: Manifest, *, part: Path) -> None:
        """Compare what was found with what was packed.

        Raises:
            PermanentError: it differs.
        """
        if self._open or self._found != manifest.num_documents:
            raise PermanentError(
                f"{part} has {self._found:,} ends of documents and {self._open:,} tokens after "
                f"the last, and was packed from {manifest.num_documents:,} documents; remove "
                f"{part.parent.parent} and have it made again"
            )


def write_index(path: Path, head: IndexHead, lengths: Sequence[Path]) -> str:
    """Write a `.idx` whose documents are one sequence each; return its SHA-256.

    Args:
        path: of the file, which is there whole or not at all.
        head: of the file.
        lengths: files of int32, in order; together they hold as many as there are documents.
    """
    digest = hashlib.sha256()
    with whole_file(path) as begun, begun.open("wb") as out:
        for data in itertools.chain(
            [head.to_bytes()],
            (each.tobytes() for each in _read(lengths)),
            _pointers(_read(lengths), item_bytes=head.item_bytes),
            _counting(head.num_documents + 1),
        ):
            digest.update(data)
            out.write(data)
    return digest.hexdigest()


def _read(paths: Iterable[Path]) -> Iterator[Lengths]:
    for path in paths:
        with path.open("rb") as opened:
            while data := opened.read(_LENGTHS_AT_ONCE * 4):
                yield np.frombuffer(data, dtype="<i4")


def _pointers(lengths: Iterable[Lengths], *, item_bytes: int) -> Iterator[bytes]:
    begin = 0
    for some in lengths:
        ends = begin + np.cumsum(some.astype("<i8") * item_bytes)
        yield np.concatenate(([begin], ends[:-1])).astype("<i8").tobytes()
        begin = int(ends[-1])


def _counting(number: int) -> Iterator[bytes]:
    for first in range(0, number, _LENGTHS_AT_ONCE):
        yield np.arange(first, min(number, first + _LENGTHS_AT_ONCE), dtype="<i8").tobytes()


def _tokens(part: Path, manifest: Manifest) -> Iterator[npt.NDArray[Any]]:
    """Yield the tokens of a part, in pieces, compared with their hashes.

    Raises:
        PermanentError: a file is not what was packed.
    """
    for shard in manifest.shards:
        digest = hashlib.sha256()
        with (part / shard.file).open("rb") as opened:
            while data := opened.read(_PIECE_BYTES):
                digest.update(data)
                yield np.frombuffer(data, dtype=np.dtype(manifest.plan.dtype))
        if digest.hexdigest() != shard.sha256:
            raise PermanentError(
                f"{part / shard.file} is not what was packed; remove {part.parent.parent} and "
                "have it made again"
            )


def _copy_tokenizer(path: Path, directory: Path, *, plan: PackPlan) -> None:
    """Copy what `AutoTokenizer` reads, so that no rank asks the hub for it."""
    directory.mkdir(exist_ok=True)
    copy_tokenizer(path, directory)
    config = directory / "tokenizer_config.json"
    if not config.exists():
        end = token_of(path, plan.end_id)
        text = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": end}
        config.write_text(json.dumps(text, indent=2) + "\n")


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

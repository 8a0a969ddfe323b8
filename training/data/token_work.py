"""Text, copied or of the hub, packed in parts by any processes, and joined to one data set.

A part is a run of files, the same whoever packs it. The tokens of all parts one after the other are
those of a packing by one process; only where a file of tokens ends differs. This module must not
import torch.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Final

from stationmaster.domain.datasets import FILES, prepared_bytes
from stationmaster.domain.errors import BadParameter
from stationmaster.domain.staged_data import DataManifest
from training.data.corpus import Corpus
from training.data.corpus_lookup import find_corpus, read_corpus
from training.data.pack import DEFAULT_SHARD_TOKENS, make_plan, pack
from training.data.shards import (
    MANIFEST,
    Manifest,
    PackedData,
    PackPlan,
    Shard,
    read_packed,
)
from training.data.shares import SHARES, Pass, Result, Share
from training.data.targets import Target, data_files
from training.data.tokenizers import TokenizerFile, copy_tokenizer, prepare_tokenizer
from training.files import write_json
from training.repositories import TOKENIZER_FILES

# A file of C4 is one part, and a thousand small files are a few.
PART_BYTES: Final = 64 * 2**20


@dataclass(frozen=True)
class TokenWork:
    """Packs text into tokens, in parts below the target's directory."""

    target: Target
    part_bytes: int = PART_BYTES

    def passes(self) -> list[Pass]:
        """Return its one pass."""
        return [Pass(SHARES, self.shares(), self.pack)]

    def shares(self) -> list[Share]:
        """List a share for each part; the tokenizer is there before they begin.

        Raises:
            BadParameter, PermanentError: as `find_corpus` and `prepare_tokenizer`.
        """
        assert self._tokenizer
        return [
            Share(name=f"{number:05d}", weight=sum(self._sizes[file] for file in files))
            for number, files in enumerate(self._parts)
        ]

    def needed_bytes(self) -> int:
        """Return the room for a data set of the hub; for copied data, the copying has checked."""
        if self.target.copied.root:
            return 0
        preparation, sizes = self.target.preparation, self._sizes.items()
        return sum(prepared_bytes(preparation, file, size) for file, size in sizes)

    def pack(self, share: Share) -> Result:
        """Pack one part, or the rest of it.

        Raises:
            BadParameter, PermanentError: as `pack`.
        """
        number = int(share.name)
        part = replace(self._corpus, files=self._parts[number], held_out=())
        plan = make_plan(part, self._tokenizer, spec=self._spec, shard_tokens=DEFAULT_SHARD_TOKENS)
        packed = pack(part, self._tokenizer, plan, directory=self.part(number), may_be_empty=True)
        return {"num_tokens": packed.manifest.num_tokens}

    def finish(self) -> DataManifest:
        """Move the files of all parts into one packed data set; repeating it changes nothing.

        Raises:
            BadParameter: there is no text in any of them.
        """
        packed = self._join(self.target.directory / FILES)
        beside = (packed.directory / name for name in (MANIFEST, *TOKENIZER_FILES))
        paths = [*packed.paths, *filter(Path.is_file, beside)]
        sha256 = {shard.file: shard.sha256 for shard in packed.manifest.shards}
        return self.target.manifest(
            root=f"{self.target.name}/{FILES}",
            counts={
                "tokens": packed.manifest.num_tokens,
                "documents": packed.manifest.num_documents,
            },
            files=data_files(packed.directory, paths, sha256=sha256),
        )

    def _join(self, files: Path) -> PackedData:
        files.mkdir(parents=True, exist_ok=True)
        parts = self.manifests()
        shards: list[Shard] = []
        for number, part in enumerate(parts):
            for shard in part.shards:
                name = f"tokens-{len(shards):05d}.bin"
                if not (files / name).exists():
                    (self.part(number) / shard.file).rename(files / name)
                shards.append(shard.model_copy(update={"file": name}))
        if not shards:
            raise BadParameter(f"{self.target.copied.source} holds no text")
        copy_tokenizer(self._tokenizer.path, files)
        num_documents = sum(part.num_documents for part in parts)
        manifest = Manifest.of(self.plan, shards, num_documents=num_documents)
        write_json(files / MANIFEST, manifest.model_dump(mode="json"))
        return read_packed(files)

    @property
    def plan(self) -> PackPlan:
        """What decides the tokens of all parts."""
        return make_plan(
            self._corpus, self._tokenizer, spec=self._spec, shard_tokens=DEFAULT_SHARD_TOKENS
        )

    def manifests(self) -> list[Manifest]:
        """List what each part came to, once all are packed."""
        return [
            Manifest.model_validate_json((self.part(number) / MANIFEST).read_bytes())
            for number in range(len(self._parts))
        ]

    def part(self, number: int) -> Path:
        """Return the directory of one part."""
        return self.target.directory / "parts" / f"{number:05d}"

    @cached_property
    def _corpus(self) -> Corpus:
        copied = self.target.copied
        if copied.root:
            found = find_corpus(str(self.target.data / copied.root))
        else:
            found = find_corpus(copied.source, revision=copied.source_version)
        return replace(found, dataset=copied.source)

    @cached_property
    def _tokenizer(self) -> TokenizerFile:
        return prepare_tokenizer(
            self._spec,
            vocab_size=int(self.target.settings["vocab_size"]),
            cache_dir=self.target.directory / "cache",
            texts=lambda: read_corpus(self._corpus),
        )

    @property
    def _spec(self) -> str:
        return str(self.target.settings["tokenizer"])

    @cached_property
    def _parts(self) -> list[tuple[str, ...]]:
        if self._corpus.on_hub:
            return [(file,) for file in self._corpus.files]
        return split_into_parts(self._corpus.files, part_bytes=self.part_bytes)

    @cached_property
    def _sizes(self) -> dict[str, int]:
        """The bytes of each file; 0 where the hub does not say."""
        if not self._corpus.on_hub:
            return {file: os.path.getsize(file) for file in self._corpus.files}
        from training.data.hub_files import sizes_on_hub  # the hub's client

        sizes = sizes_on_hub(self._corpus)
        return {file: sizes.get(file, 0) for file in self._corpus.files}


def split_into_parts(files: Sequence[str], *, part_bytes: int) -> list[tuple[str, ...]]:
    """Split files into runs of `part_bytes` or a little more; a larger file is one part."""
    parts: list[tuple[str, ...]] = []
    part: list[str] = []
    num_bytes = 0
    for file in files:
        part.append(file)
        num_bytes += os.path.getsize(file)
        if num_bytes >= part_bytes:
            parts.append(tuple(part))
            part, num_bytes = [], 0
    return [*parts, tuple(part)] if part else parts

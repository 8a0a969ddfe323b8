"""Text to packed tokens: prepares a data set once, and every process of the node reads the result.

Called by `training.__main__` before torch is loaded. A data set is the name `python-stdlib` (the
sources of Python's own standard library: real text that every machine has) or a directory of UTF-8
text files. A byte-level BPE of the recipe's vocabulary is trained on the spot, the text is
tokenised, and one flat shard of token ids is written with a manifest.

The result lies in the cache under a hash of the contents. It is built under a file lock in a
temporary directory and renamed into place, so nobody ever reads half a shard. (On FSx for Lustre
the lock needs the mount option `flock`, which the CSI driver's default options include.)
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import sysconfig
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from stationmaster.domain.errors import BadParameter

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PYTHON_STDLIB: Final = "python-stdlib"
END_OF_TEXT: Final = "<|endoftext|>"
END_OF_TEXT_ID: Final = 0
_FORMAT_VERSION: Final = 1
# 5 MB of source is about 1.5 M tokens, 12,000 sequences of 128: 700 steps of tiny-llama before a
# sample comes twice, and about 3 s to prepare on one core.
_STDLIB_BYTES: Final = 5_000_000
_STDLIB_SKIPPED: Final = {"test", "tests", "idlelib", "lib2to3", "site-packages", "dist-packages"}
# The tokenizer sees a part of the text: 1 MB gives the same compression as all of it within 2 %,
# and trains in 0.4 s.
_TOKENIZER_BYTES: Final = 1_000_000
_DOCUMENTS_PER_BATCH: Final = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenShard:
    """A prepared data set on disk: `tokens_path` holds `num_tokens` ids of numpy type `dtype`."""

    tokens_path: Path
    num_tokens: int
    vocab_size: int
    dtype: str
    sha256: str


def prepare_dataset(dataset: str, *, vocab_size: int, cache_dir: Path) -> TokenShard:
    """Return the packed shard of a data set, building it unless the cache has it.

    Safe to call from many processes at once: one builds, the others wait for it.

    Raises:
        BadParameter: the data set is not a directory, or holds no text.
    """
    files = list_files(dataset)
    directory = cache_dir / "datasets" / _content_key(files, vocab_size=vocab_size)
    if not (directory / "manifest.json").exists():
        directory.parent.mkdir(parents=True, exist_ok=True)
        with (directory.parent / f"{directory.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (directory / "manifest.json").exists():
                _build(files, dataset=dataset, vocab_size=vocab_size, directory=directory)
    return read_shard(directory)


def read_shard(directory: Path) -> TokenShard:
    """Read a prepared data set's manifest and check the shard's size against it.

    Raises:
        BadParameter: the shard does not have the size that its manifest states.
    """
    manifest = json.loads((directory / "manifest.json").read_text())
    shard = TokenShard(
        tokens_path=directory / "tokens.bin",
        num_tokens=int(manifest["num_tokens"]),
        vocab_size=int(manifest["vocab_size"]),
        dtype=str(manifest["dtype"]),
        sha256=str(manifest["sha256"]),
    )
    found = shard.tokens_path.stat().st_size
    expected = shard.num_tokens * np.dtype(shard.dtype).itemsize
    if found != expected:
        raise BadParameter(
            f"{shard.tokens_path} has {found} bytes, its manifest says {expected}; "
            f"remove {directory} to have it built again"
        )
    return shard


def list_files(dataset: str) -> list[Path]:
    """The files of a data set, in an order that depends on their names only.

    Raises:
        BadParameter: there is no such directory, or no file in it.
    """
    if dataset == PYTHON_STDLIB:
        return _stdlib_files()
    root = Path(dataset)
    if not root.is_dir():
        raise BadParameter(
            f'dataset="{dataset}" is not a directory on this machine; expected '
            f"{PYTHON_STDLIB} or the path of a directory of text files that every node can read"
        )
    files = sorted(
        path
        for path in root.rglob("*")
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(root).parts)
    )
    if not files:
        raise BadParameter(f'dataset="{dataset}" holds no files; expected UTF-8 text files')
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


def _content_key(files: list[Path], *, vocab_size: int) -> str:
    digest = hashlib.sha256(f"{_FORMAT_VERSION} {vocab_size}".encode())
    for path in files:
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:24]


def _build(files: list[Path], *, dataset: str, vocab_size: int, directory: Path) -> None:
    # The Rust tokenizer starts a thread a core unless told not to; ranks and pods share the cores.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    dtype = np.dtype(np.uint16 if vocab_size <= 2**16 else np.uint32)
    tokenizer = _train_tokenizer(files, vocab_size=vocab_size)
    building = Path(tempfile.mkdtemp(prefix=".building-", dir=directory.parent))
    try:
        digest, num_tokens = hashlib.sha256(), 0
        with (building / "tokens.bin").open("wb") as out:
            for ids in _tokenise(tokenizer, files):
                packed = np.asarray(ids, dtype=dtype).tobytes()
                digest.update(packed)
                out.write(packed)
                num_tokens += len(ids)
            out.flush()
            os.fsync(out.fileno())
        tokenizer.save(str(building / "tokenizer.json"))
        manifest = {
            "format": _FORMAT_VERSION,
            "dataset": dataset,
            "num_documents": len(files),
            "num_tokens": num_tokens,
            "vocab_size": vocab_size,
            "dtype": dtype.name,
            "sha256": digest.hexdigest(),
        }
        (building / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")
        building.rename(directory)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _train_tokenizer(files: list[Path], *, vocab_size: int) -> Tokenizer:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers  # only to build

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts_up_to(files, limit=_TOKENIZER_BYTES), trainer)
    return tokenizer


def _texts_up_to(files: list[Path], *, limit: int) -> Iterator[str]:
    total = 0
    for path in files:
        if total >= limit:
            return
        text = _read_text(path)
        total += len(text)
        yield text


def _tokenise(tokenizer: Tokenizer, files: list[Path]) -> Iterator[list[int]]:
    """The ids of each document, with the end-of-text id after it."""
    for start in range(0, len(files), _DOCUMENTS_PER_BATCH):
        texts = [_read_text(path) for path in files[start : start + _DOCUMENTS_PER_BATCH]]
        for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False):
            yield [*encoding.ids, END_OF_TEXT_ID]


def _read_text(path: Path) -> str:
    # A few standard library files are Latin-1; a replaced byte in a comment harms nobody.
    return path.read_bytes().decode("utf-8", errors="replace")

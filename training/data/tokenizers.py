"""The tokenizer that `tokenizer=` names, and text to token ids with it.

A tokenizer is `bpe`, a byte-level BPE trained on the data set's own text; a tokenizer.json, or a
directory that has one; or ORG/MODEL on the Hugging Face hub. This module must not import torch.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from stationmaster.domain.errors import BadParameter
from training.files import build_once
from training.repositories import TOKENIZER_FILES

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TRAINED: Final = "bpe"
END_OF_TEXT: Final = "<|endoftext|>"
# GPT-2, Llama 2 and Mistral, Llama 3: for a tokenizer that comes without tokenizer_config.json.
_END_TOKENS: Final = (END_OF_TEXT, "</s>", "<|end_of_text|>")
# 1 MB of text gives the same compression as all of it within 2 %, and trains in 0.3 s.
_TRAINING_CHARACTERS: Final = 1_000_000
# Training costs the square of a word's length, 20 s for 100,000 letters: it is cut after so many.
_LONG_WORD: Final = re.compile(r"\S{1000}(?=\S)|\s{1000}(?=\s)")
_FORMAT_VERSION: Final = 2

TokenIds = npt.NDArray[np.uint16] | npt.NDArray[np.uint32]


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizerFile:
    """A tokenizer on disk and what a document needs of it."""

    path: Path
    """Its tokenizer.json."""
    identity: str
    """The SHA-256 of that file."""
    vocab_size: int
    """One more than the highest id."""
    begin_ids: tuple[int, ...]
    """What the tokenizer's own template puts before a text: (1,) for Llama 2, () for bpe."""
    end_id: int
    """The token after each document."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """The smallest unsigned type that holds every id."""
        return np.dtype(np.uint16 if self.vocab_size <= 2**16 else np.uint32)


def prepare_tokenizer(
    spec: str, *, vocab_size: int | None, cache_dir: Path, texts: Callable[[], Iterable[str]]
) -> TokenizerFile:
    """Find, download or train a tokenizer; safe to call from many processes at once.

    Args:
        spec: bpe, a path, or ORG/MODEL.
        vocab_size: entries of the model's vocabulary; None to take any tokenizer that exists.
        cache_dir: where downloaded and trained tokenizers are kept.
        texts: the documents to train bpe on; read as far as needed.

    Raises:
        BadParameter: no such tokenizer, it does not fit the model's vocabulary, or it has no token
            to end documents with.
        PermanentError: the hub cannot be reached.
    """
    if spec == TRAINED:
        if vocab_size is None:
            raise BadParameter(f"tokenizer={TRAINED} needs the size of the vocabulary to train")
        return describe_tokenizer(_trained(texts(), vocab_size=vocab_size, cache_dir=cache_dir))
    found = describe_tokenizer(_locate(spec, cache_dir=cache_dir))
    if vocab_size is not None and found.vocab_size > vocab_size:
        raise BadParameter(
            f'tokenizer="{spec}" has {found.vocab_size} entries, the model\'s vocabulary is '
            f"{vocab_size}; use the tokenizer that the model was made for"
        )
    return found


def describe_tokenizer(path: Path) -> TokenizerFile:
    """Read a tokenizer.json, with the tokenizer_config.json beside it where there is one.

    Raises:
        BadParameter: it is no tokenizer, or it has no token to end documents with.
    """
    tokenizer = _open(path)
    plain = tokenizer.encode("a", add_special_tokens=False).ids
    special = tokenizer.encode("a", add_special_tokens=True).ids
    begin = next(
        (n for n in range(len(special)) if special[n : n + len(plain)] == plain),
        0,
    )
    return TokenizerFile(
        path=path,
        identity=hashlib.sha256(path.read_bytes()).hexdigest(),
        vocab_size=max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1,
        begin_ids=tuple(special[:begin]),
        end_id=_end_id(tokenizer, path),
    )


def special_ids(path: Path) -> dict[str, int | None]:
    """Return a tokenizer's begin, end and padding ids, by their names in config.json."""
    described, tokenizer = describe_tokenizer(path), _open(path)
    begin, padding = (
        tokenizer.token_to_id(_declared(path, role) or "") for role in ("bos_token", "pad_token")
    )
    if begin is None and described.begin_ids:
        begin = described.begin_ids[0]
    return {"bos_token_id": begin, "eos_token_id": described.end_id, "pad_token_id": padding}


def copy_tokenizer(path: Path, directory: Path) -> None:
    """Copy a tokenizer.json, under this name, and what belongs to it and lies beside it."""
    shutil.copyfile(path, directory / "tokenizer.json")
    for name in TOKENIZER_FILES[1:]:
        if path.with_name(name).is_file():
            shutil.copyfile(path.with_name(name), directory / name)


def token_of(path: Path, token_id: int) -> str:
    """Return the token with an id, as a tokenizer.json spells it."""
    token = _open(path).id_to_token(token_id)
    assert token is not None
    return token


class TextTokenizer:
    """Encodes batches of text on one core."""

    def __init__(self, file: TokenizerFile) -> None:
        # The Rust library starts a thread a core unless disabled; ranks and pods share the
        # cores, and packing has a process a core.
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        self._tokenizer = _open(file.path)
        self._begin = list(file.begin_ids)
        self._end = [file.end_id]
        self._dtype = file.dtype

    def encode(self, texts: list[str]) -> list[TokenIds]:
        """Encode each text, without any special token."""
        encoded = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [np.asarray(one.ids, dtype=self._dtype) for one in encoded]

    def encode_documents(self, texts: list[str]) -> list[TokenIds]:
        """Encode each text between the tokenizer's begin and end tokens."""
        encoded = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        begin, end, dtype = self._begin, self._end, self._dtype
        return [np.asarray(begin + one.ids + end, dtype=dtype) for one in encoded]


def _open(path: Path) -> Tokenizer:
    from tokenizers import Tokenizer  # not needed where a packed data set is read

    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as exc:  # what the library raises is a bare Exception
        raise BadParameter(f"{path} is not a tokenizer.json: {exc}") from exc
    # A file may ask for cutting and padding, and a text may spell <|endoftext|>: as text, please.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True
    return tokenizer


def _locate(spec: str, *, cache_dir: Path) -> Path:
    path = Path(spec)
    if path.is_dir():
        path /= "tokenizer.json"
        if path.is_file():
            return path
        raise BadParameter(f'tokenizer="{spec}" has no tokenizer.json')
    if path.is_file():
        return path
    if spec.startswith((".", "/", "~")) or spec.count("/") != 1:
        raise BadParameter(
            f'tokenizer="{spec}" is not on this machine; expected {TRAINED}, ORG/MODEL on the '
            "Hugging Face hub, or the path of a tokenizer.json that every node can read"
        )
    from training.repositories import fetch_repository  # downloads need more libraries

    return fetch_repository(spec, cache_dir=cache_dir, files="tokenizer") / "tokenizer.json"


def _end_id(tokenizer: Tokenizer, path: Path) -> int:
    declared = _declared(path, "eos_token")
    names = [declared] if declared else [*_END_TOKENS]
    for name in names:
        found = tokenizer.token_to_id(name)
        if found is not None:
            return found
    raise BadParameter(
        f"{path} has none of the tokens {', '.join(names)} to end a document with; name one as "
        "eos_token in tokenizer_config.json beside it"
    )


def _declared(path: Path, role: str) -> str | None:
    """Return the token for eos_token or another role that files beside a tokenizer.json name."""
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        file = path.with_name(name)
        if not file.is_file():
            continue
        try:
            declared = json.loads(file.read_bytes()).get(role)
        except (ValueError, AttributeError) as exc:
            raise BadParameter(f"{file} cannot be read: {exc}; expected a JSON object") from exc
        # Written as the token itself, or as an object that has it.
        content = declared.get("content") if isinstance(declared, dict) else declared
        if content:
            return str(content)
    return None


def _trained(texts: Iterable[str], *, vocab_size: int, cache_dir: Path) -> Path:
    sample = list(_up_to(texts, limit=_TRAINING_CHARACTERS))
    key = hashlib.sha256(f"{_FORMAT_VERSION} {vocab_size}".encode())
    for text in sample:
        key.update(hashlib.sha256(text.encode("utf-8", errors="surrogatepass")).digest())
    directory = cache_dir / "tokenizers" / key.hexdigest()[:24]
    build_once(
        directory,
        lambda building: _train(sample, vocab_size=vocab_size).save(
            str(building / "tokenizer.json")
        ),
    )
    return directory / "tokenizer.json"


def _train(sample: list[str], *, vocab_size: int) -> Tokenizer:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers  # as in _open

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((piece for text in sample for piece in _pieces(text)), trainer)
    return tokenizer


def _pieces(text: str) -> Iterator[str]:
    start = 0
    for long in _LONG_WORD.finditer(text):
        yield text[start : long.end()]
        start = long.end()
    yield text[start:]


def _up_to(texts: Iterable[str], *, limit: int) -> Iterator[str]:
    total = 0
    for text in texts:
        if total >= limit:
            return
        total += len(text)
        yield text[:limit]

"""Instructions and responses to packed sequences whose targets are the responses alone.

Called by `sources` for fine-tuning recipes. A data set is a file of rows or a directory of them
(see `stationmaster.domain.data_files`), hub:ORG/NAME[/CONFIG], or `python-docstrings`. A row has
one of

    {"prompt", "response"}                             used word for word
    {"instruction", "output"}, optionally "input"      in the frame that Alpaca made usual
    {"dialogue", "summary"}                            SAMSum, in the words of llama-cookbook
    {"messages": [{"role", "content"}, ...]}           every turn of the assistant is a response

Whole examples are packed into sequences of the recipe's length: an example never begins in one and
ends in another, and one that is longer is cut at its end and counted. As in llama-cookbook, tokens
also attend to earlier examples of their sequence; positions continue through it.

The packed data lie in the cache under a hash of what they are made of, built by one process under
a file lock. Nothing here imports torch; `packed` does.

Shape legend: B sequences of a micro-batch, T tokens of a sequence.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from stationmaster.domain.catalogue.models import LanguageModel
from stationmaster.domain.catalogue.training_config import LanguageTraining
from stationmaster.domain.data_files import ROW_FILES, is_table
from stationmaster.domain.errors import BadParameter
from stationmaster.domain.frozen import Frozen
from training.config import TrainerConfig
from training.data import docstrings
from training.data.corpus import HUB_PREFIX, Corpus
from training.data.corpus_lookup import find_corpus
from training.data.examples import Segment, read_examples
from training.data.tokenizers import (
    TRAINED,
    TextTokenizer,
    TokenizerFile,
    copy_tokenizer,
    prepare_tokenizer,
)
from training.files import build_once

_FORMAT_VERSION: Final = 1
_EXAMPLES_AT_ONCE: Final = 512
# Sequences that still take examples while packing: 32 fill to 99 % with examples of a tenth of a
# sequence, and reorder nothing over more than a few hundred examples.
_OPEN_SEQUENCES: Final = 32

logger = logging.getLogger(__name__)


class InstructionManifest(Frozen):
    """What a packed directory holds; `sha256` covers every token and every target."""

    dataset: str
    sequence_length: int
    dtype: str
    num_sequences: int
    num_eval_sequences: int
    num_examples: int
    num_eval_examples: int
    num_truncated: int
    """The number of examples longer than a sequence, cut at their end."""
    num_left_out: int
    """The number of examples whose prompt alone fills a sequence."""
    num_tokens: int
    num_targets: int
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedInstructions:
    """A packed data set on this machine."""

    directory: Path
    manifest: InstructionManifest

    @property
    def identity(self) -> str:
        """Name the contents."""
        return self.manifest.sha256

    @property
    def tokenizer(self) -> Path:
        """The tokenizer.json that encoded them."""
        return self.directory / "tokenizer.json"


def prepare_instructions(config: TrainerConfig) -> PreparedInstructions:
    """Pack the recipe's data set unless the cache has it; safe to call from many processes.

    Raises:
        BadParameter: no such data set or tokenizer, or a row that is not one of the four forms,
            named by file and line.
        PermanentError: the hub cannot be reached.
    """
    recipe, training = config.recipe, config.recipe.training
    assert isinstance(training, LanguageTraining)
    assert isinstance(recipe.model, LanguageModel)
    find_tokenizer = partial(
        prepare_tokenizer,
        training.tokenizer,
        vocab_size=recipe.model.vocab_size,
        cache_dir=config.cache_dir,
    )
    if training.tokenizer == TRAINED:
        spec = f"{TRAINED} {recipe.model.vocab_size}"  # without the data that it is trained on
    else:
        # Tokenizers of a base and of a chat model are often the same file, with another end token.
        tokenizer = find_tokenizer(texts=lambda: ())
        spec = f"{tokenizer.identity} {tokenizer.end_id}"
    sources = [_FORMAT_VERSION, _contents(training.dataset), spec, training.sequence_length]
    key = hashlib.sha256(json.dumps([*sources, training.eval_samples]).encode()).hexdigest()[:24]
    directory = config.cache_dir / "instructions" / key
    build_once(directory, partial(_build, training, find_tokenizer))
    manifest = InstructionManifest.model_validate_json((directory / "manifest.json").read_text())
    logger.info(
        "instructions ready: %d examples in %d sequences (%d cut, %d left out), %d for evaluation",
        manifest.num_examples,
        manifest.num_sequences,
        manifest.num_truncated,
        manifest.num_left_out,
        manifest.num_eval_examples,
    )
    if not manifest.num_sequences:
        raise BadParameter(
            f'recipe {recipe.name}: dataset="{training.dataset}" has '
            f"{manifest.num_eval_examples} examples, all held out by eval_samples="
            f"{training.eval_samples}; give more examples or a smaller eval_samples"
        )
    return PreparedInstructions(directory=directory, manifest=manifest)


def _contents(dataset: str) -> str:
    """Name a data set's contents; one on the hub by its name, so that it is asked for once."""
    if dataset.startswith(HUB_PREFIX):
        return dataset
    if dataset == docstrings.NAME:
        return docstrings.identity()
    digest = hashlib.sha256()
    corpus = _find(dataset)
    for file in (*corpus.files, *corpus.held_out):
        digest.update(hashlib.sha256(Path(file).read_bytes()).digest())
    return digest.hexdigest()


def _find(dataset: str) -> Corpus:
    path = Path(dataset)
    if path.is_file() and is_table(dataset):
        return Corpus(dataset=dataset, revision="", files=(dataset,), held_out=())
    if not path.is_dir() and not dataset.startswith(HUB_PREFIX):
        raise BadParameter(
            f'dataset="{dataset}" is not on this machine; expected {docstrings.NAME}, '
            f"{HUB_PREFIX}ORG/NAME, or the path of a .jsonl file or a directory of them that every "
            "node can read"
        )
    corpus = find_corpus(dataset)
    strange = [file for file in corpus.files if not is_table(file)]
    if strange:
        raise BadParameter(
            f'dataset="{dataset}" holds {strange[0]}; expected files of rows, which end in '
            f"{ROW_FILES}"
        )
    return corpus


def _examples(corpus: Corpus | None, *, held_out: bool) -> Iterator[list[Segment]]:
    if corpus is None:
        if not held_out:
            for question, answer in docstrings.docstring_pairs():
                yield [(f"{question}\n", False), (answer, True)]
        return
    for file in corpus.held_out if held_out else corpus.files:
        yield from read_examples(file)


def _build(
    training: LanguageTraining, find_tokenizer: Callable[..., TokenizerFile], directory: Path
) -> None:
    corpus = None if training.dataset == docstrings.NAME else _find(training.dataset)
    tokenizer = find_tokenizer(
        texts=lambda: (
            "".join(text for text, _ in example) for example in _examples(corpus, held_out=False)
        )
    )
    encoder = _Encoder(tokenizer, longest=training.sequence_length + 1)
    encoded = encoder.encode(_examples(corpus, held_out=False))
    # What the data set sets apart itself is evaluated on, or else its last examples.
    own = list(islice(encoder.encode(_examples(corpus, held_out=True)), training.eval_samples))
    held_out: deque[_Encoded] = deque(own)
    if not own and training.eval_samples:
        encoded = _all_but_last(encoded, held_out, number=training.eval_samples)
    digest = hashlib.sha256()
    write = partial(_write, digest=digest, length=encoder.longest, tokenizer=tokenizer)
    trained, evaluated = write(directory / "train", encoded), write(directory / "eval", held_out)
    manifest = InstructionManifest(
        dataset=training.dataset,
        sequence_length=training.sequence_length,
        dtype=tokenizer.dtype.name,
        num_sequences=trained["sequences"],
        num_eval_sequences=evaluated["sequences"],
        num_examples=trained["examples"],
        num_eval_examples=evaluated["examples"],
        num_truncated=encoder.num_truncated,
        num_left_out=encoder.num_left_out,
        num_tokens=trained["tokens"],
        num_targets=trained["targets"],
        sha256=digest.hexdigest(),
    )
    copy_tokenizer(tokenizer.path, directory)
    (directory / "manifest.json").write_text(manifest.model_dump_json(indent=2) + "\n")


@dataclass(frozen=True, slots=True)
class _Encoded:
    """An example: its tokens, and which of them are responses; at most T + 1 of each."""

    tokens: npt.NDArray[Any]
    is_target: npt.NDArray[np.bool_]


class _Encoder:
    """Turns examples into tokens; counts what did not fit."""

    def __init__(self, tokenizer: TokenizerFile, *, longest: int) -> None:
        self._text = TextTokenizer(tokenizer)
        self._begin = np.asarray(tokenizer.begin_ids, dtype=tokenizer.dtype)
        self._end = np.asarray([tokenizer.end_id], dtype=tokenizer.dtype)
        self.longest = longest
        self.num_truncated = 0
        self.num_left_out = 0

    def encode(self, examples: Iterable[list[Segment]]) -> Iterator[_Encoded]:
        """Yield the tokens of each example that has at least one target."""
        remaining = iter(examples)
        while batch := list(islice(remaining, _EXAMPLES_AT_ONCE)):
            ids = iter(self._text.encode([text for example in batch for text, _ in example]))
            for example in batch:
                encoded = self._join([(next(ids), is_response) for _, is_response in example])
                if encoded.is_target.any():
                    yield encoded
                else:
                    self.num_left_out += 1

    def _join(self, segments: list[tuple[npt.NDArray[Any], bool]]) -> _Encoded:
        """Join the begin token, segments, and the end token of each response, also a target."""
        tokens = [self._begin]
        is_target = [np.zeros(len(self._begin), dtype=np.bool_)]
        for ids, is_response in segments:
            part = np.concatenate([ids, self._end]) if is_response else ids
            tokens.append(part)
            is_target.append(np.full(len(part), is_response))
        joined, marks = np.concatenate(tokens), np.concatenate(is_target)
        if len(joined) > self.longest and marks[: self.longest].any():
            self.num_truncated += 1
        return _Encoded(joined[: self.longest], marks[: self.longest])


def _all_but_last(
    examples: Iterable[_Encoded], last: deque[_Encoded], *, number: int
) -> Iterator[_Encoded]:
    """Pass examples on but for the last `number`, which are left in `last`."""
    for example in examples:
        last.append(example)
        if len(last) > number:
            yield last.popleft()


@dataclass(slots=True)
class _Sequence:
    """A sequence that is being filled."""

    room: int
    examples: list[_Encoded] = field(default_factory=list)


def _write(
    path: Path,
    examples: Iterable[_Encoded],
    *,
    digest: Any,
    length: int,
    tokenizer: TokenizerFile,
) -> Counter[str]:
    """Pack and write examples: `path`.tokens and, a byte for each, `path`.targets; count them."""
    written: Counter[str] = Counter()
    with (
        path.with_suffix(".tokens").open("wb") as ids,
        path.with_suffix(".targets").open("wb") as (marks),
    ):
        for sequence in _pack(examples, length=length):
            tokens = np.full(length, tokenizer.end_id, dtype=tokenizer.dtype)
            is_target = np.zeros(length, dtype=np.bool_)
            at = 0
            for example in sequence:
                end = at + len(example.tokens)
                tokens[at:end], is_target[at:end] = example.tokens, example.is_target
                at = end
            for stream, values in ((ids, tokens), (marks, is_target)):
                stream.write(values.tobytes())
                digest.update(values.tobytes())
            written.update(
                sequences=1,
                examples=len(sequence),
                tokens=at,
                targets=int(is_target[1:].sum()),
            )
    return written


def _pack(examples: Iterable[_Encoded], *, length: int) -> Iterator[list[_Encoded]]:
    """Put each example into the first open sequence with room for it, in order."""
    filling: deque[_Sequence] = deque()
    for example in examples:
        size = len(example.tokens)
        chosen = next((sequence for sequence in filling if sequence.room >= size), None)
        if chosen is None:
            if len(filling) == _OPEN_SEQUENCES:
                yield filling.popleft().examples
            chosen = _Sequence(room=length)
            filling.append(chosen)
        chosen.examples.append(example)
        chosen.room -= size
    for sequence in filling:
        yield sequence.examples

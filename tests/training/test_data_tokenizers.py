"""Which tokenizer a run uses, and what a document becomes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from data_sets import number_tokenizer, word_tokenizer
from tokenizers import Tokenizer

from stationmaster.domain.errors import BadParameter
from training.data.tokenizers import (
    TextTokenizer,
    describe_tokenizer,
    prepare_tokenizer,
    token_of,
)

TEXTS = ["the first train leaves\n", "é and 中 stay whole\n", "it says <|endoftext|> here\n"]


def test_trained_tokenizer_documents_decode_to_their_text(tmp_path: Path) -> None:
    file = prepare_tokenizer("bpe", vocab_size=512, cache_dir=tmp_path, texts=lambda: TEXTS)

    documents = TextTokenizer(file).encode_documents(TEXTS)

    decoder = Tokenizer.from_file(str(file.path))
    for ids, text in zip(documents, TEXTS, strict=True):
        assert ids[-1] == file.end_id
        assert file.end_id not in ids[:-1]
        assert decoder.decode(ids[:-1].tolist()) == text
    assert file.vocab_size <= 512
    assert documents[0].dtype == np.uint16


def test_trained_tokenizer_is_trained_once_for_the_same_text(tmp_path: Path) -> None:
    first = prepare_tokenizer("bpe", vocab_size=512, cache_dir=tmp_path, texts=lambda: TEXTS)
    written = first.path.stat().st_mtime_ns

    again = prepare_tokenizer("bpe", vocab_size=512, cache_dir=tmp_path, texts=lambda: TEXTS)
    other = prepare_tokenizer("bpe", vocab_size=512, cache_dir=tmp_path, texts=lambda: TEXTS[:1])

    assert again == first
    assert again.path.stat().st_mtime_ns == written
    assert other.identity != first.identity


def test_trained_tokenizer_cuts_a_word_without_an_end(tmp_path: Path) -> None:
    """Training on it whole takes minutes, since that costs the square of its length."""
    file = prepare_tokenizer(
        "bpe", vocab_size=300, cache_dir=tmp_path, texts=lambda: ["a" * 20_000, " " * 20_000]
    )

    tokens = [token_of(file.path, token_id) for token_id in range(file.vocab_size)]
    assert 100 < max(map(len, tokens[1:])) <= 1000


def test_prepare_tokenizer_larger_than_the_model_is_refused(tmp_path: Path) -> None:
    file = number_tokenizer(tmp_path, vocab_size=300)

    with pytest.raises(BadParameter, match="has 300 entries, the model's vocabulary is 299"):
        prepare_tokenizer(str(tmp_path), vocab_size=299, cache_dir=tmp_path, texts=list)
    assert prepare_tokenizer(str(file.path), vocab_size=300, cache_dir=tmp_path, texts=list) == file


def test_describe_tokenizer_takes_begin_and_end_from_its_own_files(tmp_path: Path) -> None:
    words = ["a", "<s>", "<stop>", "<|endoftext|>"]
    path = word_tokenizer(tmp_path, words, special=words[1:], begin="<s>")
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.enable_truncation(2)
    tokenizer.save(str(path))
    config = {"eos_token": {"content": "<stop>", "special": True}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))

    file = describe_tokenizer(tmp_path / "tokenizer.json")

    (ids,) = TextTokenizer(file).encode_documents(["a a a"])
    assert ids.tolist() == [1, 0, 0, 0, 2]
    assert TextTokenizer(file).encode(["a a"])[0].tolist() == [0, 0]


def test_describe_tokenizer_without_an_end_token_says_where_to_name_one(tmp_path: Path) -> None:
    path = word_tokenizer(tmp_path, ["a"], special=[])

    with pytest.raises(BadParameter, match=r"name one as eos_token in tokenizer_config\.json"):
        describe_tokenizer(path)


def test_describe_tokenizer_reads_all_files_that_name_its_end(tmp_path: Path) -> None:
    path = number_tokenizer(tmp_path).path
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"eos_token": "7"}))

    assert describe_tokenizer(path).end_id == 7

    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<eos>"}))
    with pytest.raises(BadParameter, match="has none of the tokens <eos> to end a document"):
        describe_tokenizer(path)
    (tmp_path / "tokenizer_config.json").write_text("[]")
    with pytest.raises(BadParameter, match=r"tokenizer_config\.json cannot be read"):
        describe_tokenizer(path)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("/no/such/tokenizer.json", "is not on this machine; expected bpe, ORG/MODEL"),
        ("llama", "is not on this machine; expected bpe, ORG/MODEL"),
        ("{directory}", "has no tokenizer.json"),
        ("{directory}/text.txt", "is not a tokenizer.json"),
    ],
)
def test_prepare_tokenizer_what_is_none_is_refused(tmp_path: Path, spec: str, message: str) -> None:
    (tmp_path / "text.txt").write_text("text")

    with pytest.raises(BadParameter, match=message):
        prepare_tokenizer(
            spec.format(directory=tmp_path), vocab_size=10, cache_dir=tmp_path, texts=list
        )

"""Megatron's indexed data set: what its own reader would find, whoever has written which part."""

from __future__ import annotations

import itertools
import json
import shutil
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pytest
from data_sets import numbered, word_tokenizer, write_rows
from transformers import AutoTokenizer

from stationmaster.domain.datasets import FILES, MANIFEST_FILE, Preparation
from stationmaster.domain.errors import BadParameter, PermanentError
from stationmaster.domain.staged_data import DataManifest, StagedLine, read_staging_line
from training.data.indexed_work import IndexedWork
from training.data.shards import MANIFEST
from training.data.shares import Shares
from training.data.targets import find_target
from training.prepare import main, prepare

COPIED = "copied"
# Documents of 1 to 9 tokens in files that are parts of their own.
LENGTHS = [[3, 1, 9], [2], [5, 4, 1, 1], [7, 2]]


def tokenizer(directory: Path, *, vocab_size: int, begin: str = "", end: str = "</s>") -> str:
    """The word n is the token n; the last ids are </s> and <s>."""
    words = [str(n) for n in range(vocab_size - 2)]
    word_tokenizer(directory, words, special=["</s>", "<s>"], begin=begin)
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": end})
    )
    return str(directory)


def copy_in(data: Path, lengths: Iterable[Sequence[int]] = LENGTHS) -> None:
    """What the stager leaves of files of rows; the document n is its own number, over and over."""
    number = 0
    for file, each in enumerate(lengths):
        texts = [numbered(number + n, length=length) for n, length in enumerate(each)]
        write_rows(data / COPIED / FILES / f"{file:02d}.jsonl", texts)
        number += len(each)
    write_copied(data)


def write_copied(data: Path) -> None:
    manifest = DataManifest(source="s3://b/x/", source_version="v", root=f"{COPIED}/{FILES}")
    (data / COPIED / MANIFEST_FILE).write_bytes(manifest.to_json())


def work(data: Path, spec: str, *, vocab_size: int) -> IndexedWork:
    settings: dict[str, str | int] = {"tokenizer": spec, "vocab_size": vocab_size}
    target = find_target(data, COPIED, preparation=Preparation.MEGATRON, settings=settings)
    return IndexedWork(target, part_bytes=1)


def do_all(indexed: IndexedWork) -> DataManifest:
    """What `prepare` does, in this process."""
    for each in indexed.passes():
        Shares(indexed.target.directory / each.name, each.shares).work(each.do)
    return indexed.finish()


def documents(prefix: Path) -> tuple[str, list[list[int]]]:
    """The type of ids and the documents, as the format says: no code of the product's."""
    index = prefix.with_suffix(".idx").read_bytes()
    magic, version, code, num_sequences, num_ends = struct.unpack_from("<9sQBQQ", index)
    assert (magic, version) == (b"MMIDIDX\0\0", 1)
    dtype = {4: "<i4", 8: "<u2"}[code]
    at = struct.calcsize("<9sQBQQ")
    lengths = np.frombuffer(index, "<i4", num_sequences, at)
    pointers = np.frombuffer(index, "<i8", num_sequences, at + lengths.nbytes)
    at += lengths.nbytes + pointers.nbytes
    ends = np.frombuffer(index, "<i8", num_ends, at)
    assert at + ends.nbytes == len(index)
    data = prefix.with_suffix(".bin").read_bytes()
    sequences = [
        np.frombuffer(data, dtype, length, pointer).tolist()
        for length, pointer in zip(lengths, pointers, strict=True)
    ]
    assert sum(len(each) for each in sequences) * np.dtype(dtype).itemsize == len(data)
    return dtype, [
        [token for sequence in sequences[first:end] for token in sequence]
        for first, end in itertools.pairwise(ends)
    ]


def expected(begin: list[int], end: int) -> list[list[int]]:
    lengths = [length for file in LENGTHS for length in file]
    return [[*begin, *[number] * length, end] for number, length in enumerate(lengths)]


@pytest.mark.parametrize(
    ("vocab_size", "begin", "end", "dtype"),
    [
        pytest.param(100, "", "</s>", "<u2", id="uint16"),
        pytest.param(65_499, "<s>", "</s>", "<u2", id="largest uint16"),
        pytest.param(65_500, "<s>", "</s>", "<i4", id="smallest int32, packed as uint16"),
        pytest.param(70_000, "<s>", "</s>", "<i4", id="int32"),
        pytest.param(100, "</s>", "</s>", "<u2", id="documents begin with the end token"),
    ],
)
def test_every_document_is_read_back(
    tmp_path: Path, vocab_size: int, begin: str, end: str, dtype: str
) -> None:
    spec = tokenizer(tmp_path / "tokenizer", vocab_size=vocab_size, begin=begin, end=end)
    copy_in(tmp_path)
    ids = {"</s>": vocab_size - 2, "<s>": vocab_size - 1}

    manifest = do_all(work(tmp_path, spec, vocab_size=vocab_size))

    wanted = expected([ids[begin]] if begin else [], ids[end])
    found = documents(tmp_path / manifest.root / "text_document")
    assert found == (dtype, wanted)
    num_tokens = sum(len(each) for each in wanted)
    assert manifest.counts == {"tokens": num_tokens, "documents": len(wanted)}


def test_files_are_the_same_whoever_joins_which_part(tmp_path: Path) -> None:
    spec = tokenizer(tmp_path / "tokenizer", vocab_size=100)
    one, other = tmp_path / "one", tmp_path / "other"
    for data in (one, other):
        copy_in(data)
    interrupted = work(other, spec, vocab_size=100)
    packing, joining = interrupted.passes()
    Shares(interrupted.target.directory / packing.name, packing.shares).work(packing.do)
    # A node that was killed has joined the last part and not said so, and wrote nonsense before it.
    joining.do(joining.shares[-1])
    begun = interrupted.target.directory / ".text_document.bin"
    begun.write_bytes(b"\xff" * 10 + begun.read_bytes()[10:])

    first = do_all(work(one, spec, vocab_size=100))
    second = do_all(work(other, spec, vocab_size=100))

    assert first == second
    for file in first.files:
        left = (one / first.root / file.path).read_bytes()
        assert left == (other / second.root / file.path).read_bytes(), file.path
    assert not list((other / interrupted.target.name / "parts").rglob("*.bin"))


def test_finish_that_was_killed_continues(tmp_path: Path) -> None:
    spec = tokenizer(tmp_path / "tokenizer", vocab_size=100)
    copy_in(tmp_path)
    indexed = work(tmp_path, spec, vocab_size=100)
    files = indexed.target.directory / FILES
    for each in indexed.passes():
        Shares(indexed.target.directory / each.name, each.shares).work(each.do)
    files.mkdir()
    (indexed.target.directory / ".text_document.bin").rename(files / "text_document.bin")

    first = indexed.finish()
    again = work(tmp_path, spec, vocab_size=100).finish()

    assert documents(files / "text_document")[1] == expected([], 98)
    assert again == first
    assert again.counts["documents"] == 10


def test_tokens_that_are_not_what_was_packed_are_refused(tmp_path: Path) -> None:
    spec = tokenizer(tmp_path / "tokenizer", vocab_size=100)
    copy_in(tmp_path)
    indexed = work(tmp_path, spec, vocab_size=100)
    packing, joining = indexed.passes()
    Shares(indexed.target.directory / packing.name, packing.shares).work(packing.do)
    path = indexed.target.directory / "parts/00002/tokens-00000.bin"
    path.write_bytes(b"\1" + path.read_bytes()[1:])
    manifest = indexed.target.directory / "parts/00001" / MANIFEST
    stated = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(stated | {"num_documents": stated["num_documents"] + 1}))

    with pytest.raises(PermanentError, match=r"tokens-00000\.bin is not what was packed"):
        joining.do(joining.shares[2])
    with pytest.raises(PermanentError, match="ends of documents"):
        joining.do(joining.shares[1])


def test_tokenizer_is_loaded_from_the_data(tmp_path: Path) -> None:
    copy_in(tmp_path)

    manifest = do_all(work(tmp_path, "bpe", vocab_size=300))

    loaded = AutoTokenizer.from_pretrained(tmp_path / manifest.root / "tokenizer")
    dtype, found = documents(tmp_path / manifest.root / "text_document")
    assert dtype == "<u2"
    assert [ids[-1] for ids in found] == [loaded.eos_token_id] * 10
    assert loaded.decode(found[1][:-1]) == "1"


def test_text_without_any_is_refused(tmp_path: Path) -> None:
    spec = tokenizer(tmp_path / "tokenizer", vocab_size=100)
    copy_in(tmp_path, [[]])

    with pytest.raises(BadParameter, match="s3://b/x/ holds no text"):
        do_all(work(tmp_path, spec, vocab_size=100))


@pytest.fixture
def made_elsewhere(tmp_path: Path) -> Path:
    """The directory of files that Megatron's own tool has written, say."""
    spec = tokenizer(tmp_path / "tokenizer", vocab_size=100)
    copy_in(tmp_path / "elsewhere")
    manifest = do_all(work(tmp_path / "elsewhere", spec, vocab_size=100))
    files = tmp_path / COPIED / FILES
    files.mkdir(parents=True)
    for ending in (".bin", ".idx"):
        source = tmp_path / "elsewhere" / manifest.root / f"text_document{ending}"
        shutil.copyfile(source, files / f"corpus_text_document{ending}")
    write_copied(tmp_path)
    return files


def test_files_of_megatron_are_taken_as_they_are_if_they_are_whole(
    tmp_path: Path, made_elsewhere: Path
) -> None:
    data = made_elsewhere / "corpus_text_document.bin"
    staged = prepare(
        work(tmp_path, "ORG/NONE", vocab_size=100), processes=1, progress=lambda done, total: None
    )

    assert documents(tmp_path / staged.root / "text_document")[1] == expected([], 98)
    assert staged.counts["documents"] == 10
    data.write_bytes(data.read_bytes()[:-2])
    with pytest.raises(BadParameter, match=r"\.bin has 88 bytes, its index says 90"):
        do_all(work(tmp_path, "ORG/NONE", vocab_size=100))
    for ending in (".bin", ".idx"):
        (made_elsewhere / f"second{ending}").write_bytes(b"")
    with pytest.raises(BadParameter, match=r"holds 2 indexed data sets .*, corpus_.*, second;"):
        work(tmp_path, "ORG/NONE", vocab_size=100).passes()


def test_program_finds_what_an_earlier_run_has_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = tokenizer(tmp_path / "tokenizer", vocab_size=100)
    copy_in(tmp_path)
    words = ["megatron", COPIED, "--tokenizer", spec, "--vocab-size", "100", "--run-id", "run-1"]

    def run() -> tuple[int, str]:
        code = main([*words, "--data-directory", str(tmp_path), "--processes", "1"])
        return code, capsys.readouterr().out.splitlines()[-1]

    _, first = run()
    code, second = run()

    begun, line = read_staging_line(first), read_staging_line(second)
    assert isinstance(begun, StagedLine)
    assert isinstance(line, StagedLine)
    assert (code, begun.was_there, line.was_there) == (0, False, True)
    assert line.counts == {"tokens": 45, "documents": 10}
    (tmp_path / line.root / "text_document.idx").write_bytes(b"")
    code, said = run()
    assert code == 3
    assert "text_document.idx has 0 bytes, its manifest says" in said

"""What a data set's name stands for, and reading documents from any row."""

from __future__ import annotations

from pathlib import Path

import pytest
from data_sets import FORMATS, write_rows

from stationmaster.domain.errors import BadParameter, PermanentError
from training.data.corpus import split_files
from training.data.corpus_lookup import find_corpus
from training.data.corpus_reading import read_documents

TEXTS = ["one", "", 'a "quoted",\nline', "é 中", "five", "six", "seven"]


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("start", [0, 1, 3, 4, 6, 7, 9])
def test_read_documents_goes_on_at_any_row(tmp_path: Path, name: str, start: int) -> None:
    file = write_rows(tmp_path / name, TEXTS)

    assert list(read_documents(str(file), start=start)) == TEXTS[start:]


def test_read_documents_other_files_are_one_document(tmp_path: Path) -> None:
    (tmp_path / "latin.py").write_bytes(b"caf\xe9\n")

    assert list(read_documents(str(tmp_path / "latin.py"))) == ["caf�\n"]
    assert list(read_documents(str(tmp_path / "latin.py"), start=1)) == []


@pytest.mark.parametrize(
    ("name", "contents", "message"),
    [
        ("a.jsonl", b'{"text": "x"}\n{"text": \n', r"a\.jsonl:2 is not JSON"),
        ("a.jsonl", b'{"content": "x", "id": 1}\n', r'a\.jsonl:1 has no "text" but content, id'),
        ("a.json", b'["x"]\n', r'a\.json:1 has no "text" but list'),
        ("a.csv", b"id,content\n1,x\n", r'a\.csv has no column "text" but id, content'),
        ("a.parquet", b"PAR1 and more", r"a\.parquet is not a parquet file"),
    ],
)
def test_read_documents_malformed_files_are_named(
    tmp_path: Path, name: str, contents: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(contents)

    with pytest.raises(BadParameter, match=message):
        list(read_documents(str(tmp_path / name)))


def test_read_documents_broken_archive_fails_with_a_sentence(tmp_path: Path) -> None:
    file = write_rows(tmp_path / "rows.jsonl.gz", TEXTS)
    file.write_bytes(file.read_bytes()[:-12])

    with pytest.raises(PermanentError, match=r"reading .*rows\.jsonl\.gz broke off"):
        list(read_documents(str(file)))


@pytest.mark.parametrize(
    ("names", "training", "held_out"),
    [
        (["a.jsonl", "b.jsonl"], ["a.jsonl", "b.jsonl"], []),
        (["a.jsonl", "validation-0.jsonl"], ["a.jsonl"], ["validation-0.jsonl"]),
        (
            ["extra.parquet", "test.parquet", "train-0.parquet", "valid.parquet"],
            ["train-0.parquet"],
            ["valid.parquet"],
        ),
        (["test.jsonl"], ["test.jsonl"], []),
        (["latest.jsonl"], ["latest.jsonl"], []),
        (["train.py", "test.py", "main.py"], ["train.py", "test.py", "main.py"], []),
    ],
)
def test_split_files_reads_what_names_say(
    names: list[str], training: list[str], held_out: list[str]
) -> None:
    assert split_files(names) == (training, held_out)


def test_find_corpus_directory_is_sorted_without_hidden_files(tmp_path: Path) -> None:
    for name in ("b.txt", "a/c.txt", ".git/config", ".hidden"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")

    corpus = find_corpus(str(tmp_path))

    assert [str(Path(file).relative_to(tmp_path)) for file in corpus.files] == ["a/c.txt", "b.txt"]
    assert find_corpus(f"stream:{tmp_path}").files == corpus.files


def test_find_corpus_stdlib_is_stable_and_skips_tests() -> None:
    files = [Path(file) for file in find_corpus("python-stdlib").files]

    assert [str(file) for file in files] == list(find_corpus("python-stdlib").files)
    assert 4_500_000 < sum(file.stat().st_size for file in files) < 6_000_000
    assert not any({"test", "idlelib", "site-packages"} & set(file.parts[3:]) for file in files)


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        ("shapes", "is not a directory on this machine; expected python-stdlib, c4, hub:ORG/NAME"),
        ("stream:/no/such", "is not a directory on this machine"),
        ("{directory}", "holds no files; expected UTF-8 text files"),
        ("hub:c4", "expected hub:ORG/NAME or hub:ORG/NAME/CONFIG"),
        ("hub:a/b/c/d", "expected hub:ORG/NAME or hub:ORG/NAME/CONFIG"),
    ],
)
def test_find_corpus_other_names_are_refused(tmp_path: Path, dataset: str, message: str) -> None:
    with pytest.raises(BadParameter, match=message):
        find_corpus(dataset.format(directory=tmp_path))

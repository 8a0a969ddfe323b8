"""What a data set's name stands for, and reading documents from any row."""

from __future__ import annotations

import gzip
import json
import tarfile
from pathlib import Path

import pytest
from data_sets import FORMATS, write_rows

from stationmaster.domain.errors import BadParameter, PermanentError
from training.data.corpus import split_files
from training.data.corpus_lookup import find_corpus
from training.data.rows import read_documents

TEXTS = ["one", "", 'a "quoted",\nline', "é 中", "five", "six", "seven"]


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("start", [0, 3, 4, 7, 9])
def test_read_documents_goes_on_at_any_row(tmp_path: Path, name: str, start: int) -> None:
    file = write_rows(tmp_path / name, TEXTS)

    assert list(read_documents(str(file), start=start)) == TEXTS[start:]


def test_read_documents_other_files_are_one_document(tmp_path: Path) -> None:
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress("\ufeffcaf\u00e9\n".encode()))

    assert list(read_documents(str(tmp_path / "a.txt.gz"))) == ["caf\u00e9\n"]
    assert list(read_documents(str(tmp_path / "a.txt.gz"), start=1)) == []


def test_compression_is_known_by_bytes_and_not_by_name(tmp_path: Path) -> None:
    file = write_rows(tmp_path / "rows.jsonl.gz", TEXTS).rename(tmp_path / "rows.jsonl.bz2")

    assert list(read_documents(str(file))) == TEXTS


def test_lines_of_json_are_read_whole_whatever_is_in_their_strings(tmp_path: Path) -> None:
    texts = [*(f"a{odd}b" for odd in "\u2028\u2029\x85\x00\x0b\x1c"), "x" * 3_000_000]
    lines = [json.dumps({"text": text}, ensure_ascii=False).encode() for text in texts]
    lines += [b"", b'\xef\xbb\xbf{"text": "of a file that was joined"}']
    (tmp_path / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + b"\r\n".join(lines))

    read = list(read_documents(str(tmp_path / "a.jsonl")))
    assert read == [*texts, "", "of a file that was joined"]


@pytest.mark.parametrize("ending", ["gz", "bz2", "xz", "zst"])
def test_compressed_files_joined_to_one_are_read_to_their_end(tmp_path: Path, ending: str) -> None:
    file = write_rows(tmp_path / f"a.jsonl.{ending}", TEXTS)
    file.write_bytes(2 * file.read_bytes())

    assert list(read_documents(str(file))) == 2 * TEXTS
    file.write_bytes(file.read_bytes() + b"damaged")
    with pytest.raises(PermanentError, match=r"reading .*a\.jsonl\.\w+ broke off"):
        list(read_documents(str(file)))


def test_half_a_surrogate_pair_becomes_the_replacement_character(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(b'{"text": "half \\ud83d of \\uD83D\\uDE00"}\n')

    assert list(read_documents(str(file))) == ["half \ufffd of \U0001f600"]


def test_directory_with_files_that_are_no_text_is_refused_by_name(tmp_path: Path) -> None:
    write_rows(tmp_path / "good.jsonl", TEXTS)
    (tmp_path / "utf16.txt").write_bytes("text".encode("utf-16"))
    (tmp_path / "latin1.txt").write_bytes("caf\u00e9 au lait".encode("latin-1"))
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\r\n")
    with tarfile.open(tmp_path / "shard.txt.gz", "w:gz") as tar:
        tar.add(tmp_path / "good.jsonl", "good.jsonl")

    with pytest.raises(BadParameter) as caught:
        find_corpus(str(tmp_path))

    said = str(caught.value)
    assert "4 of 5 files cannot be read as text: " in said
    assert f"{tmp_path}/latin1.txt is no UTF-8: byte 0xe9 at 3" in said
    assert f"{tmp_path}/picture.png is a picture" in said
    assert f"{tmp_path}/shard.txt.gz is a tar archive and 1 more" in said


def test_saved_dataset_is_its_arrow_files(tmp_path: Path) -> None:
    file = write_rows(tmp_path / "data-00000-of-00001.arrow", TEXTS)
    (tmp_path / "state.json").write_text("{}")

    assert find_corpus(str(tmp_path)).files == (str(file),)


@pytest.mark.parametrize(
    ("name", "contents", "message"),
    [
        ("a.jsonl", b'{"text": "x"}\n{"text": \n', r"a\.jsonl:2 is not JSON"),
        ("a.jsonl", b'{"content": "x", "id": 1}\n', r'a\.jsonl:1 has no "text" but content, id'),
        ("a.jsonl", b'{"text": {"en": "x"}}\n', r'a\.jsonl:1: "text" is dict, .*expected a text'),
        ("a.json", b'["x"]\n', r"a\.json:1 is str, expected an object"),
        ("a.csv", b"id,content\n1,x\n", r'a\.csv:2 has no "text" but id, content'),
        ("a.csv", b"id,text\n1,x\n2,caf\xe9\n", r"a\.csv is no UTF-8: byte 0xe9 at 17"),
        ("a.csv", b"id,text\n1,a, b\n", r"a\.csv:2 has not the 2 fields of the header"),
        ("a.csv", b"text,id\nx,1\ny\n", r"a\.csv:3 has not the 2 fields of the header"),
        ("a.csv", b'id,text\n1,"open\n2,c\n', r"a\.csv:2 is not CSV .*unexpected end of data"),
        ("a.parquet", b"PAR1 and more", r"a\.parquet is damaged"),
        ("a.arrow", b"ARROW1\0\0 and more", r"a\.arrow is damaged"),
        ("a.parquet", b"{}", r"a\.parquet is not a parquet file"),
        ("a.txt", b"a\n" * 9000 + b"caf\xe9", r"a\.txt:9001 is no UTF-8 \(byte 0xe9\)"),
    ],
)
def test_read_documents_malformed_files_are_named(
    tmp_path: Path, name: str, contents: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(contents)

    with pytest.raises(BadParameter, match=message):
        list(read_documents(str(tmp_path / name)))


def test_too_large_zstd_window_says_what_to_do(tmp_path: Path) -> None:
    # A frame's head with a window of 2 GiB, and an empty block.
    (tmp_path / "a.jsonl.zst").write_bytes(b"\x28\xb5\x2f\xfd\x00\xa8\x01\x00\x00")

    with pytest.raises(
        BadParameter, match=r"a\.jsonl\.zst is damaged .*: compress it again without"
    ):
        find_corpus(str(tmp_path))


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


def test_files_that_names_leave_out_are_named(caplog: pytest.LogCaptureFixture) -> None:
    split_files(["x/extra.jsonl", "x/train-0.jsonl", "notes.txt"])

    assert "left out: 1 of 2 files" in caplog.text
    assert caplog.text.rstrip().endswith(": extra.jsonl")


def test_links_that_are_not_followed_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "more").symlink_to(tmp_path)

    with pytest.raises(BadParameter, match="/more links to a folder or to nothing"):
        find_corpus(str(tmp_path))


def test_find_corpus_directory_is_sorted_without_hidden_files(tmp_path: Path) -> None:
    for name in ("b.txt", "a/c.txt", ".git/config", ".hidden"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")

    corpus = find_corpus(str(tmp_path))

    assert [str(Path(file).relative_to(tmp_path)) for file in corpus.files] == ["a/c.txt", "b.txt"]
    assert find_corpus(f"stream:{tmp_path}").files == corpus.files


def test_find_corpus_code_is_the_same_under_every_python() -> None:
    """Changes with transformers in constraints.txt, and with it the losses in README.md."""
    corpus = find_corpus("python-code")

    assert 4_500_000 < sum(Path(file).stat().st_size for file in corpus.files) < 5_000_000
    assert corpus.identity == "56e2cd119df70d012f1a6bb4585260cab0ce9f8e6ca363ac69597e78fb2ef970"


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        ("shapes", "is not a directory on this machine; expected python-code, c4, hub:ORG/NAME"),
        ("stream:/no/such", "is not a directory on this machine"),
        ("{directory}", "holds no files; expected UTF-8 text files"),
        ("hub:c4", "expected hub:ORG/NAME or hub:ORG/NAME/CONFIG"),
        ("hub:a/b/c/d", "expected hub:ORG/NAME or hub:ORG/NAME/CONFIG"),
    ],
)
def test_find_corpus_other_names_are_refused(tmp_path: Path, dataset: str, message: str) -> None:
    with pytest.raises(BadParameter, match=message):
        find_corpus(dataset.format(directory=tmp_path))

"""Packing: the same bytes however many workers there are and however often it was killed."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from data_sets import number_tokenizer, numbered, verify_packed, write_rows
from spoiling import contents_of
from trainer_runs import is_alive, wait_until

from stationmaster.domain.errors import BadParameter, NotPossibleNow
from training.data.corpus_lookup import find_corpus
from training.data.pack import make_plan, pack, unfinished_packing
from training.data.shards import PackedData, read_packed
from training.data.tokenizers import describe_tokenizer
from training.pack import main


@dataclass(frozen=True)
class PackedOnce:
    """A packed directory, what it was packed with, and the environment for it."""

    directory: Path
    arguments: list[str]
    environ: dict[str, str]


@pytest.fixture(scope="module")
def packed_once(tmp_path_factory: pytest.TempPathFactory) -> PackedOnce:
    """2 MB of Python packed by one worker, uninterrupted."""
    root = tmp_path_factory.mktemp("packed-once")
    (root / "text").mkdir()
    for number, file in enumerate(find_corpus("python-code").files[:90]):
        shutil.copyfile(file, root / "text" / f"{number:03}.py")
    once = PackedOnce(
        directory=root / "out",
        arguments=[str(root / "text"), "--vocab-size", "1024", "--shard-tokens", "30000"],
        environ={**os.environ, "STATIONMASTER_CACHE_DIR": str(root / "cache")},
    )
    arguments = [*once.arguments, "--workers", "1", "--output-dir", str(once.directory)]
    assert main(arguments, once.environ) == 0
    return once


def test_packed_data_keeps_the_end_token_of_its_tokenizer(tmp_path: Path) -> None:
    write_rows(tmp_path / "text" / "a.jsonl", ["1 2", "3"])
    number_tokenizer(tmp_path / "own")
    (tmp_path / "own" / "tokenizer_config.json").write_text('{"eos_token": "9"}')
    arguments = [str(tmp_path / "text"), "--tokenizer", str(tmp_path / "own"), "--workers", "1"]

    assert main([*arguments, "--output-dir", str(tmp_path / "out")], os.environ) == 0

    packed = read_packed(tmp_path / "out")
    assert np.fromfile(packed.paths[0], dtype=np.uint16).tolist() == [1, 2, 9, 3, 9]
    assert describe_tokenizer(packed.tokenizer.path) == packed.tokenizer


def test_pack_killed_and_started_again_ends_with_the_same_bytes(
    packed_once: PackedOnce, tmp_path: Path
) -> None:
    arguments = [*packed_once.arguments, "--output-dir", str(tmp_path)]
    process = subprocess.Popen(
        [sys.executable, "-m", "training.pack", *arguments, "--workers", "2"],
        env=packed_once.environ,
        stderr=subprocess.DEVNULL,
    )
    wait_until(lambda: whole_files(tmp_path) > 0, what="a file")
    workers = children(process.pid)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert unfinished_packing(tmp_path) is not None, "it ended before it was killed"
    assert workers
    wait_until(lambda: not any(map(is_alive, workers)), what="the end of its workers")

    code = main([*arguments, "--workers", "1"], packed_once.environ)

    assert code == 0
    assert contents_of(tmp_path) == contents_of(packed_once.directory)


def test_pack_again_is_done_at_once_and_changes_nothing(
    packed_once: PackedOnce, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = packed_once.directory
    before = {path.name: path.stat().st_mtime_ns for path in directory.glob("[!.]*")}

    code = main([*packed_once.arguments, "--output-dir", str(directory)], packed_once.environ)

    assert code == 0
    assert {path.name: path.stat().st_mtime_ns for path in directory.glob("[!.]*")} == before
    verify_packed(read_packed(directory))
    said = capsys.readouterr().out
    assert re.search(r": [\d,]+ tokens of \d+ documents in \d+ files, sha256 \w{64}$", said)


def test_pack_with_other_arguments_into_the_same_directory_is_refused(
    packed_once: PackedOnce, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = packed_once.directory
    before = contents_of(directory)

    arguments = [*packed_once.arguments[:-1], "60000", "--output-dir", str(directory)]
    code = main(arguments, packed_once.environ)

    assert code == 1
    message = capsys.readouterr().err
    assert "holds another packing: shard_tokens 30000, asked for is 60000" in message
    assert contents_of(directory) == before


def tiny(tmp_path: Path, *, directory: Path, documents: int = 7, workers: int = 1) -> PackedData:
    write_rows(
        tmp_path / "text" / "a.jsonl",
        [numbered(n, length=n % 5) for n in range(documents)],
    )
    corpus = find_corpus(str(tmp_path / "text"))
    tokenizer = number_tokenizer(tmp_path / "tokenizer")
    plan = make_plan(corpus, tokenizer, spec="numbers", shard_tokens=4)
    return pack(corpus, tokenizer, plan, directory=directory, workers=workers)


def test_pack_leaves_empty_documents_out_and_counts_the_others(tmp_path: Path) -> None:
    packed = tiny(tmp_path, directory=tmp_path / "out")

    # Documents 0 and 5 are empty; of the others each token and an end.
    assert packed.manifest.num_documents == 5
    assert packed.manifest.num_tokens == (1 + 2 + 3 + 4 + 1) + 5
    assert [shard.num_tokens for shard in packed.manifest.shards] == [4, 4, 4, 4]


def test_pack_of_nothing_or_into_a_directory_that_another_has_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("mine")

    with pytest.raises(BadParameter, match="holds no text"):
        tiny(tmp_path, directory=tmp_path / "empty", documents=1)
    with pytest.raises(BadParameter, match=r"holds thesis\.txt and no packed data set"):
        tiny(tmp_path, directory=tmp_path / "out")
    with (tmp_path / "out" / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(NotPossibleNow, match="another process is packing into"):
            tiny(tmp_path, directory=tmp_path / "out")
    assert contents_of(tmp_path / "out") == {"thesis.txt": b"mine"}


def whole_files(directory: Path) -> int:
    packing = unfinished_packing(directory)
    return len(packing.shards) if packing else 0


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

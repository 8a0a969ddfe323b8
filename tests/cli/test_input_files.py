"""Pipes that commands are given in place of files: somebody writes into them, or nobody does."""

from __future__ import annotations

import os
import threading

import pytest

from stationmaster.cli import input_files
from stationmaster.cli.main import main

READERS = {
    "diagnose": [],
    "lint": [],
    "nccl-report": ["--instance", "p4d.24xlarge", "--nodes", "2"],
}


@pytest.fixture
def pipe(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


@pytest.mark.parametrize("command", READERS)
def test_pipe_into_which_nobody_writes_gets_one_sentence(monkeypatch, capsys, pipe, command):
    monkeypatch.setattr(input_files, "_PIPE_S", 0)

    assert main([command, str(pipe), *READERS[command]]) == 2

    error = capsys.readouterr().err
    assert "nothing was written into this pipe in 0 s" in error
    assert error.count("\n") == 1


def test_pipe_is_read_to_its_end_whenever_its_writer_comes(capsys, pipe):
    written = "RuntimeError: CUDA out of memory\n" + "step\n" * 50_000
    writer = threading.Thread(target=pipe.write_text, args=[written])
    threading.Timer(0.05, writer.start).start()

    with input_files.opened(str(pipe), advice="") as file:
        assert file.read() == written.encode()
    writer.join()

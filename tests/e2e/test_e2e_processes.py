"""`stationmaster local up` and `run` as processes: refused beside another one, ended by signals."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from stationmaster.local.state_directory import StateDirectory
from tests.support.patience import PATIENCE_S

STATIONMASTER = Path(sys.executable).parent / "stationmaster"


@pytest.fixture
def start():
    """Starts the command line as a child; children are ended at the end."""
    children = []

    def begin(*arguments):
        child = subprocess.Popen(
            [STATIONMASTER, "local", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"COLUMNS": "200"},
        )
        children.append(child)
        return child

    yield begin
    for child in children:
        child.kill()
        child.communicate()


def read_until(child, words):
    """What the child printed up to the line with `words`; a child that is silent is ended."""
    timer = threading.Timer(PATIENCE_S, child.kill)
    timer.start()
    lines = []
    for line in child.stdout:
        lines.append(line)
        if words in line:
            break
    timer.cancel()
    assert words in lines[-1], "".join(lines)
    return "".join(lines)


def files(folder):
    """Each file's content; a log may grow."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_up_refuses_a_second_one_and_ends_with_a_signal(start, tmp_path):
    state = tmp_path / "state"
    used = StateDirectory(state)
    used.claim()
    used.release()
    left = state / "file-systems" / "fs-0"
    left.mkdir(parents=True)
    record = tmp_path / "record.jsonl"
    record.write_text("of another run\n")
    first = start("up", "--port", "0", "--state-dir", state)
    read_until(first, "Ctrl-C ends it")
    before = files(state)

    second = start("run", "/train help", "--json", record, "--state-dir", state)
    refusal, _ = second.communicate(timeout=PATIENCE_S)
    after = files(state)
    first.send_signal(signal.SIGINT)
    rest, _ = first.communicate(timeout=PATIENCE_S)

    assert not left.exists()
    assert second.returncode == 2
    assert refusal == (
        f"stationmaster: {state} is in use by another local mode; give another --state-dir\n"
    )
    # The first one goes on logging, into a file that its first function opens.
    changed = {path for path in before if not after.get(path, b"").startswith(before[path])}
    names = {path.name for path in (after.keys() ^ before.keys()) | changed}
    # And keeps what it is asked for, into its own file.
    assert {name for name in names if not name.startswith("saved.sqlite3")} <= {"functions.log"}
    assert record.read_text() == "of another run\n"
    assert first.returncode == 0
    assert rest == "stopping, every pod ends with it\n"


def test_run_that_is_interrupted_ends_with_its_processes(start, tmp_path):
    child = start("run", "/train tiny-llama nodes=2 steps=60", "--state-dir", tmp_path / "state")
    printed = read_until(child, "is on its way")

    child.send_signal(signal.SIGTERM)
    rest, _ = child.communicate(timeout=PATIENCE_S)

    assert child.returncode == 1
    assert "interrupted; local mode and every pod were ended" in rest
    assert "Traceback" not in printed + rest
    assert "last start" not in printed

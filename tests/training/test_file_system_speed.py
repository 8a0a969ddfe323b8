"""The program that measures a shared file system, on a directory of this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from stationmaster.diagnosis.file_system_speed import read_speed
from training import file_system_speed
from training.file_system_speed import file_system_of, main, read, write

MIB = 1 << 20
MOUNTS = """\
overlay / overlay rw 0 0
10.0.0.1@tcp:/abcd /fsx lustre rw,flock 0 0
tmpfs /fsx/runs/with\\040space tmpfs rw 0 0
"""


def start(directory: Path, own: str, *nodes: str, name: str = "p1") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "training.file_system_speed"),
            *(str(directory), "c-1", name, own, str(64 * MIB), *nodes),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )


def test_nodes_measure_together_and_leave_nothing(tmp_path: Path):
    old = tmp_path / "c-9.p1.x.0"
    mine, other = tmp_path / "c-1.p0.ip-1.us.0", tmp_path / "c-1-2.p0.x.0"
    for path in (old, mine, other):
        path.write_bytes(b"left")
    os.utime(old, (0, 0))

    started = [start(tmp_path, own, "a.b", "c.d") for own in ("a.b", "c.d")]
    outputs = [process.communicate(timeout=600)[0] for process in started]

    speeds = [read_speed(output) for output in outputs]
    assert [process.returncode for process in started] == [0, 0]
    assert [(speed.node, speed.read_from) for speed in speeds if speed] == [
        ("a.b", "c.d"),
        ("c.d", "a.b"),
    ]
    assert {speed.write.num_bytes for speed in speeds if speed} == {64 * MIB}
    assert {speed.read.num_bytes for speed in speeds if speed} == {64 * MIB}
    assert list(tmp_path.iterdir()) == [other], "another cluster may measure just now"


def test_measurement_that_is_stopped_deletes_what_its_node_wrote(tmp_path: Path):
    process = start(tmp_path, "a", "a", "b")
    while not list(tmp_path.iterdir()):
        assert process.poll() is None
        time.sleep(0.01)

    process.send_signal(signal.SIGTERM)

    process.communicate(timeout=600)
    assert process.returncode == 143
    assert list(tmp_path.iterdir()) == []


def test_threads_that_write_and_read_end_when_the_process_is_told_to(tmp_path, monkeypatch):
    stopped = threading.Event()
    stopped.set()
    monkeypatch.setattr(file_system_speed, "_STOPPED", stopped)
    paths = [tmp_path / "0", tmp_path / "1"]

    written = write(paths, num_bytes=1 << 40, phase_s=600.0)
    for path in paths:
        path.write_bytes(bytes(MIB))
    found, _ = read(paths, phase_s=600.0)

    assert (written.num_bytes, found.num_bytes) == (0, 0)
    stopped.clear()
    assert write(paths, num_bytes=1 << 40, phase_s=0.0).num_bytes == 0, "its time is over"


@pytest.mark.parametrize("directory", ["missing", "."])
def test_what_cannot_be_measured_is_one_sentence(tmp_path, monkeypatch, capsys, directory):
    monkeypatch.setattr(file_system_speed, "_WAIT_S", 0.0)

    code = main([str(tmp_path / directory), "c-1", "p1", "a", "8388608", "a", "b"])

    (said,) = capsys.readouterr().out.splitlines()
    assert code == 1
    assert said.startswith("the speed of the file system was not measured on a: ")
    assert ("b did not come" in said) == (directory == ".")
    assert list(tmp_path.iterdir()) == []


def test_alone_a_node_reads_its_own_files_past_the_page_cache(tmp_path, monkeypatch, capsys):
    monkeypatch.delattr(os, "O_DIRECT", raising=False)

    assert main([str(tmp_path), "c-1", "p1", "a", str(8 * MIB), "a"]) == 0

    result = json.loads(capsys.readouterr().out)
    assert (result["read_from"], result["cache"]) == ("a", "posix_fadvise")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/fsx/.stationmaster/storage-check/speed", "lustre"),
        ("/fsx-other", "overlay"),
        ("/fsx/runs/with space/x", "tmpfs"),
    ],
)
def test_file_system_is_that_of_the_nearest_mount(path: str, kind: str):
    assert file_system_of(Path(path), MOUNTS) == kind
    assert file_system_of(Path(path), "") == ""

"""What pods' Python is given: stores on loopback, and a slow link or file system by a fault."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

POD_PYTHON = Path(__file__).parents[2] / "stationmaster" / "local" / "pod_python"


def run_as_in_a_pod(program, *arguments, path=POD_PYTHON, **variables):
    return subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env=os.environ | {"PYTHONPATH": str(path), **variables},
    )


PROGRAM = """
import json, socket, sys
from datetime import timedelta
from torch.distributed import DistNetworkError, TCPStore

def reached(address, port):
    try:
        socket.create_connection((address, port), timeout=60).close()
    except OSError:
        return False
    return True

taken = int(sys.argv[1])
by_name = TCPStore("127.0.0.1", 0, is_master=True, multi_tenant=True)
by_place = TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=5), False)
second = TCPStore("127.0.0.1", by_name.port, is_master=True, multi_tenant=True)
client = TCPStore("127.0.0.1", by_name.port)
client.set("key", "of the client")
seen = {
    "shared": second.get("key").decode(),
    "loopback": [reached("127.0.0.1", store.port) for store in (by_name, by_place)],
    "elsewhere": [reached("127.0.0.2", store.port) for store in (by_name, by_place)],
}
try:
    TCPStore("127.0.0.1", taken, is_master=True, multi_tenant=True)
except DistNetworkError as exc:
    seen["refused"] = str(exc)
print(json.dumps(seen))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux answers on all of 127.0.0.0/8")
def test_store_of_a_pod_serves_on_loopback_only_and_is_refused_on_a_taken_port(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import sys; print('hidden one', file=sys.stderr)")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken = listener.getsockname()[1]

        ended = run_as_in_a_pod(PROGRAM, taken, path=f"{POD_PYTHON}:{tmp_path}")

    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout) == {
        "shared": "of the client",
        "loopback": [True, True],
        "elsewhere": [False, False],
        "refused": f"127.0.0.1:{taken}: Address already in use (EADDRINUSE)",
    }
    assert ended.stderr == "hidden one\n"


SLOW = """
import io, json, os, pathlib, sys, time

root = pathlib.Path(sys.argv[1])
began = time.monotonic()
with (root / "fsx/a").open("wb", buffering=0) as file:
    file.write(bytes(200_000))
written = time.monotonic()
descriptor = os.open(root / "fsx/a", os.O_RDONLY)
count = os.readv(descriptor, [bytearray(200_000)])
read = time.monotonic()
with (root / "elsewhere").open("wb", buffering=0) as file:
    file.write(bytes(200_000))
is_lustre = f" {root}/fsx lustre " in pathlib.Path("/proc/mounts").read_text()
print(json.dumps([count, is_lustre, written - began >= 0.2, read - written >= 0.2]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc/mounts")
def test_slow_file_system_is_lustre_to_a_program_and_takes_its_time(tmp_path):
    (tmp_path / "fsx").mkdir()
    slow = {"LUSTRE": str(tmp_path / "fsx"), "LUSTRE_MBPS": "1"}

    ended = run_as_in_a_pod(
        SLOW, tmp_path, **{f"STATIONMASTER_LOCAL_{name}": slow[name] for name in slow}
    )

    assert (ended.returncode, ended.stderr) == (0, "")
    assert json.loads(ended.stdout) == [200_000, True, True, True]
    assert (tmp_path / "fsx" / "a").stat().st_size == 200_000


LINK = """
import json, os, time, torch
import torch.distributed as dist

dist.init_process_group("gloo", init_method=f"file://{os.environ['STORE']}", rank=0, world_size=1)
began = time.monotonic()
dist.all_reduce(torch.zeros(50_000))
dist.broadcast(torch.zeros(50_000), src=0)
print(json.dumps(time.monotonic() - began >= 0.4))
"""


def test_collectives_take_the_time_of_a_slow_link(tmp_path):
    ended = run_as_in_a_pod(LINK, STATIONMASTER_LOCAL_LINK_MBPS="1", STORE=str(tmp_path / "store"))

    assert json.loads(ended.stdout) is True, ended.stderr


def test_disk_that_is_full_takes_no_bytes_while_its_marker_is_there(tmp_path):
    program = """
import pathlib, sys
marker, target = map(pathlib.Path, sys.argv[1:])
marker.touch()
try:
    target.write_bytes(b"weights")
except OSError as exc:
    print(exc.strerror)
marker.unlink()
target.write_bytes(b"weights")
"""
    marker, target = tmp_path / "full", tmp_path / "checkpoint"

    done = run_as_in_a_pod(program, marker, target, STATIONMASTER_LOCAL_FULL_DISK=str(marker))

    assert done.stdout == "No space left on device\n"
    assert target.read_bytes() == b"weights"

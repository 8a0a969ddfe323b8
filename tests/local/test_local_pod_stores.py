"""PyTorch's stores in pods: on loopback, and otherwise as PyTorch makes them."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

POD_PYTHON = Path(__file__).parents[2] / "local" / "pod_python"

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

        ended = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(taken)],
            capture_output=True,
            text=True,
            check=False,
            timeout=1800,
            env=os.environ | {"PYTHONPATH": f"{POD_PYTHON}:{tmp_path}"},
        )

    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout) == {
        "shared": "of the client",
        "loopback": [True, True],
        "elsewhere": [False, False],
        "refused": f"127.0.0.1:{taken}: Address already in use (EADDRINUSE)",
    }
    assert ended.stderr == "hidden one\n"

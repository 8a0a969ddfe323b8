"""python -m bench.sweeps.forked_programs SOCKET

Forks the relay and the other programs of its image, for pods of simulated runs, from one process
that has imported what they use. Imports are most of what such a program costs, and a third of a
simulated run; what they then do, and with which environment, is as if each had been started.

`add_python` leaves a `python` in a folder of programs. For `python -m` one of PROGRAMS it hands its
files, environment and directory to that process, passes signals on, and ends as the program ends;
if it is killed, the program is killed. Everything else it leaves to the real one. The server ends
when its standard input does, so it does not outlive who started it.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import random
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Final, NoReturn

PROGRAMS: Final = ("relay", "relay.save", "relay.stage", "relay.restore")
# Where a client that was stopped by signal n ends, as a shell says it.
_SIGNALLED: Final = 128
_CLIENT: Final = """\
#!{python} -IS
import sys
if len(sys.argv) != 3 or sys.argv[1] != "-m" or sys.argv[2] not in {programs}:
    import os
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
import json, os, signal, socket, struct
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
asked = json.dumps([sys.argv[2], dict(os.environ), os.getcwd()]).encode()
socket.send_fds(server, [struct.pack("!I", len(asked))], [0, 1, 2])
server.sendall(asked)
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda number, _frame: server.send(bytes([number])))
os._exit((server.recv(1) or b"\\xff")[0])
"""


def add_python(programs: Path) -> None:
    """Put such a `python` into a folder of programs."""
    python = programs / "python"
    names = repr(set(PROGRAMS))
    python.write_text(
        _CLIENT.format(python=sys.executable, programs=names, address=_running_server())
    )
    python.chmod(0o755)


@cache
def _running_server() -> str:
    """Start the server of this process; the address on which it listens."""
    # A short one: the addresses of such sockets have at most 108 bytes.
    directory = tempfile.TemporaryDirectory(prefix="forked-")
    address = f"{directory.name}/socket"
    server = subprocess.Popen(
        [sys.executable, "-m", "bench.sweeps.forked_programs", address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    assert server.stdin is not None
    assert server.stdout is not None
    if not server.stdout.readline():
        raise RuntimeError(f"the server of forked programs ended with code {server.wait()}")

    def end() -> None:
        server.communicate()
        directory.cleanup()

    atexit.register(end)
    return address


def main(address: str) -> None:
    """Serve until standard input ends; each program returns from here in a process of its own."""
    _import_what_they_use()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(128)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the keepers
    print("ready", flush=True)
    while True:
        ready, _, _ = select.select([listener.fileno(), 0], [], [])
        if 0 in ready:
            return
        client, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            _keep(client)
            return
        client.close()


def _import_what_they_use() -> None:
    import boto3

    import local.service_models  # noqa: F401  # clients find their models in memory

    modules = [program if "." in program else f"{program}.__main__" for program in PROGRAMS]
    for module in modules:
        importlib.import_module(module)
    for service in ("events", "s3"):
        # Made for what is read on the way; it is never called.
        boto3.client(service, "us-west-2", aws_access_key_id="-", aws_secret_access_key="-")
    boto3.DEFAULT_SESSION = None
    for module in modules:  # each runs anew, as the main module
        sys.modules.pop(module)
    gc.collect()
    gc.freeze()


def _keep(client: socket.socket) -> None:
    """Fork the program, and stay to pass on signals and its end; only the program returns."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    header, files, _, _ = socket.recv_fds(client, 4, 3)
    asked = b""
    while len(asked) < struct.unpack("!I", header)[0]:
        if not (part := client.recv(65536)):
            os._exit(1)  # the client was killed
        asked += part
    ended_read, ended_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        client.close()
        os.close(ended_read)
        _run(files, *json.loads(asked))
        return
    for file in (*files, ended_write):
        os.close(file)
    _attend(client, ended_read, pid)


def _attend(client: socket.socket, ended: int, pid: int) -> NoReturn:
    while True:
        ready, _, _ = select.select([client.fileno(), ended], [], [])
        if ended in ready:  # the last process that has its other end is gone
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            client.sendall(bytes([code if code >= 0 else _SIGNALLED - code]))
            os._exit(0)
        numbers = client.recv(16)
        for number in numbers or [signal.SIGKILL]:
            os.kill(pid, number)
        if not numbers:
            os._exit(0)


def _run(files: list[int], program: str, environment: dict[str, str], directory: str) -> None:
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(directory)
    sys.path.insert(0, directory)
    sys.argv = ["python"]
    random.seed()
    runpy.run_module(program, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1])

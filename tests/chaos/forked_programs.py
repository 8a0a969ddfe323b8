"""python -m tests.chaos.forked_programs IMAGE SOCKET

Forks the programs of an image, for pods of local mode, from one process that has imported what they
use. Imports are most of what such a program costs: a third of a simulated run, and three quarters
of a short training. What they then do, and with which environment, is as if each had been started.

`add_programs` leaves a `python`, and for the trainer a `torchrun`, in a folder of programs. For
programs of an image they hand their files, environment and directory to its process, pass signals
on, and end as the program ends; if they are killed, or whoever started them ends, the program is
killed. Everything else they leave to the real one, and so they do where imports would read another
value in the environment. The server ends when its standard input does, so it does not outlive who
started it.

One thing differs: a program's parent is not who started it. A trainer that fails for good does not
end its torchrun, which starts it again.
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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, NoReturn

REPOSITORY: Final = Path(__file__).parents[2]
_POD_PYTHON: Final = REPOSITORY / "stationmaster" / "local" / "pod_python"
_TORCHRUN: Final = "torch.distributed.run"
# Where a client that was stopped by signal n ends, as a shell says it.
_SIGNALLED: Final = 128
# Source: linux/prctl.h.
_PR_SET_PDEATHSIG: Final = 1
_CLIENT: Final = """\
#!{python} -IS
import os, sys
program, arguments = {program!r}, sys.argv[1:]
if program == None:
    words = arguments[arguments[:1] == ["-u"]:]
    if words[:1] == ["-m"] and words[1:]:
        program, arguments = words[1], words[2:]
address, imported_with = {servers!r}.get(program, (None, {{}}))
if address is None or any(os.environ.get(name) != imported_with[name] for name in imported_with):
    words = sys.argv[1:] if {program!r} == None else ["-m", {program!r}, *sys.argv[1:]]
    os.execv({python!r}, [{python!r}, *words])
import ctypes, json, signal, socket, struct
parent = os.getppid()
ctypes.CDLL(None).prctl({pdeathsig}, signal.SIGKILL)
if os.getppid() != parent:
    sys.exit(137)
server = socket.socket(socket.AF_UNIX)
server.connect(address)
asked = json.dumps([program, arguments, dict(os.environ), os.getcwd()]).encode()
socket.send_fds(server, [struct.pack("!I", len(asked))], [0, 1, 2])
server.sendall(asked)
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda number, _frame: server.send(bytes([number])))
os._exit((server.recv(1) or b"\\xff")[0])
"""


@dataclass(frozen=True)
class Image:
    """Programs that are forked from one process.

    Attributes:
        programs: modules, as `python -m` takes them.
        load: imports what they use and importing them does not.
        imported_with: variables that are read by imports, and their values there; None for one that
            is not set.
    """

    programs: tuple[str, ...]
    load: Callable[[], None]
    imported_with: Mapping[str, str | None]


def add_programs(folder: Path, *, trains: bool = False) -> None:
    """Put such a `python` into a folder of programs; with `trains`, for the trainer as well."""
    servers: dict[str, tuple[str, dict[str, str | None]]] = {}
    for name in ("relay", "training") if trains else ("relay",):
        image = _images()[name]
        address = _running_server(name)
        servers |= {each: (address, dict(image.imported_with)) for each in image.programs}
    clients = {"python": None} | ({"torchrun": _TORCHRUN} if trains else {})
    for name, program in clients.items():
        client = folder / name
        client.write_text(
            _CLIENT.format(
                python=sys.executable,
                program=program,
                servers=servers,
                pdeathsig=_PR_SET_PDEATHSIG,
            )
        )
        client.chmod(0o755)


@cache
def _images() -> dict[str, Image]:
    from stationmaster.settings import HubAccess

    return {
        "relay": Image(
            (
                "stationmaster.relay",
                "stationmaster.relay.save",
                "stationmaster.relay.stage",
                "stationmaster.relay.restore",
            ),
            _load_relay,
            {},
        ),
        "training": Image(
            (_TORCHRUN, "training", "training.smoke", "training.collectives"),
            _load_trainer,
            {
                "HF_ENDPOINT": HubAccess.from_environment().url,
                # Read by local/pod_python.
                "STATIONMASTER_LOCAL_LINK_MBPS": None,
                "STATIONMASTER_LOCAL_LUSTRE": None,
            },
        ),
    }


@cache
def _running_server(name: str) -> str:
    """Start the server of an image for this process; the address on which it listens."""
    # A short one: the addresses of such sockets have at most 108 bytes.
    directory = tempfile.TemporaryDirectory(prefix="forked-")
    address = f"{directory.name}/socket"
    variables = {
        name: value for name, value in _images()[name].imported_with.items() if value is not None
    }
    server = subprocess.Popen(
        [sys.executable, "-u", "-m", "tests.chaos.forked_programs", name, address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=REPOSITORY,
        env={
            "PATH": os.environ.get("PATH", ""),
            "HOME": os.environ.get("HOME", "/tmp"),
            "PYTHONPATH": str(_POD_PYTHON),
            **variables,
        },
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


def main(name: str, address: str) -> None:
    """Serve until standard input ends; each program returns from here in a process of its own."""
    image = _images()[name]
    image.load()
    modules = [program if "." in program else f"{program}.__main__" for program in image.programs]
    for module in modules:
        importlib.import_module(module)
    for module in modules:  # each runs anew, as the main module
        sys.modules.pop(module)
    gc.collect()
    gc.freeze()
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


def _load_relay() -> None:
    import boto3

    import stationmaster.local.service_models  # noqa: F401  # clients find their models in memory

    for service in ("events", "s3"):
        # Made for what is read on the way; it is never called.
        boto3.client(service, "us-west-2", aws_access_key_id="-", aws_secret_access_key="-")
    boto3.DEFAULT_SESSION = None


def _load_trainer() -> None:
    # As `training.float8` does where nobody asks for it.
    sys.modules["torchao"] = None  # type: ignore[assignment]
    for module in (
        "torch.distributed.checkpoint._fsspec_filesystem",
        "torch.distributed.elastic.rendezvous.c10d_rendezvous_backend",
        "tokenizers",
        "transformers.models.llama.modeling_llama",
        "training.export",
        "training.final_model",
        "training.models.language",
        "training.optimizer",
        "training.sharding",
        "training.trainer",
    ):
        importlib.import_module(module)
    del sys.modules["torchao"]


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


def _run(
    files: list[int],
    program: str,
    arguments: list[str],
    environment: dict[str, str],
    directory: str,
) -> None:
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(directory)
    sys.path.insert(0, directory)
    sys.argv = ["python", *arguments]
    random.seed()
    if (threads := environment.get("OMP_NUM_THREADS")) and "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(int(threads))
    if program == _TORCHRUN:
        os.environ["PYTHON_EXEC"] = "python"
    runpy.run_module(program, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])

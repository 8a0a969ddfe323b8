"""A gang of torchrun agents on this machine, and what may happen to them.

Used by `bench.recovery` and by the trainer's elastic tests. One agent represents a pod: it is
configured by PET_* as the training operator does, and one that exits badly is started again in
place, as the kubelet does with restartPolicy OnFailure. It knows torchrun and progress lines, and
nothing of what is trained.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

Lines = list[dict[str, Any]]

# Quick to notice the dead, quick to continue without those who do not come; minutes on a cluster.
_RENDEZVOUS: Final = "join_timeout=1800,read_timeout=1800,last_call_timeout=1,keep_alive_interval=1"
_POLL_S: Final = 0.05


@dataclass
class Pod:
    """One agent with one worker."""

    name: str
    command: Sequence[str]
    environ: Mapping[str, str]
    log: Path
    process: subprocess.Popen[bytes]
    exit_codes: list[int] = field(default_factory=list)
    """Of every start of the agent that has ended, oldest first."""
    deleted: bool = False

    @property
    def ended(self) -> bool:
        """Whether nothing of it runs any more, and nothing will."""
        return (self.deleted or self.exit_codes[-1:] == [0]) and self.process.poll() is not None

    def tend(self) -> None:
        """Do what the kubelet does: start again what exited badly."""
        code = self.process.poll()
        if code is None or self.ended:
            return
        self.exit_codes.append(code)
        if code:
            self.process = start_agent(self.command, self.environ, self.log)

    def worker(self) -> int:
        """Return the worker's process id.

        Raises:
            LookupError: the agent has no worker at present.
        """
        table = subprocess.run(
            ["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True
        )
        for row in table.stdout.splitlines():
            pid, parent = row.split()
            if int(parent) == self.process.pid:
                return int(pid)
        raise LookupError(f"{self.name} has no worker")

    def kill_worker(self) -> None:
        """Kill the worker as the kernel does when memory runs out."""
        os.kill(self.worker(), signal.SIGKILL)

    def kill_agent(self) -> None:
        """End the agent without a word; its worker has to notice by itself."""
        self.process.kill()
        self.process.wait(timeout=1800)

    def delete(self) -> None:
        """Delete the pod as the operator does when it scales down: SIGTERM, and no new start."""
        self.deleted = True
        self.process.terminate()

    def errors(self) -> str:
        """Return all that the agent and its workers wrote to standard error."""
        return self.log.with_suffix(".err").read_text()


class Gang:
    """The pods of one run."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        environ: Mapping[str, str],
        directory: Path,
        nnodes: str,
        backend: str = "c10d",
        endpoint: str | None = None,
        max_restarts: int = 3,
        missed_beats: int = 3,
        torchrun: Sequence[str] = (sys.executable, "-m", "torch.distributed.run"),
    ) -> None:
        """Prepare a gang without pods.

        `command` is what torchrun runs, e.g. `-m training ...`; `endpoint` is where the backend's
        server listens, None for c10d, whose store the first pod hosts. An agent that misses so many
        beats, one a second, counts as dead: more where the machine is busy.
        """
        self._command = [*torchrun, *command]
        self._environ = {
            **environ,
            "PET_NNODES": nnodes,
            "PET_NPROC_PER_NODE": "1",
            "PET_RDZV_BACKEND": backend,
            "PET_RDZV_ENDPOINT": endpoint or f"127.0.0.1:{free_port()}",
            "PET_RDZV_ID": "run-1",
            "PET_MAX_RESTARTS": str(max_restarts),
            "PET_LOCAL_ADDR": "127.0.0.1",
        }
        self._directory = directory
        self._rendezvous = f"{_RENDEZVOUS},keep_alive_max_attempt={missed_beats}"
        self.pods: list[Pod] = []

    def __enter__(self) -> Gang:
        return self

    def __exit__(self, *_error: object) -> None:
        for pod in self.pods:
            if pod.process.poll() is None:
                pod.kill_agent()

    def add(self, number: int) -> None:
        """Start so many more pods."""
        for _ in range(number):
            name = f"pod-{len(self.pods)}"
            # The operator's first worker hosts the c10d store because the endpoint has its name;
            # here all have the same host name.
            conf = f"{self._rendezvous},is_host={str(not self.pods).lower()}"
            environ = {**self._environ, "PET_RDZV_CONF": conf}
            log = self._directory / f"{name}.log"
            process = start_agent(self._command, environ, log)
            self.pods.append(Pod(name, self._command, environ, log, process))

    def lines(self) -> Lines:
        """Return the progress lines of all pods so far, in their own order."""
        texts = [pod.log.read_text() for pod in self.pods]
        whole = "".join(text[: text.rfind("\n") + 1] for text in texts)
        numbered = [line for line in map(json.loads, whole.splitlines()) if "seq" in line]
        return sorted(numbered, key=lambda line: int(line["seq"]))

    def wait_for(
        self, condition: Callable[[Lines], bool], *, what: str, timeout_s: float = 1800.0
    ) -> Lines:
        """Look after the pods until the lines fulfil the condition; returns the lines.

        Raises:
            TimeoutError: with `what` and the end of every pod's standard error.
        """
        deadline = time.monotonic() + timeout_s
        while not condition(lines := self.lines()):
            if time.monotonic() > deadline:
                ends = "\n".join(f"{pod.name}: {pod.errors()[-2000:]}" for pod in self.pods)
                raise TimeoutError(f"not within {timeout_s:g} s: {what}\n{ends}")
            for pod in self.pods:
                pod.tend()
            threading.Event().wait(_POLL_S)
        return lines

    def wait_for_save(self, *, start: int) -> Lines:
        """Wait until the run's start number `start`, from 1, or a later one has saved."""
        return self.wait_for(
            lambda lines: (
                num_starts(lines) >= start
                and any(line["kind"] == "checkpoint_saved" for line in newest_start(lines))
            ),
            what=f"start {start} of the run, and a checkpoint after it",
        )

    def wait_for_end(self) -> Lines:
        """Wait until every pod has ended well or was deleted."""
        return self.wait_for(
            lambda _lines: all(pod.ended for pod in self.pods), what="the end of every pod"
        )


def start_agent(
    command: Sequence[str], environ: Mapping[str, str], log: Path
) -> subprocess.Popen[bytes]:
    """Start an agent whose output is appended to `log` and, for errors, a file beside it."""
    with log.open("a") as out, log.with_suffix(".err").open("a") as err:
        return subprocess.Popen(command, env=environ, stdout=out, stderr=err)


def num_starts(lines: Lines) -> int:
    """Return how often the run has started, the first time included."""
    return sum(line["kind"] == "started" for line in lines)


def newest_start(lines: Lines) -> Lines:
    """Return what the newest start of the run has reported."""
    begins = [index for index, line in enumerate(lines) if line["kind"] == "started"]
    return lines[begins[-1] :] if begins else []


@contextmanager
def etcd_server(directory: Path) -> Iterator[str]:
    """Start an etcd that speaks v2, as torch's etcd-v2 rendezvous needs; give HOST:PORT.

    Raises:
        FileNotFoundError: there is no etcd on this machine.
    """
    binary = shutil.which("etcd")
    if binary is None:
        raise FileNotFoundError("etcd is not installed; on Debian: apt-get install etcd-server")
    endpoint = f"127.0.0.1:{free_port()}"
    client, peer = f"http://{endpoint}", f"http://127.0.0.1:{free_port()}"
    command = [
        *(binary, "--enable-v2", "--data-dir", str(directory / "etcd")),
        *("--listen-client-urls", client, "--advertise-client-urls", client),
        *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
        *("--initial-cluster", f"default={peer}"),
    ]
    log = directory / "etcd.err"
    with log.open("w") as err:
        process = subprocess.Popen(command, stdout=err, stderr=err)
    try:
        deadline = time.monotonic() + 30
        while not _is_healthy(client):
            if process.poll() is not None or time.monotonic() > deadline:
                raise TimeoutError(f"etcd does not answer: {log.read_text()[-2000:]}")
            threading.Event().wait(_POLL_S)
        yield endpoint
    finally:
        process.terminate()
        process.wait(timeout=1800)


def _is_healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=1) as answer:
            return b"true" in answer.read()
    except OSError:
        return False


def free_port() -> int:
    """Return a port of the loopback interface that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])

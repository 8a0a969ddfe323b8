"""Keeps PyTorch's stores on loopback, and slows down what it sends where a node's network is slow.

Python itself imports it at each start in a pod: `local.mode` puts this directory on PYTHONPATH. A
TCPStore serves on every interface, to anybody, and what it holds is unpickled by torchrun; PyTorch
has no setting for that, but takes a socket that listens already. So as soon as torch.distributed is
imported, a store that is to serve gets a socket on 127.0.0.1, where all pods of local mode are.

All nodes share one loopback interface and one disk. On a node that the kubelet says has a slow
link, a collective waits as long as its tensors would take. Where it says that a directory is a slow
file system, what a program writes without a buffer and reads into one takes its time, and
/proc/mounts says Lustre.
"""

from __future__ import annotations

import errno
import functools
import importlib.machinery
import io
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

_STORES = "torch._C._distributed_c10d"
# Imported by torch.distributed right after its C part, and before anything makes a store.
_FIRST_USER = "torch.distributed.distributed_c10d"
_LOOPBACK = "127.0.0.1"
# Set by the kubelet: what the node's network moves, in MB/s.
_LINK = "STATIONMASTER_LOCAL_LINK_MBPS"
# Set by the kubelet: where a slow file system is mounted; with _MBPS at its end, what it moves.
_LUSTRE = "STATIONMASTER_LOCAL_LUSTRE"
# Set by local mode: while this file exists, binary files take no bytes.
_FULL_DISK = "STATIONMASTER_LOCAL_FULL_DISK"


class _WhenTorchIsImported:
    """An import hook that finds nothing and notices when the stores are there."""

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> None:
        if name == _FIRST_USER:
            sys.meta_path.remove(self)
            store = sys.modules[_STORES].TCPStore
            store.__init__ = _on_loopback(store.__init__)
            if megabytes := float(os.environ.get(_LINK, "0")):
                group = sys.modules[_STORES].ProcessGroup
                for verb in ("allreduce", "broadcast"):
                    setattr(group, verb, _over_slow_link(getattr(group, verb), megabytes * 1e6))


def _over_slow_link(send: Callable[..., Any], bytes_per_s: float) -> Callable[..., Any]:
    """Return a collective that takes the time of a link before it is sent over loopback."""

    @functools.wraps(send)
    def send_slowly(self: Any, tensors: Any, *others: Any, **options: Any) -> Any:
        listed = tensors if isinstance(tensors, list) else [tensors]
        num_bytes = sum(each.numel() * each.element_size() for each in listed)
        time.sleep(num_bytes / bytes_per_s)
        return send(self, tensors, *others, **options)

    return send_slowly


def _on_loopback(initialise: Callable[..., None]) -> Callable[..., None]:
    served: set[int] = set()

    @functools.wraps(initialise)
    def initialise_on_loopback(
        self: Any,
        host_name: str,
        port: int,
        world_size: int | None = None,
        is_master: bool = False,
        *others: Any,
        **options: Any,
    ) -> None:
        # The listening socket is the fourth of `others`; nothing passes it by position.
        if is_master and options.get("master_listen_fd") is None:
            try:
                options["master_listen_fd"] = _listen(port)
            except OSError as exc:
                # A store that shares the server which this process has on the port already.
                if exc.errno != errno.EADDRINUSE or port not in served:
                    raise _refusal(port, exc) from exc
        initialise(self, host_name, port, world_size, is_master, *others, **options)
        if is_master:
            served.add(self.port)

    return initialise_on_loopback


def _listen(port: int) -> int:
    import socket  # costs 2 ms, needed by the few programs that serve a store only

    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((_LOOPBACK, port))
        listener.listen(1024)
    except OSError:
        listener.close()
        raise
    return listener.detach()


class _Pace:
    """Lets bytes pass at a rate, those of all threads together."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._lock = threading.Lock()
        self._free_at = 0.0

    def wait(self, num_bytes: int) -> None:
        """Return when so many bytes have passed."""
        with self._lock:
            begun = max(self._free_at, time.monotonic())
            self._free_at = begun + num_bytes / self._bytes_per_s
        time.sleep(max(0.0, self._free_at - time.monotonic()))


def _mount_slowly(paths: list[str], pace: _Pace) -> None:
    """Let the directories of a file system be Lustre to this program, and slow."""
    opened, readv = io.open, os.readv

    class SlowFile(io.FileIO):
        def write(self, data: Any) -> int:
            count = super().write(data)
            pace.wait(count)
            return count

    def open_slowly(
        file: Any, mode: str = "r", buffering: int = -1, *rest: Any, **more: Any
    ) -> Any:
        if str(file) == "/proc/mounts":
            with opened(file) as mounts:
                lines = [f"fs@tcp:/fsx {path} lustre rw 0 0\n" for path in paths]
                return io.StringIO(mounts.read() + "".join(lines))
        if buffering == 0 and any(str(file).startswith(f"{path}/") for path in paths):
            return SlowFile(file, mode.replace("b", ""))
        return opened(file, mode, buffering, *rest, **more)

    def read_slowly(descriptor: int, buffers: Any) -> int:
        count = readv(descriptor, buffers)
        pace.wait(count)
        return count

    io.open, os.readv = open_slowly, read_slowly


def _mount_full(marker: str) -> None:
    """Let the disk be full while a file exists."""
    opened = io.open

    class FullFile(io.FileIO):
        def write(self, data: Any) -> int:
            if os.path.exists(marker):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return super().write(data)

    def open_full(file: Any, mode: str = "r", buffering: int = -1, *rest: Any, **more: Any) -> Any:
        if mode == "wb":
            raw = FullFile(file, "w")
            return raw if buffering == 0 else io.BufferedWriter(raw)
        return opened(file, mode, buffering, *rest, **more)

    io.open = open_full


def _refusal(port: int, exc: OSError) -> Exception:
    """Make what PyTorch itself raises: torchrun then tries to be that store's client."""
    from torch.distributed import DistNetworkError

    return DistNetworkError(f"{_LOOPBACK}:{port}: {exc.strerror} (EADDRINUSE)")


def _run_hidden_one() -> None:
    """Run the `sitecustomize` that Python would have imported without this one, if any."""
    own = os.path.dirname(os.path.abspath(__file__))
    path = [entry for entry in sys.path if os.path.abspath(entry) != own]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(type(sys)("sitecustomize"))


if _LUSTRE in os.environ:
    _mount_slowly(
        os.environ[_LUSTRE].split(os.pathsep), _Pace(float(os.environ[f"{_LUSTRE}_MBPS"]) * 1e6)
    )
if _FULL_DISK in os.environ:
    _mount_full(os.environ[_FULL_DISK])
sys.meta_path.insert(0, _WhenTorchIsImported())
if faults := os.environ.get("STATIONMASTER_LOCAL_TRAINING_FAULTS", "").split():
    from stationmaster.local.pod_python.training_faults import WhenTrainerIsImported

    sys.meta_path.insert(0, WhenTrainerIsImported(faults))
_run_hidden_one()

"""Supervisor of one container: `python -I -S supervisor.py LOG PROGRAM ARGUMENT...`

Started by `container.py`, one process a container. It leads a session of its own, runs the program
in a process group of its own, stamps each line of its output into LOG, and ends with the program's
exit code (128 + n after signal n). Nothing outlives it: when the program ends, or when standard
input closes (which it does however the parent ends), every process that descends from the program
is killed; on Linux the program is killed with a supervisor that is killed itself. While LOG cannot
take more, e.g. as the disk is full, the output waits; if that lasts, everything is killed. Commands
on standard input: `T` ends the group politely, `K` kills everything. On standard output it writes
the program's process id and a newline first, then a dot whenever the log grew, and at the end what
went wrong, if something did: `!` and a sentence. It imports nothing but the standard library's
quick parts: it starts often.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import sys
import time

# Source: linux/prctl.h.
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
# In the environment of each process of a container: which container it is.
MARKER = "STATIONMASTER_CONTAINER"
# Its own exit codes, when nothing was started.
NO_LOG, NO_PROGRAM = 74, 128
_LEAST_ROOM_BYTES = 16 * 1024
_MAX_LINE_BYTES = 16 * 1024
_DRAIN_S = 0.5
# Somebody may make room; the program waits for its output meanwhile. No longer than this, as
# whoever follows the log would take silence for work.
_ROOM_PATIENCE_S = 5.0
_ROOM_LOOK_S = 0.2
_IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGTTOU)


def _adopt_orphans() -> None:
    """On Linux, become the parent of descendants whose own parent ends, to find them later."""
    if sys.platform == "linux":
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    import ctypes  # costs 5 ms, needed on Linux only

    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _start(argv: list[str], output: int) -> int:
    """Start the program in a group of its own, its output going to `output`; its process id.

    Raises:
        OSError: it cannot be started.
    """
    supervisor, (failure_read, failure_write) = os.getpid(), os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            _become(argv, output, supervisor)
        except OSError as exc:
            os.write(failure_write, str(exc.errno).encode())
        finally:
            os._exit(127)
    os.close(failure_write)
    with contextlib.suppress(PermissionError):  # it runs the program already
        os.setpgid(pid, pid)
    failure = os.read(failure_read, 16)  # the end comes with the program's start
    os.close(failure_read)
    if failure:
        raise OSError(int(failure), os.strerror(int(failure)), argv[0])
    return pid


def _become(argv: list[str], output: int, supervisor: int) -> None:
    """Turn the child into the program."""
    os.setpgid(0, 0)
    if sys.platform == "linux":
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != supervisor:
            os._exit(137)  # it was killed before
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    for number in (*_IGNORED, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    os.execvp(argv[0], argv)


def _parents() -> dict[int, int]:
    """Process id to parent process id, of every process that can be seen. Linux only."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    # The command name, in parentheses, may contain spaces: read behind it.
                    found[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
            except (OSError, IndexError):
                continue
    return found


def _descendants() -> list[int]:
    if sys.platform != "linux":
        return _marked_processes()
    children: dict[int, list[int]] = {}
    for pid, parent in _parents().items():
        children.setdefault(parent, []).append(pid)
    found, waiting = [], [os.getpid()]
    while waiting:
        for pid in children.get(waiting.pop(), []):
            found.append(pid)
            waiting.append(pid)
    return found


def _marked_processes() -> list[int]:
    """Return processes that inherited the container's marker; macOS has no adoption of orphans."""
    import subprocess  # costs 15 ms, needed outside Linux only

    marker = f"{MARKER}={os.environ[MARKER]}".encode()
    listing = subprocess.run(
        ["/bin/ps", "-axww", "-E", "-o", "pid=,command="], capture_output=True, check=False
    ).stdout
    marked = [int(line.split()[0]) for line in listing.splitlines() if marker in line]
    return [pid for pid in marked if pid != os.getpid() and _exists(pid)]


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


class Supervisor:
    """The program, its output and its end."""

    def __init__(self, log_path: str, log: int, argv: list[str]) -> None:
        self._log_path = log_path
        self._log = log
        self._partial = b""
        self._unwritten = b""  # stamped, and refused by the log so far
        self._no_room_since = 0.0
        self._refusal = ""  # why the log took nothing, the last time
        self._gave_up = False
        self._exit_code: int | None = None
        self._wake_read, wake_write = os.pipe()
        for descriptor in (self._wake_read, wake_write, 1):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in _IGNORED:
            signal.signal(number, signal.SIG_IGN)
        self._output, output_write = os.pipe()
        self._output_open = True
        self._pid = _start(argv, output_write)
        os.close(output_write)
        self._report(f"{self._pid}\n".encode())

    def run(self) -> int:
        """Serve until the program has ended; the exit code."""
        while self._exit_code is None:
            self._step(None)
        self._kill_everything()
        deadline = time.monotonic() + _DRAIN_S
        while self._output_open and time.monotonic() < deadline:
            self._step(deadline - time.monotonic())
        if self._partial:
            self._write(self._partial + b"\n")
        if self._gave_up or (self._unwritten and self._exit_code):
            os.set_blocking(1, True)
            self._report(f"!{self._refusal}\n".encode())
        return self._exit_code

    def _step(self, timeout_s: float | None) -> None:
        watched = [0, self._wake_read]
        if self._unwritten:
            timeout_s = _ROOM_LOOK_S if timeout_s is None else min(timeout_s, _ROOM_LOOK_S)
        elif self._output_open:
            watched.append(self._output)
        if self._exit_code is not None:
            watched.remove(0)
        ready, _, _ = select.select(watched, [], [], timeout_s)
        if self._unwritten:
            self._flush()
        if self._output in ready:
            self._pump()
        if self._wake_read in ready:
            os.read(self._wake_read, 4096)
            self._reap()
        if 0 in ready:
            self._obey(os.read(0, 64))

    def _obey(self, commands: bytes) -> None:
        if not commands or b"K" in commands:
            self._kill_everything()
        elif b"T" in commands:
            with contextlib.suppress(ProcessLookupError):  # it may have ended just now
                os.killpg(self._pid, signal.SIGTERM)
        if not commands:
            # The parent is gone: there is nobody to report to.
            os._exit(137)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._pid:
                code = os.waitstatus_to_exitcode(status)
                self._exit_code = code if code >= 0 else 128 - code

    def _kill_everything(self) -> None:
        # Several passes, as a process may fork between the listing and its end.
        for _ in range(20):
            doomed = [pid for pid in _descendants() if not _is_zombie(pid)]
            if not doomed:
                return
            for pid in doomed:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            self._reap()
            time.sleep(0.002)

    def _pump(self) -> None:
        data = os.read(self._output, 65536)
        if not data:
            self._output_open = False
            return
        lines = (self._partial + data).split(b"\n")
        self._partial = lines.pop()
        if len(self._partial) > _MAX_LINE_BYTES:
            lines.append(self._partial)
            self._partial = b""
        if lines:
            self._write(b"".join(line + b"\n" for line in lines))

    def _write(self, text: bytes) -> None:
        now = time.time()
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now))
        prefix = f"{stamp}.{int(now % 1 * 1e6):06d}Z ".encode()
        # As containerd: a return within a line, as progress bars have it, begins no other.
        self._unwritten += b"".join(prefix + line + b"\n" for line in text[:-1].split(b"\n"))
        self._flush()

    def _flush(self) -> None:
        """Give the log what it takes; what it refuses is kept for the next look."""
        try:
            while self._unwritten:
                written = os.write(self._log, self._unwritten)
                self._unwritten = self._unwritten[written:]
                self._no_room_since = 0.0
                self._report(b".")
        except OSError as exc:
            now = time.monotonic()
            self._refusal = _sentence(exc, self._log_path)
            self._no_room_since = self._no_room_since or now
            if self._exit_code is None and now - self._no_room_since > _ROOM_PATIENCE_S:
                self._gave_up = True
                self._kill_everything()

    @staticmethod
    def _report(message: bytes) -> None:
        # A dot more or less does not matter.
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            os.write(1, message)


def _is_zombie(pid: int) -> bool:
    if sys.platform != "linux":
        return False
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] == b"Z"
    except (OSError, IndexError):
        return True


def _sentence(exc: OSError, path: str) -> str:
    return f"{path}: {(exc.strerror or str(exc)).lower()}"


def main() -> int:
    """Run the program named on the command line; the exit code."""
    _adopt_orphans()
    log_path, *argv = sys.argv[1:]
    try:
        log = _open_log(log_path)
    except OSError as exc:
        return _refuse(_sentence(exc, log_path), NO_LOG)
    try:
        supervisor = Supervisor(log_path, log, argv)
    except OSError as exc:
        return _refuse(_sentence(exc, argv[0]), NO_PROGRAM)
    return supervisor.run()


def _open_log(path: str) -> int:
    """Open the log, which is new, and see that it takes a little: no program starts for nothing.

    Raises:
        OSError: it does not.
    """
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        if os.write(log, bytes(_LEAST_ROOM_BYTES)) < _LEAST_ROOM_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        with contextlib.suppress(OSError):  # a device
            os.ftruncate(log, 0)
    return log


def _refuse(sentence: str, code: int) -> int:
    os.write(1, f"!{sentence}\n".encode())
    return code


if __name__ == "__main__":
    sys.exit(main())

"""Keeps what training pods print until they have ended, and puts it into the run's result.

A pod that is deleted, or whose node is lost, takes its log with it. So each line goes to a file of
the relay's own as it is read, and the file to the artifacts bucket once its pod has ended, where
the saver finds it (`relay.save`). A bucket that refuses, or is away, costs these logs and
nothing else.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from stationmaster.domain.errors import PermanentError, TransientError
from stationmaster.relay.lines import LogLine
from stationmaster.relay.saving.bucket import ResultsBucket

# Of each pod; a hundred pods then take 1.6 GB of the node's disk at most.
MAX_KEPT_BYTES: Final = 16 * 2**20

logger = logging.getLogger(__name__)


class KeptLogs:
    """The logs of one run's pods. Threads may share it."""

    def __init__(
        self, directory: Path, *, store: ResultsBucket, may_send: Callable[[], bool]
    ) -> None:
        """`may_send` says whether this relay is the one that reports."""
        self._directory = directory
        self._store = store
        self._may_send = may_send
        self._lock = threading.Lock()
        self._unsent: set[str] = set()

    def keep(self, pod: str, line: LogLine) -> None:
        """Keep a line; of a longer log the end is kept, half of the limit at least."""
        before, path = self._files(pod)
        with self._lock, path.open("ab") as file:
            file.write(f"{line.stamp} {line.text}\n".encode(errors="replace"))
            if file.tell() > MAX_KEPT_BYTES // 2:
                path.replace(before)

    def pod_ended(self, pod: str) -> None:
        """Note that the pod prints nothing more for now."""
        with self._lock:
            self._unsent.add(pod)
        self.send()

    def send(self) -> None:
        """Put the logs of pods that have ended into the bucket, if this relay reports."""
        if not self._may_send():
            return
        with self._lock:
            unsent, self._unsent = self._unsent, set()
        for pod in sorted(unsent):
            try:
                self._send(pod)
            except (TransientError, PermanentError, OSError) as error:
                logger.warning("log not kept", extra={"pod": pod, "error": str(error)})
                with self._lock:
                    self._unsent.add(pod)

    def _send(self, pod: str) -> None:
        with self._lock:
            data = b"".join(each.read_bytes() for each in self._files(pod) if each.exists())
        if data:
            self._store.put(f"{pod}.log", data, digest=hashlib.sha256(data).digest())

    def _files(self, pod: str) -> tuple[Path, Path]:
        """Return the file that is written to, and the one that was written before."""
        return self._directory / f"{pod}.before", self._directory / f"{pod}.log"

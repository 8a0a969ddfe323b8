"""What the run's training pods printed, as far as Kubernetes still has it.

Kubernetes keeps about 10 MiB of a container's newest output; the end of it is kept here, with the
time of each line. A log that cannot be read is no reason not to save a model: the file then says
so.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from stationmaster.domain.errors import TransientError
from stationmaster.domain.ids import RunId
from stationmaster.domain.names import LABEL_ROLE, LABEL_RUN_ID
from stationmaster.domain.results import log_name
from stationmaster.relay.cluster import ClusterApi, ObjectMissing, RequestRefused
from stationmaster.relay.pods import (
    JsonObject,
    attempt_of,
    container_state,
    name_of,
    training_container,
)

MAX_LOG_BYTES: Final = 16 * 2**20
_NOTE: Final = "[stationmaster] "
_OURS: Final = re.compile(rb"^\[stationmaster\] .*\n?", re.MULTILINE)
_STAMP: Final = re.compile(rb"^\d{4}-\d\d-\d\dT[\d:.]+", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class PodLog:
    """A pod's log with our notes, and its name in a result."""

    name: str
    text: bytes


def num_printed(text: bytes) -> int:
    """Count the bytes of a log that the pod printed: what we noted in it does not count."""
    return len(_OURS.sub(b"", text))


def joined(stored: bytes, new: bytes) -> bytes:
    """Join a log that was saved before with what was read now: never less than it was.

    Kubernetes may have dropped lines since, or answer with a part of them.
    """
    first = _STAMP.search(new)
    if first is None:
        return max(stored, new, key=num_printed)
    later = (found.start() for found in _STAMP.finditer(stored) if found[0] >= first[0])
    whole = stored[: next(later, len(stored))] + new
    return max(whole[-2 * MAX_LOG_BYTES :], stored, key=num_printed)


class PodLogs:
    """Reads the logs of one run."""

    def __init__(self, api: ClusterApi, *, namespace: str, run_id: RunId) -> None:
        self._api = api
        self._pods = f"/api/v1/namespaces/{namespace}/pods"
        self._selector = f"{LABEL_RUN_ID}={run_id},{LABEL_ROLE}=training"

    def read(self, *, max_bytes: int = MAX_LOG_BYTES) -> Iterator[PodLog]:
        """Read the log of every training pod that still exists, one after another.

        At most `max_bytes` are kept of the container's last run, and of the one before.

        Raises:
            TransientError: the pods cannot even be listed.
        """
        pods, _ = self._api.list(self._pods, {"labelSelector": self._selector})
        for pod in pods:
            log = log_name(name_of(pod), attempt_of(pod))
            yield PodLog(log, self._log_of(pod, max_bytes))

    def _log_of(self, pod: JsonObject, max_bytes: int) -> bytes:
        state = container_state(pod)
        text = b""
        if state.restarts:
            note = f"{_NOTE}restarted {state.restarts} times; this is the run before the last\n"
            text += note.encode() + self._stream(pod, max_bytes, previous=True)
            text += f"{_NOTE}this is the last run\n".encode()
        if state.has_log:
            text += self._stream(pod, max_bytes, previous=False)
        why = "it printed nothing" if state.has_log else "the container never started"
        return text or f"{_NOTE}{why}\n".encode()

    def _stream(self, pod: JsonObject, max_bytes: int, *, previous: bool) -> bytes:
        path = f"{self._pods}/{name_of(pod)}"
        kept: deque[bytes] = deque()
        held = dropped = 0
        try:
            with self._api.log(
                path, container=training_container(pod), since=None, previous=previous
            ) as chunks:
                for chunk in chunks:
                    kept.append(chunk)
                    held += len(chunk)
                    while held - len(kept[0]) >= max_bytes:
                        held -= len(kept[0])
                        dropped += len(kept.popleft())
        except (ObjectMissing, RequestRefused) as exc:
            return f"{_NOTE}Kubernetes has no log of it: {exc}\n".encode()
        except TransientError as exc:
            kept.append(f"\n{_NOTE}the rest could not be read: {exc}\n".encode())
        text = b"".join(kept)
        if dropped:
            first_line = text.find(b"\n") + 1
            dropped += first_line
            note = f"{_NOTE}the first {dropped} bytes are left out\n"
            return note.encode() + text[first_line:]
        return text

"""The NVIDIA GPUs of this machine, and which container holds which.

Used by the pod worker. All local nodes share the machine, so there is one pool; it allocates, never
creates.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path

_DEVICE = re.compile(r"nvidia(\d+)")


def machine_gpus() -> list[int]:
    """Indices of the GPUs that the NVIDIA driver shows (/dev/nvidia0, ...)."""
    names = (_DEVICE.fullmatch(path.name) for path in Path("/dev").glob("nvidia*"))
    return sorted(int(match[1]) for match in names if match)


class GpuPool:
    """Hands out GPU indices to containers."""

    def __init__(self, list_gpus: Callable[[], list[int]] = machine_gpus) -> None:
        self._list_gpus = list_gpus
        self._lock = threading.Lock()
        self._held: dict[tuple[str, str], list[int]] = {}

    def count(self) -> int:
        return len(self._list_gpus())

    def allocate(self, pod_uid: str, container: str, num_gpus: int) -> list[int] | None:
        """GPUs for a container, the same ones at each restart; None when too few are free."""
        with self._lock:
            if (pod_uid, container) in self._held:
                return self._held[pod_uid, container]
            taken = {index for held in self._held.values() for index in held}
            free = [index for index in self._list_gpus() if index not in taken] if num_gpus else []
            if len(free) < num_gpus:
                return None
            self._held[pod_uid, container] = free[:num_gpus]
            return free[:num_gpus]

    def release(self, pod_uid: str) -> None:
        with self._lock:
            for key in [key for key in self._held if key[0] == pod_uid]:
                del self._held[key]

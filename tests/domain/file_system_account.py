"""An account with a file system that can be named."""

from __future__ import annotations

from stationmaster.domain.cluster.spec import FileSystemSpec
from stationmaster.domain.commands.storing import FoundFileSystem
from stationmaster.domain.errors import NotPossibleNow

ID = "fs-0123456789abcdef0"


# A SCRATCH_2 file system.
SPEC = FileSystemSpec(storage_gib=4800, mbps_per_tib=200, existing_id=ID)


class Account:
    """Knows one file system, and counts what it is asked."""

    def __init__(self, *, free_gib: int | None = None) -> None:
        self.asked: list[str] = []
        self._free_gib = free_gib

    def __call__(self, file_system_id: str) -> FoundFileSystem:
        self.asked.append(file_system_id)
        if file_system_id != ID:
            raise NotPossibleNow(f"there is no file system {file_system_id}")
        return FoundFileSystem(spec=SPEC, zone="us-west-2b", free_gib=self._free_gib)

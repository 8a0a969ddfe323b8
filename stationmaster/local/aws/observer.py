"""What the emulated AWS reports to the rest of local mode when infrastructure changes.

The composer of local mode overrides `AwsObserver` to make nodes and add-ons appear in the local
cluster. Methods are called on the lifecycle thread, one at a time, in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ImportedFile:
    """An object that becomes a file of a file system; `path` is below its directory."""

    path: str
    content: bytes


class AwsObserver:
    """Hears of changes of emulated infrastructure; this one ignores them all."""

    def cluster_active(self, *, name: str) -> None: ...

    def cluster_deleted(self, *, name: str) -> None: ...

    def node_group_active(
        self,
        *,
        cluster: str,
        name: str,
        instance_type: str,
        instance_ids: Sequence[str],
        zone: str,
        labels: Mapping[str, str],
        taints: Sequence[Mapping[str, str]],
        threads_per_core: int = 2,
    ) -> None: ...

    def node_group_deleted(self, *, cluster: str, name: str) -> None: ...

    def addon_active(self, *, cluster: str, name: str) -> None: ...

    def file_system_available(self, *, file_system_id: str) -> None: ...

    def file_system_deleted(self, *, file_system_id: str) -> None: ...

    def files_imported(
        self, *, file_system_id: str, directory: str, files: Iterable[ImportedFile]
    ) -> None: ...

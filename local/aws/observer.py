"""What the emulated AWS reports to the rest of local mode when infrastructure changes.

The composer of local mode implements `AwsObserver` to make nodes and add-ons appear in the local
cluster. Methods are called on the lifecycle thread, one at a time, in order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol


class AwsObserver(Protocol):
    """Receives changes of emulated infrastructure."""

    def cluster_active(self, *, name: str) -> None: ...

    def cluster_deleted(self, *, name: str) -> None: ...

    def node_group_active(
        self,
        *,
        cluster: str,
        name: str,
        instance_type: str,
        count: int,
        zone: str,
        labels: Mapping[str, str],
        taints: Sequence[Mapping[str, str]],
    ) -> None: ...

    def node_group_deleted(self, *, cluster: str, name: str) -> None: ...

    def addon_active(self, *, cluster: str, name: str) -> None: ...

    def addon_deleted(self, *, cluster: str, name: str) -> None: ...

    def file_system_available(self, *, file_system_id: str) -> None: ...

    def file_system_deleted(self, *, file_system_id: str) -> None: ...


class SilentObserver:
    """Ignores every change; used when nothing else emulates the inside of the cluster."""

    def cluster_active(self, *, name: str) -> None: ...

    def cluster_deleted(self, *, name: str) -> None: ...

    def node_group_active(
        self,
        *,
        cluster: str,
        name: str,
        instance_type: str,
        count: int,
        zone: str,
        labels: Mapping[str, str],
        taints: Sequence[Mapping[str, str]],
    ) -> None: ...

    def node_group_deleted(self, *, cluster: str, name: str) -> None: ...

    def addon_active(self, *, cluster: str, name: str) -> None: ...

    def addon_deleted(self, *, cluster: str, name: str) -> None: ...

    def file_system_available(self, *, file_system_id: str) -> None: ...

    def file_system_deleted(self, *, file_system_id: str) -> None: ...

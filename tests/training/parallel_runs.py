"""Several gloo ranks in one start, each running many configurations, for the tests of sharding."""

from __future__ import annotations

from collections import Counter
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class OperationCounts(TorchDispatchMode):
    """Counts by name what torch computes and exchanges inside."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    @property
    def collectives(self) -> Counter[str]:
        """The exchanges between ranks alone."""
        own = {name: n for name, n in self.counts.items() if name.startswith("c10d::")}
        return Counter({name.removeprefix("c10d::"): n for name, n in own.items()})

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.counts[func.name()] += 1
        return func(*args, **(kwargs or {}))

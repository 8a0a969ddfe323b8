"""Stand-ins for the store of kept logs."""

from __future__ import annotations


class NothingKept:
    """A relay whose logs go nowhere: for tests that are about events."""

    def keep(self, pod: str, line: object) -> None:
        """Forget the line."""

    def pod_ended(self, pod: str) -> None:
        """There is nothing to send."""

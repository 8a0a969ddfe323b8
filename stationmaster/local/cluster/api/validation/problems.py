"""What is wrong with an object, field by field, in an API server's words.

Filled by the checks of this package. The wording is that of apimachinery's field errors
(util/validation/field/errors.go), as people and tools search for it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from typing import Any

from stationmaster.local.cluster.api.errors import Cause


def shown(value: Any) -> str:
    """Return a value as errors show it."""
    return json.dumps(value)


class Problems(list[Cause]):
    """Findings in their order."""

    def required(self, path: str, detail: str = "") -> None:
        self.append((path, f"Required value: {detail}" if detail else "Required value"))

    def invalid(self, path: str, value: Any, detail: str) -> None:
        self.append((path, f"Invalid value: {shown(value)}: {detail}"))

    def each(self, path: str, text: str | None, check: Callable[[str], list[str]]) -> None:
        """Say everything that a check finds wrong with a text; an empty one is not looked at."""
        for message in check(text) if text else []:
            self.invalid(path, text, message)

    def forbidden(self, path: str, detail: str) -> None:
        self.append((path, f"Forbidden: {detail}"))

    def duplicate(self, path: str, value: Any) -> None:
        self.append((path, f"Duplicate value: {shown(value)}"))

    def not_found(self, path: str, value: Any) -> None:
        self.append((path, f"Not found: {shown(value)}"))

    def unsupported(self, path: str, value: Any, known: Collection[str]) -> None:
        listed = ", ".join(f'"{each}"' for each in sorted(known))
        self.append((path, f"Unsupported value: {shown(value)}: supported values: {listed}"))

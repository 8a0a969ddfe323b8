"""What a custom command gets of this machine: its own directory and modules, not the product's.

The product's programs come from its checkout, as in production from their images. Of a program that
somebody brought, names like `training` or `tests` are their own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

# What only such programs are told (`rendering/environment.py`).
_TOLD: Final = "STATIONMASTER_OUTPUT_DIR"


def is_own_code(container: Mapping[str, Any]) -> bool:
    """Say whether the container runs another program than the product's."""
    return any(each["name"] == _TOLD for each in container.get("env") or [])


def own_variables(base: Mapping[str, str], *, product: Path) -> dict[str, str]:
    """Return the node's variables without the product's modules."""
    paths = base.get("PYTHONPATH", "").split(os.pathsep)
    return {**base, "PYTHONPATH": os.pathsep.join(each for each in paths if each != str(product))}


def own_directory(*, product: Path, instead: Path) -> Path:
    """Return where whoever started local mode is, or `instead` of the product's checkout."""
    here = Path.cwd()
    return instead if here.resolve() == product.resolve() else here

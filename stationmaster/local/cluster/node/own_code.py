"""What a custom command gets of this machine: its own directory and Python, not the product's.

The product's programs come from its checkout, as in production from their images. Of a program that
somebody brought, names like `training` or `tests` are their own. Its Python is that of the virtual
environment that was typed, then of its first word where that is a path, then of the environment
that is active where local mode was started; the product's own is the last.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

# What only such programs are told (`rendering/environment.py`).
_TOLD: Final = "STATIONMASTER_OUTPUT_DIR"
_VENV: Final = "VIRTUAL_ENV"


def is_own_code(container: Mapping[str, Any]) -> bool:
    """Say whether the container runs another program than the product's."""
    return any(each["name"] == _TOLD for each in container.get("env") or [])


def own_variables(
    base: Mapping[str, str], container: Mapping[str, Any], *, product: Path
) -> dict[str, str]:
    """Return the node's variables without the product's modules, and with the command's Python."""
    typed = next((each["value"] for each in container["env"] if each["name"] == _VENV), "")
    programs = base.get("PATH", "").split(os.pathsep)
    if typed:  # a program that it does not have is missing, and no other Python's is taken
        programs = [each for each in programs if Path(each) != Path(sys.executable).parent]
    active = _active() if "/" not in container["command"][0] else ""
    venv = typed or active
    modules = base.get("PYTHONPATH", "").split(os.pathsep)
    return {
        **base,
        "PYTHONPATH": os.pathsep.join(each for each in modules if each != str(product)),
        "PATH": os.pathsep.join([*([f"{venv}/bin"] if venv else []), *programs]),
        **({_VENV: venv} if venv else {}),
    }


def _active() -> str:
    """Return the environment that was active, unless it is the product's own or conda's base.

    The base is active in every shell of many people, whatever they installed the product with.
    """
    conda = os.environ.get("CONDA_PREFIX", "")
    is_base = os.environ.get("CONDA_DEFAULT_ENV") == "base"
    active = os.environ.get(_VENV) or ("" if is_base else conda)
    is_own = bool(active) and Path(active).resolve() == Path(sys.prefix).resolve()
    return "" if is_own else active


def own_directory(*, product: Path, instead: Path) -> Path:
    """Return where whoever started local mode is, or `instead` of the product's checkout."""
    here = Path.cwd()
    return instead if here.resolve() == product.resolve() else here

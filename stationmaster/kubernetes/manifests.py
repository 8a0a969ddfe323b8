"""The plugins' YAML files, by plugin name, from the folder `manifests` beside the packages.

A Lambda function's asset carries that folder as a checkout does.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Final

from stationmaster.domain.errors import PermanentError

MANIFESTS: Final = Path(__file__).resolve().parents[2] / "manifests"


@cache
def load_manifests(plugin: str) -> tuple[dict[str, Any], ...]:
    """Load every object of a plugin, in the order of its files' names.

    Raises:
        PermanentError: the folder is missing or empty: the deployment is incomplete.
    """
    import yaml  # here, because prepare-run lists plugins and reads none

    folder = MANIFESTS / plugin
    objects = tuple(
        item
        for path in sorted(folder.glob("*.yaml"))
        for item in yaml.safe_load_all(path.read_text(encoding="utf-8"))
        if item is not None
    )
    if not objects:
        raise PermanentError(
            f'plugin "{plugin}" has no manifests in {folder}; '
            "deploy the folder manifests beside the packages"
        )
    return objects

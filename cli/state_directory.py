"""Where local mode keeps its files, unless --state-dir says otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Final

DEFAULT_STATE_DIR: Final = Path(".stationmaster")

"""Where local mode keeps its files, and how another command finds it there."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Final

from stationmaster.domain.errors import BadCommand

_CHECKOUT: Final = Path(__file__).resolve().parents[2]


def _state_dir(name: str) -> Path:
    """In the folder that a checkout is used from; installed, below the user's data directory.

    Source: XDG Base Directory Specification 0.8.
    """
    if (_CHECKOUT / "pyproject.toml").is_file():
        return Path(f".{name}")
    data = os.environ.get("XDG_DATA_HOME", "")
    return (Path(data) if data.startswith("/") else Path.home() / ".local/share") / name


DEFAULT_STATE_DIR: Final = _state_dir("stationmaster")
# Of its own, so that it runs while `local up` is open.
RUN_STATE_DIR: Final = _state_dir("stationmaster-run")
# Written by local mode when it starts: how to reach its AWS, and its settings.
_LOCAL_FILES: Final = ("aws.env", "settings.env")


def enter_local_mode(state_dir: Path, *, or_else: str = "") -> None:
    """Let this process speak to the local mode that runs with a state directory.

    Raises:
        BadCommand: none runs there; `or_else` says what else could be given.
    """
    try:
        for name in _LOCAL_FILES:
            exported = shlex.split((state_dir / name).read_text())
            os.environ.update(dict(word.split("=", 1) for word in exported if "=" in word))
    except OSError as exc:
        missing = f"no local mode runs in {state_dir} ({exc.strerror}: {Path(exc.filename).name})"
        raise BadCommand(or_else.format(missing=missing) if or_else else missing) from exc

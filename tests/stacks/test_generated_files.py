"""Committed files that are generated from code say what the code says; run by `make check`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_committed_state_machines_match_the_code() -> None:
    finished = subprocess.run(
        [sys.executable, "-m", "stacks.generate", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert finished.returncode == 0, finished.stderr[-3000:]

"""Committed files that are generated from code say what the code says; run by `make check`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize("module", ["stacks.generate", "cli.reference"])
def test_committed_files_match_the_code(module: str) -> None:
    finished = subprocess.run(
        [sys.executable, "-m", module, "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert finished.returncode == 0, finished.stderr[-3000:]

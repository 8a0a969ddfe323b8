"""Committed files that are generated from code say what the code says; run by `make check`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from infra_templates import ROOT

from lambdas import registry
from stacks import rights


def test_committed_state_machines_and_policies_match_the_code(syntheses: Path) -> None:
    made = json.loads((syntheses / "generated.json").read_text())

    assert set(made) == {*registry.MACHINES.values(), registry.POLICIES, rights.PAGE}
    stale = [path for path, text in made.items() if (ROOT / path).read_text() != text]
    assert not stale, "run: make generate"


def test_committed_reference_of_commands_is_what_the_code_says() -> None:
    finished = subprocess.run(
        [sys.executable, "-m", "stationmaster.cli.reference", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert finished.returncode == 0, finished.stderr[-3000:]

"""A gang that trains in a test's workspace, for the elastic tests."""

from __future__ import annotations

import sys
from pathlib import Path

from trainer_runs import Workspace

# The benchmarks are run from the checkout and are no part of what is installed.
sys.path.append(str(Path(__file__).resolve().parents[2]))

from bench.gang import Gang


def gang_of(
    workspace: Workspace,
    *overrides: str,
    directory: Path,
    nnodes: str,
    backend: str = "c10d",
    endpoint: str | None = None,
    max_restarts: int = 3,
    flags: tuple[str, ...] = (),
) -> Gang:
    """Agents for the trainer, none started yet."""
    return Gang(
        ["-m", "training", *workspace.arguments(*overrides), *flags],
        environ=workspace.environ(),
        directory=directory,
        nnodes=nnodes,
        backend=backend,
        endpoint=endpoint,
        max_restarts=max_restarts,
        missed_beats=10,
    )

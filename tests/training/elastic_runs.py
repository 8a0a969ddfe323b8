"""A gang that trains in a test's workspace, for the elastic tests."""

from __future__ import annotations

import os
from pathlib import Path

from trainer_runs import Workspace

from bench.gang import Gang
from stationmaster.settings import HubAccess
from tests.chaos.forked_programs import add_programs


def gang_of(
    workspace: Workspace,
    *overrides: str,
    directory: Path,
    nnodes: str,
    backend: str = "c10d",
    endpoint: str | None = None,
    max_restarts: int = 3,
    flags: tuple[str, ...] = (),
    forks: bool = False,
) -> Gang:
    """Agents for the trainer, none started yet.

    With `forks` agents and workers are not started but forked: a second instead of four. Their
    processes are then not each other's children, so that none of them can be looked up.
    """
    environ = workspace.environ()
    torchrun: dict[str, tuple[str, ...]] = {}
    if forks:
        programs = directory / "programs"
        programs.mkdir()
        add_programs(programs, trains=True)
        environ |= {
            "PATH": f"{programs}{os.pathsep}{environ['PATH']}",
            "HF_ENDPOINT": HubAccess.from_environment().url,
        }
        torchrun = {"torchrun": (str(programs / "torchrun"),)}
    return Gang(
        ["-m", "training", *workspace.arguments(*overrides), *flags],
        environ=environ,
        directory=directory,
        nnodes=nnodes,
        backend=backend,
        endpoint=endpoint,
        max_restarts=max_restarts,
        missed_beats=10,
        **torchrun,
    )

"""What holds for every test: nothing here depends on how fast or how busy the machine is."""

from __future__ import annotations

import fcntl
import gc
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Set before torch is imported. Its threads spin while they wait for each other: in two processes on
# two cores they wait for threads that have no core, and a test took fifteen times as long.
os.environ["OMP_NUM_THREADS"] = "1"

settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

# Importing and collecting makes objects by the million, and no garbage: the collector would walk
# them again and again, a third of the time.
gc.disable()

Once = Callable[[str, Callable[[Path], None]], Path]


def pytest_collection_finish() -> None:
    """From here on there is garbage, but not among what is there already."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Once:
    """Gives a folder that one worker fills and all workers of the run read.

    Who comes second waits; who comes after a failure tries again, and fails for itself.
    """
    mine = tmp_path_factory.getbasetemp()
    shared = mine.parent if "PYTEST_XDIST_WORKER" in os.environ else mine

    def folder_of(name: str, fill: Callable[[Path], None]) -> Path:
        folder = shared / f"once-{name}"
        with (shared / f"once-{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.exists():
                unfinished = tmp_path_factory.mktemp(name)
                fill(unfinished)
                unfinished.rename(folder)
        return folder

    return folder_of

"""What holds for every test: nothing here depends on how fast or how busy the machine is."""

from __future__ import annotations

import fcntl
import gc
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import stationmaster.local.service_models  # noqa: F401  (all sessions of boto3 share what they read)
from tests.chaos.points import SEED_VARIABLE, sweep_seed

# Set before torch is imported. Its threads spin while they wait for each other: in two processes on
# two cores they wait for threads that have no core, and a test took fifteen times as long.
os.environ["OMP_NUM_THREADS"] = "1"

# The same examples in each run, so that a commit has one result; whoever sets a seed gets others.
settings.register_profile(
    "busy",
    deadline=None,
    derandomize=not os.environ.get(SEED_VARIABLE),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("busy")

# Importing and collecting makes objects by the million, and no garbage: the collector would walk
# them again and again, a third of the time.
gc.disable()

# Files that take long, the longest first: workers take whole files in this order, and what is short
# fills the end. CPU seconds: 80 for the first, 10 for the last.
LONG_FILES = (
    "domain/test_generated_commands.py",
    "training/test_elastic_recovery.py",
    "stacks/workflow/test_sweeps.py",
    "stacks/workflow/test_workflow_states.py",
    "e2e/test_e2e_failures.py",
    "e2e/test_e2e_command_line.py",
    "stacks/workflow/test_workflow_processes.py",
    "stacks/workflow/test_workflow_existing_cluster.py",
    "e2e/test_e2e_resume.py",
    "e2e/test_e2e_page.py",
    "e2e/test_e2e_data.py",
    "training/test_estimator.py",
    "training/test_image_runs.py",
    "training/test_trainer_runs.py",
    "training/test_parallel_parity.py",
    "training/test_final_model.py",
    "e2e/test_e2e_own_code.py",
    "e2e/test_e2e_recipes.py",
    "steps/test_kill_points.py",
    "steps/in_cluster/test_kill_points_in_cluster.py",
    "gateway/test_kubernetes_gateway_steps.py",
    "training/test_families.py",
    "training/test_hub_runs.py",
    "bot/test_bot_notifier.py",
    "local/slack/test_slack_page.py",
)

THOROUGH = Path(__file__).with_name("thorough.txt")

Once = Callable[[str, Callable[[Path], None]], Path]


def pytest_report_header() -> str:
    """Say which sample of the matrices is played; the variable chooses another."""
    seed = sweep_seed()
    return f"sweeps: {SEED_VARIABLE}={'all' if seed is None else seed}"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "thorough: only `make test-all` runs it (thorough.txt)")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is thorough; put long files first, each file's tests in their order."""
    here = Path(__file__).parent
    thorough = set(listed(THOROUGH))
    for item in items:
        if thorough.intersection(names_of(item)):
            item.add_marker("thorough")
    rank = {here / name: number for number, name in enumerate(LONG_FILES)}
    gone = [str(path) for path in rank if not path.exists()]
    if gone:
        raise pytest.UsageError(f"LONG_FILES of tests/conftest.py names {gone}: not there")
    items.sort(key=lambda item: rank.get(item.path, len(rank)))


def listed(path: Path) -> list[str]:
    """The lines of a list of tests, without comments."""
    lines = (line.strip() for line in path.read_text().splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def names_of(item: pytest.Item) -> set[str]:
    """How a list may name a test: by its folders, its file, its function, or with its parameter."""
    path = item.path.relative_to(Path(__file__).parent)
    folders = {f"{folder}/" for folder in path.parents}
    function = item.name.partition("[")[0]
    return folders | {f"{path}", f"{path}::{function}", f"{path}::{item.name}"}


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

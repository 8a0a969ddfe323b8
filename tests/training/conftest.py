"""A small text data set and a place to train, for the trainer's tests."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hub_stand_in import HubStandIn, hub_stand_in
from trainer_runs import Workspace

if TYPE_CHECKING:
    from training.parallel import Ranks

# As the trainer has it: transformers imports torchao wherever it is installed, with warnings.
sys.modules.setdefault("torchao", None)  # type: ignore[arg-type]


@pytest.fixture(scope="module", autouse=True)
def _leave_process_group() -> Iterator[None]:
    """A trainer that fails in this process leaves its group as it is; the next file starts anew."""
    yield
    if "torch.distributed" in sys.modules:
        distributed = sys.modules["torch.distributed"]
        if distributed.is_initialized():
            distributed.destroy_process_group()


@pytest.fixture(scope="session")
def text_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 kB of words with some structure to learn."""
    directory = tmp_path_factory.mktemp("text")
    rng = random.Random(7)
    words = [f"{a}{b}" for a in ("track", "signal", "plat", "sta") for b in ("ion", "form", "man")]
    for number in range(6):
        text = " ".join(rng.choice(words) for _ in range(1200))
        (directory / f"{number}.txt").write_text(text)
    return directory


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def workspace(tmp_path: Path, text_dir: Path, cache_dir: Path) -> Workspace:
    return Workspace(output_dir=tmp_path / "out", cache_dir=cache_dir, text_dir=text_dir)


@pytest.fixture
def ranks() -> Iterator[Ranks]:
    """This process as the only rank."""
    from checkpoint_ranks import lone_rank

    with lone_rank() as ranks:
        yield ranks


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubStandIn]:
    """A hub without anything, and nobody's token."""
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "no-token"))
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "no-token" / "token"))
    with hub_stand_in() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Models too small to share out: on a busy machine the threads would wait for each other."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)

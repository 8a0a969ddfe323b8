"""Saving and resuming on one rank: what is stored, what is refused, what is skipped."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_ranks import CONFIGURATION, checkpointer_in, lone_rank

from stationmaster.domain.checkpoints import Manifest
from stationmaster.domain.errors import BadParameter, PermanentError
from training.checkpoint import Checkpointer, State
from training.hashed_files import HashedFiles
from training.manifest import read_manifest
from training.parallel import Ranks

BIG = 2**23
"""Elements; copying 32 MiB takes longer than starting to change them."""


@pytest.fixture
def ranks() -> Iterator[Ranks]:
    with lone_rank() as ranks:
        yield ranks


def state_of(**model: Any) -> State:
    return {"model": model, "rng": {}, "data": {}}


def save(checkpointer: Checkpointer, step: int, state: State) -> None:
    checkpointer.start_save(step, state, changing=())
    checkpointer.wait_staged()
    assert checkpointer.completed(wait=True) is not None


def loaded(checkpointer: Checkpointer, step: int, state: State) -> Any:
    checkpointer.load(step, state)
    return state["model"]


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]


def test_step_right_after_the_save_does_not_leak_into_it(tmp_path: Path, ranks: Ranks) -> None:
    checkpointer = checkpointer_in(tmp_path, ranks)
    weights = torch.rand(BIG)
    for step in (1, 2):  # the second into memory of the first, as in a run
        expected = weights.clone()

        checkpointer.start_save(step, state_of(weights=weights), changing=())
        checkpointer.wait_staged()
        weights.neg_()

        saved = checkpointer.completed(wait=True)
        assert saved is not None
        assert 0 < saved.stall_s < saved.duration_s
        read = loaded(checkpointer, step, state_of(weights=torch.empty(BIG)))
        assert torch.equal(read["weights"], expected)


def test_forward_right_after_the_save_does_not_leak_into_it(tmp_path: Path, ranks: Ranks) -> None:
    checkpointer = checkpointer_in(tmp_path, ranks)
    running_mean = torch.rand(BIG)
    expected = running_mean.clone()

    # Training sees the model's buffer; the state has a view of the same memory.
    state = state_of(running_mean=running_mean.detach())
    checkpointer.start_save(1, state, changing=[running_mean])
    running_mean.neg_()

    checkpointer.wait_staged()
    checkpointer.completed(wait=True)
    read = loaded(checkpointer, 1, state_of(running_mean=torch.empty(BIG)))
    assert torch.equal(read["running_mean"], expected)


def test_plain_values_and_entries_of_ranks_are_those_of_the_save(
    tmp_path: Path, ranks: Ranks
) -> None:
    checkpointer = checkpointer_in(tmp_path, ranks)
    state = {
        "optimizer": {"ballast": torch.zeros(BIG), "groups": [{"lr": 0.5}]},
        "rng": {"rank-0": torch.tensor([1])},
        "data": {"rows": [1], "lane": torch.tensor([7])},
    }

    checkpointer.start_save(1, state, changing=())
    state["optimizer"]["groups"][0]["lr"] = 0.25  # type: ignore[index]
    state["data"]["rows"].append(2)  # type: ignore[union-attr]
    state["data"]["lane"].zero_()  # type: ignore[union-attr]
    state["rng"]["rank-0"].zero_()  # type: ignore[union-attr]

    checkpointer.completed(wait=True)
    checkpointer.load(1, state)
    assert state["optimizer"]["groups"] == [{"lr": 0.5}]
    assert state["data"] == {"rows": [1], "lane": torch.tensor([7])}
    assert state["rng"] == {"rank-0": torch.tensor([1])}


def test_save_during_a_save_completes_both_in_order(tmp_path: Path, ranks: Ranks) -> None:
    checkpointer = checkpointer_in(tmp_path, ranks)
    weights = torch.zeros(BIG)

    checkpointer.start_save(1, state_of(weights=weights), changing=())
    checkpointer.wait_staged()
    weights += 1
    checkpointer.start_save(2, state_of(weights=weights), changing=())
    last = checkpointer.completed(wait=True)

    assert last is not None
    assert last.step == 2
    for step in (1, 2):
        read = loaded(checkpointer, step, state_of(weights=torch.empty(BIG)))
        assert read["weights"][-1] == step - 1


def test_retention_of_nothing_is_refused(tmp_path: Path, ranks: Ranks) -> None:
    with pytest.raises(ValueError, match="kept=0, expected 1 or more"):
        checkpointer_in(tmp_path, ranks, kept=0)


def test_resume_with_other_values_names_each_of_them(tmp_path: Path, ranks: Ranks) -> None:
    save(checkpointer_in(tmp_path, ranks), 4, state_of(weights=torch.zeros(1)))
    other = {**CONFIGURATION, "learning_rate": "0.02", "seed": "3"}

    with pytest.raises(BadParameter) as caught:
        checkpointer_in(tmp_path, ranks, configuration=other).newest_complete_step()

    assert str(caught.value) == (
        f"checkpoint {tmp_path / 'step-00000004'} was made with another configuration: "
        "learning_rate is 0.01 there and 0.02 here; seed is absent there and 3 here; give its "
        "values to continue it, or another --output-dir to start from scratch"
    )


def test_start_from_scratch_beside_a_relative_warns_of_what_differs(
    tmp_path: Path, ranks: Ranks, caplog: pytest.LogCaptureFixture
) -> None:
    others = {
        "tiny-llama-aaaaaaaaaaaa": {"learning_rate": "0.02"},
        "tiny-llama-bbbbbbbbbbbb": {"learning_rate": "0.02", "data": "music"},
        "tiny-llama-large-cccccccccccc": {},
    }
    for name, changes in others.items():
        (tmp_path / name).mkdir()
        checkpointer = checkpointer_in(
            tmp_path / name, ranks, configuration=CONFIGURATION | changes
        )
        save(checkpointer, 2, state_of(weights=torch.zeros(1)))

    mine = checkpointer_in(tmp_path / "tiny-llama-dddddddddddd", ranks)
    assert mine.newest_complete_step() is None

    (warning,) = warnings_of(caplog)
    assert "tiny-llama-aaaaaaaaaaaa" in warning
    assert "learning_rate is 0.02 there and 0.01 here" in warning
    assert "music" not in warning


def test_resume_verifies_what_a_killed_save_left_unverified(tmp_path: Path, ranks: Ranks) -> None:
    save(checkpointer_in(tmp_path, ranks), 4, state_of(weights=torch.zeros(1)))
    marker = tmp_path / "step-00000004/complete.json"
    marker.write_text(marker.read_text().replace('"verified": true', '"verified": false'))

    step = checkpointer_in(tmp_path, ranks).newest_complete_step()

    manifest = read_manifest(tmp_path / "step-00000004")
    assert step == 4
    assert isinstance(manifest, Manifest)
    assert manifest.verified


def test_save_on_a_full_disk_says_so(tmp_path: Path, ranks: Ranks) -> None:
    checkpointer = checkpointer_in(tmp_path, ranks)
    (tmp_path / "step-00000001").mkdir()
    (tmp_path / "step-00000001/__0_0.distcp").symlink_to("/dev/full")

    checkpointer.start_save(1, state_of(weights=torch.zeros(BIG)), changing=())

    with pytest.raises(PermanentError) as caught:
        checkpointer.completed(wait=True)
    assert f"No space left on device; the disk of {tmp_path} is full (" in str(caught.value)


def test_disk_that_is_full_in_the_middle_of_a_file_is_named(tmp_path: Path) -> None:
    """torch's archive writer then says only that its position is wrong."""
    files = HashedFiles(rank=0)
    (tmp_path / "full").symlink_to("/dev/full")

    with (
        pytest.raises(OSError, match="No space left on device"),
        files.create_stream(tmp_path / "full", "wb") as stream,
    ):
        torch.save(torch.zeros(BIG), stream)


@pytest.mark.parametrize(
    "ask",
    [
        lambda checkpointer: checkpointer.completed(wait=True),
        lambda checkpointer: checkpointer.start_save(2, state_of(), changing=()),
    ],
    ids=["at its end", "by the next one"],
)
def test_save_that_cannot_be_written_names_the_directory(
    tmp_path: Path, ranks: Ranks, ask: Callable[[Checkpointer], object]
) -> None:
    checkpointer = checkpointer_in(tmp_path, ranks)
    (tmp_path / "step-00000001").write_text("in the way")
    checkpointer.start_save(1, state_of(weights=torch.zeros(1)), changing=())

    with pytest.raises(PermanentError, match=r"step-00000001 failed: .*File exists.*; check space"):
        ask(checkpointer)


def test_load_of_a_state_with_other_names_says_which(tmp_path: Path, ranks: Ranks) -> None:
    checkpointer = checkpointer_in(tmp_path, ranks)
    save(checkpointer, 1, state_of(weights=torch.zeros(1)))

    with pytest.raises(PermanentError, match=r"does not fit this model: .*model\.biases"):
        checkpointer.load(1, state_of(biases=torch.zeros(1)))

"""What a resume does with checkpoints that it cannot read: it never deletes or forgets one."""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_ranks import TinyRun, checkpointer_in
from forked_ranks import results, run_ranks
from spoiling import contents_of, turn_a_bit
from torch.distributed.checkpoint.metadata import BytesStorageMetadata as Bytes
from torch.distributed.checkpoint.metadata import Metadata

from stationmaster.domain.errors import BadParameter, PermanentError, StationmasterError
from training.checkpoint import Checkpointer
from training.manifest import complete_steps
from training.parallel import Ranks


@pytest.fixture
def run(tmp_path: Path, ranks: Ranks) -> Path:
    """Checkpoints of steps 3 and 6."""
    directory = tmp_path / "tiny-llama-0123456789ab"
    TinyRun(ranks).train_until(6, checkpointer=checkpointer_in(directory, ranks), every=3)
    return directory


def change_weights(step: Path) -> str:
    turn_a_bit(step / "__0_0.distcp")
    return f"{step / '__0_0.distcp'} is not what was written"


def tear_the_manifest(step: Path) -> str:
    (step / "complete.json").write_text('{"step": 6, "fi')
    return f"{step / 'complete.json'} is torn"


def know_no_key(step: Path) -> str:
    marker = step / "complete.json"
    marker.write_text(json.dumps(json.loads(marker.read_text()) | {"compression": "zstd"}))
    return 'the key "compression" is not known'


def break_the_disk(file: Path) -> None:
    """Reading the file is a real error of the device from now on, for root as well."""
    file.unlink()
    file.symlink_to("/proc/self/mem")  # nothing is mapped at address 0
    marker = file.parent / "complete.json"
    if marker != file:
        manifest = json.loads(marker.read_text())
        manifest["files"][file.name]["size_bytes"] = 0  # what `stat` says of it
        marker.write_text(json.dumps(manifest))


@pytest.mark.parametrize("damage", [change_weights, tear_the_manifest])
def test_damaged_checkpoint_is_passed_over_and_left_as_it_is(
    run: Path, ranks: Ranks, caplog: pytest.LogCaptureFixture, damage: Callable[[Path], str]
) -> None:
    reason = damage(run / "step-00000006")
    before = contents_of(run)

    checkpointer = checkpointer_in(run, ranks)
    step = checkpointer.newest_complete_step()

    (warning,) = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
    assert step == 3
    assert "checkpoint of step 6 is passed over" in warning
    assert reason in warning
    assert checkpointer.passed_over.startswith(f"step 6: {reason}")
    assert contents_of(run) == before


@pytest.mark.parametrize(
    ("damages", "sentence"),
    [
        ({3: change_weights, 6: tear_the_manifest}, "no checkpoint in .* can be read"),
        ({6: know_no_key}, "was not written by this version"),
    ],
)
def test_checkpoints_of_which_none_can_be_used_stop_the_run(
    run: Path, ranks: Ranks, damages: dict[int, Callable[[Path], str]], sentence: str
) -> None:
    reasons = [damage(run / f"step-{step:08d}") for step, damage in damages.items()]
    before = contents_of(run)

    with pytest.raises(PermanentError, match=sentence) as caught:
        checkpointer_in(run, ranks).newest_complete_step()

    assert all(reason in str(caught.value) for reason in reasons)
    assert contents_of(run) == before


class Harmful:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, ("harm-was-done",)


def put_into(step: Path, name: str, data: bytes) -> None:
    """Whoever writes a file may write what the manifest says of it."""
    (step / name).write_bytes(data)
    marker = step / "complete.json"
    manifest = json.loads(marker.read_text())
    stored = {"size_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    manifest["files"][name] |= stored
    marker.write_text(json.dumps(manifest))


@pytest.mark.parametrize("name", [".metadata", "__0_0.distcp", "ranks.pt"])
def test_checkpoint_that_would_run_something_is_refused_and_runs_nothing(
    run: Path, ranks: Ranks, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    step = run / "step-00000006"
    harm = io.BytesIO()
    torch.save(Harmful(), harm)
    if name == ".metadata":
        index = pickle.dumps(Metadata({}, planner_data=Harmful(), storage_data={}))
        put_into(step, name, index)
    elif name == "ranks.pt":
        put_into(step, name, harm.getvalue())
    else:  # a value that is no tensor, in the place of one
        index = pickle.loads((step / ".metadata").read_bytes())
        places = index.storage_data
        place = next(key for key in places if isinstance(index.state_dict_metadata[key.fqn], Bytes))
        data = (step / name).read_bytes() + harm.getvalue()
        end = len(data) - len(harm.getvalue())
        places[place] = replace(places[place], offset=end, length=len(harm.getvalue()))
        put_into(step, name, data)
        put_into(step, ".metadata", pickle.dumps(index))
    checkpointer = checkpointer_in(run, ranks)
    found = checkpointer.newest_complete_step()

    with pytest.raises(StationmasterError, match=r"names posix.mkdir|plain values|Weights only"):
        checkpointer.load(6, TinyRun(ranks).state())

    assert found == 6
    assert not Path("harm-was-done").exists()


@pytest.mark.parametrize("name", ["complete.json", "__0_0.distcp"])
def test_storage_that_does_not_answer_stops_the_run(
    run: Path, ranks: Ranks, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    break_the_disk(run / "step-00000006" / name)
    before = contents_of(run)

    with pytest.raises(PermanentError, match=r"failed, 3 times: .*Input/output error") as caught:
        checkpointer_in(run, ranks).newest_complete_step()

    assert "nothing was deleted and training did not start over" in str(caught.value)
    assert sum("trying again" in one.getMessage() for one in caplog.records) == 2
    assert contents_of(run) == before
    assert (run / "step-00000006" / name).is_symlink()


def resume_beside_a_broken_disk(ranks: Ranks, directory: Path) -> str:
    run, checkpointer = TinyRun(ranks), checkpointer_in(directory, ranks)
    run.train_until(2, checkpointer=checkpointer, every=2)
    if ranks.rank == 0:
        break_the_disk(directory / "step-00000002/__1_0.distcp")
    try:
        run.resume(checkpointer)
    except PermanentError as error:
        return str(error)
    return "no error"


def test_storage_that_fails_one_rank_stops_all_with_its_reason(tmp_path: Path) -> None:
    first, second = results(run_ranks(resume_beside_a_broken_disk, tmp_path, world_size=2))

    assert first == second
    assert "step-00000002/__1_0.distcp" in first


def test_other_steps_under_a_falling_rate_are_refused_and_named(
    tmp_path: Path, ranks: Ranks
) -> None:
    def checkpointer(**keys: str) -> Checkpointer:
        return checkpointer_in(tmp_path, ranks, configuration={"schedule": "cosine", **keys})

    # One of before steps were noted is continued.
    TinyRun(ranks).train_until(1, checkpointer=checkpointer(), every=1)
    assert checkpointer(steps="100").newest_complete_step() == 1
    TinyRun(ranks).train_until(2, checkpointer=checkpointer(steps="100"), every=2)

    with pytest.raises(BadParameter) as caught:
        checkpointer(steps="200").newest_complete_step()

    assert "steps is 100 there and 200 here (schedule=cosine falls to" in str(caught.value)
    assert checkpointer(steps="100").newest_complete_step() == 2


def test_training_that_reaches_a_damaged_step_again_keeps_the_damaged_one(
    run: Path, ranks: Ranks
) -> None:
    change_weights(run / "step-00000006")
    damaged = (run / "step-00000006/__0_0.distcp").read_bytes()

    resumed, checkpointer = TinyRun(ranks), checkpointer_in(run, ranks, kept=1)
    resumed.resume(checkpointer)
    resumed.train_until(4, checkpointer=checkpointer, every=1)
    assert complete_steps(run) == {4, 6}  # the damaged one does not count among those kept
    resumed.train_until(9, checkpointer=checkpointer, every=3)

    assert complete_steps(run) == {9}
    assert (run / "step-00000006.damaged/__0_0.distcp").read_bytes() == damaged
    assert checkpointer_in(run, ranks).newest_complete_step() == 9

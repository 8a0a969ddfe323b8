"""Faults of a training pod are detected from the lines that its trainer prints."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from stationmaster.domain.detected import Kind
from stationmaster.domain.progress_lines import FailedLine, PreparingLine, read_line
from stationmaster.domain.reactions.run import consequences
from stationmaster.domain.run.changes import apply
from stationmaster.domain.run.events import RunPhase
from stationmaster.local.faults import FAULTS
from stationmaster.local.pod_python import training_faults
from stationmaster.relay.parsing import event_of
from tests.support.factories import RUN_ID, make_run

ROOT = Path(__file__).parents[2]


def test_trainer_has_every_fault_that_is_its_own():
    own = {each.name for each in FAULTS.values() if each.endpoint in ("trainer", "bad machine")}

    assert own == training_faults._FAULTS.keys()


def printed_with(tmp_path: Path, faults: str) -> tuple[int, list[str]]:
    """Train with faults; return the exit code and the lines that were printed."""
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT / 'stationmaster' / 'local' / 'pod_python'}{os.pathsep}{ROOT}",
        "STATIONMASTER_LOCAL_TRAINING_FAULTS": faults,
    }
    words = ["tiny-llama", "steps=62", "checkpoint_every=12", "global_batch_size=4"]
    command = [sys.executable, "-m", "training", *words, "--output-dir", str(tmp_path)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return ended.returncode, ended.stdout.splitlines()


def test_garbled_data_slow_checkpoints_full_disk_and_idle_gpus_are_detected(tmp_path: Path):
    _, printed = printed_with(tmp_path, "bad-data slow-checkpoints disk-fills idle-gpus")

    run = make_run(RunPhase.RUNNING)
    for line in filter(None, map(read_line, printed)):
        if isinstance(line, PreparingLine):
            continue
        event = event_of(line, {"event_id": str(line.seq), "run_id": RUN_ID, "at": line.at})
        run = apply(run, event)
        for each in consequences(run, event):
            run = apply(run, each)

    steps = {each.kind: each.step for each in run.detections}
    assert steps.keys() == {Kind.SPIKE, Kind.CHECKPOINT_SLOW, Kind.DISK_FILLS, Kind.GPU_IDLE}
    assert (steps[Kind.SPIKE], steps[Kind.CHECKPOINT_SLOW]) == (60, 48)


def test_loss_that_is_not_finite_ends_the_trainer_with_what_to_do(tmp_path: Path):
    code, printed = printed_with(tmp_path, "loss-not-finite")

    (failed,) = [each for each in map(read_line, printed) if isinstance(each, FailedLine)]
    assert code != 0
    assert re.match("step 60: loss nan.* lower learning_rate=", failed.reason)

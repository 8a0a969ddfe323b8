"""The short training of the gate: what its ranks print, and that nothing of it stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from forked_ranks import start_ranks

from stationmaster.diagnosis.training_smoke import Tried, fault_of
from stationmaster.domain.progress_lines import FailedLine, read_line
from training import smoke

SMALL = (
    *("tiny-llama", "preset=smoke", "log_every=1", "checkpoint_every=6", "eval_every=0"),
    "steps=6",
)


def _train(rank: int, out: str, arguments: list[str]) -> None:
    descriptor = os.open(f"{out}.{rank}", os.O_WRONLY | os.O_CREAT)
    os.dup2(descriptor, 1)
    os._exit(smoke.main(arguments, {**os.environ, "NODE_NAME": f"node-{rank}"}))


def train(log: Path, output_dir: Path, *keys: str, num_ranks: int) -> list[int]:
    """The exit codes of a training into a directory that is named as a check's job names it."""
    words = [*SMALL, *keys, "--output-dir", str(output_dir)]
    ends = start_ranks(_train, str(log), words, world_size=num_ranks)
    return [end.exit_code for end in ends]


def test_ranks_train_and_resume_with_the_same_losses_and_leave_nothing(tmp_path: Path):
    runs = tmp_path / "runs"
    for name in ("c-1-tr-before", "c-2-tr-old", "c-2-tr-now"):
        (runs / name / "checkpoints").mkdir(parents=True)
    hours_ago = time.time() - 7 * 3600
    os.utime(runs / "c-2-tr-old", (hours_ago, hours_ago))

    codes = train(tmp_path / "log", runs / "c-1-tr-0a1b2c", "global_batch_size=4", num_ranks=2)

    assert codes == [0, 0]
    tried = Tried()
    for rank in range(2):
        tried.take((tmp_path / f"log.{rank}").read_text().splitlines())
    assert fault_of(tried, num_ranks=2, steps=6, device="cpu") == ""
    assert tried.ranks[1].node == "node-1"
    assert (tried.ranks[1].resumed_from_step, tried.checkpoint_bytes > 1 << 20) == (3, True)
    assert [path.name for path in runs.iterdir()] == ["c-2-tr-now"], "it may be under way"


def test_failure_is_reported_and_leaves_nothing(tmp_path: Path):
    runs = tmp_path / "runs"
    (runs / "c-1-tr-0a1b2c" / "checkpoints").mkdir(parents=True)

    codes = train(tmp_path / "log", runs / "c-1-tr-0a1b2c", "dataset=/nowhere", num_ranks=1)

    assert codes == [1]
    [line] = [read_line(text) for text in (tmp_path / "log.0").read_text().splitlines()]
    assert isinstance(line, FailedLine)
    assert "/nowhere" in line.reason
    assert list(runs.iterdir()) == []


@pytest.mark.parametrize(("own", "other"), [("try", "data"), ("c-1-tr-0a1b2c", "my-data")])
def test_what_is_not_of_a_check_stays_whatever_its_age(tmp_path: Path, own: str, other: str):
    directory = tmp_path / other
    directory.mkdir()
    os.utime(directory, (0, 0))

    smoke.Leftovers(tmp_path / own).delete_earlier()

    assert directory.exists()


@pytest.mark.parametrize("ending", ["told", "orphaned"])
def test_process_that_is_ended_inside_native_code_deletes_what_it_wrote(
    tmp_path: Path, ending: str
):
    directory = tmp_path / "c-1-tr-0a1b2c"
    directory.mkdir()
    worker = (
        "import os, sys, pathlib, threading; from training.smoke import Leftovers; "
        "Leftovers(pathlib.Path(sys.argv[1])).delete_at_sigterm(); "
        "print(os.getpid(), flush=True); lock = threading.Lock(); lock.acquire(); lock.acquire()"
    )
    command = [sys.executable, "-c", worker, str(directory)]
    agent = f"import subprocess; subprocess.run({command!r})"
    with subprocess.Popen(
        [sys.executable, "-c", agent], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())

        os.kill(pid if ending == "told" else process.pid, signal.SIGTERM)

        process.stdout.read()  # until both are gone
    assert not directory.exists()

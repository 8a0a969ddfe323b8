"""The watchdog: what counts as standing still, by a clock of the test's own, and one real end."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from checkpoint_ranks import lone_rank
from forked_ranks import results, run_ranks, start_ranks
from trainer_runs import TORCHRUN, Workspace, parse_lines

from stationmaster.domain.errors import PermanentError
from tests.support.patience import PATIENCE_S
from training.__main__ import main
from training.agreement import check_same_data
from training.elastic import exit_now, restarts_left
from training.flight_recorder import write_record
from training.parallel import Ranks, is_lost_peer
from training.watchdog import EXIT_STALLED, Stall, Watchdog, WatchdogLimits

LIMITS = WatchdogLimits(factor=10, floor_s=60, slow_s=600)


class Watched:
    """A watchdog with a clock that moves only when the test moves it."""

    def __init__(self, limits: WatchdogLimits = LIMITS) -> None:
        self.now = 1000.0
        self.dog = Watchdog(limits, on_stall=lambda stall: None, clock=lambda: self.now)

    def late_after(self, limit_s: float) -> Stall:
        """Nothing is said until a limit; what is said a second later."""
        self.now += limit_s
        assert self.dog.check() is None
        self.now += 1
        late = self.dog.check()
        assert late is not None
        return late

    def take_steps(self, number: int, seconds: float) -> None:
        for step in range(1, number + 1):
            self.now += seconds
            self.dog.step_done(step)


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_watchdog_first_step_may_take_its_own_limit(watched: Watched) -> None:
    stall = Stall(waited_s=601, limit_s=600, last_step=None, doing="a step")

    assert watched.late_after(600) == stall


@pytest.mark.parametrize(
    ("steps", "limit_s"),
    [
        (((9, 0.2),), 60),  # the floor
        # The first one compiled for minutes and one was slow; the median does not see either.
        (((1, 500), (2, 20), (1, 190)), 200),
        (((200, 20), (60, 7)), 70),  # the latest steps count
    ],
)
def test_watchdog_steps_are_allowed_a_multiple_of_their_median(
    watched: Watched, steps: tuple[tuple[int, float], ...], limit_s: float
) -> None:
    for number, seconds in steps:
        watched.take_steps(number, seconds)

    late = watched.late_after(limit_s)

    assert (late.limit_s, late.last_step) == (pytest.approx(limit_s), steps[-1][0])


def test_watchdog_pause_has_the_generous_limit_and_is_not_part_of_the_step(
    watched: Watched,
) -> None:
    watched.take_steps(3, 1)
    watched.now += 50
    with suppress(OSError), watched.dog.paused("a checkpoint"):
        late = watched.late_after(600)
        raise OSError("disk full")
    too_long_in_all = watched.late_after(10)

    assert late == Stall(waited_s=601, limit_s=600, last_step=3, doing="a checkpoint")
    assert too_long_in_all == Stall(waited_s=61, limit_s=60, last_step=3, doing="a step")


def test_watchdog_sign_of_life_starts_the_clock_again_and_leaves_the_median(
    watched: Watched,
) -> None:
    watched.take_steps(5, 20)
    for _ in range(60):
        watched.now += 0.5
        watched.dog.step_done()
    late = watched.late_after(200)

    assert (late.limit_s, late.last_step) == (pytest.approx(200), 5)


def test_watchdog_factor_0_never_watches() -> None:
    watchdog = Watched(WatchdogLimits(factor=0)).dog
    watchdog.start()

    assert watchdog._thread is None


@pytest.mark.parametrize(("count", "left"), [(None, 0), ("1", 2), ("3", 0)])
def test_restarts_left_counts_the_agents_own(count: str | None, left: int) -> None:
    environ = {"TORCHELASTIC_MAX_RESTARTS": "3", "TORCHELASTIC_RESTART_COUNT": count or ""}

    assert restarts_left(environ if count else {}) == left


def run(program: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *words],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def test_watchdog_hung_process_shows_its_stacks_says_why_and_ends(tmp_path: Path) -> None:
    program = """
import sys, threading
from pathlib import Path
import training.watchdog
from training.progress import ProgressWriter
from training.watchdog import Watchdog, WatchdogLimits, report_and_exit

def record(step):
    Path(sys.argv[1]).write_text(str(step))
    threading.Event().wait(60)  # a record that hangs as well

training.watchdog._REPORT_LIMIT_S = 1
end = report_and_exit(ProgressWriter(run_id="r", rank=0), rank=0, restarting=True, record=record)
watchdog = Watchdog(WatchdogLimits(factor=2, floor_s=0.2, slow_s=30), on_stall=end)
watchdog.start()
for step in range(1, 4):
    watchdog.step_done(step)

def wait_for_a_lost_peer():
    threading.Event().wait(60)

wait_for_a_lost_peer()
"""
    record = tmp_path / "record"
    finished = run(program, str(record))

    (line,) = [json.loads(text) for text in finished.stdout.splitlines()]
    assert finished.returncode == EXIT_STALLED
    assert "in wait_for_a_lost_peer" in finished.stderr
    assert (line["kind"], line["error"], line["step"]) == ("failed", "Stalled", 3)
    assert line["restarting"] is True
    assert record.read_text() == "3"
    assert line["reason"].startswith("rank 0 stood still in a step for ")


def test_watchdog_interpreter_lock_held_ends_the_process_too() -> None:
    # PyDLL calls keep the interpreter's lock, as a hung library call may.
    finished = run("""
import ctypes
from training.watchdog import Watchdog, WatchdogLimits

def hold_the_lock():
    ctypes.PyDLL(None).sleep(60)

watchdog = Watchdog(WatchdogLimits(floor_s=0.2, slow_s=1), on_stall=lambda stall: None)
watchdog.start()
watchdog._ended.wait(0.7)
hold_the_lock()
""")

    assert finished.returncode == 1
    assert "in hold_the_lock" in finished.stderr


def lose_the_peer(ranks: Ranks) -> tuple[bool, str]:
    dist.barrier()
    if ranks.rank == 1:
        os._exit(9)
    try:
        for _ in range(1000):
            dist.all_reduce(torch.ones(1000))
    except RuntimeError as error:
        return is_lost_peer(error), str(error)
    return False, "no error"


def test_error_of_a_peer_that_died_is_one() -> None:
    survivor, _ = run_ranks(lose_the_peer, world_size=2)

    assert survivor.result is not None
    is_lost, text = survivor.result
    assert is_lost, text


@pytest.mark.parametrize(
    ("error", "is_lost"),
    [
        (RuntimeError("[gloo/tcp/pair.cc:547] Connection closed by peer [10.0.0.2]:1234"), True),
        (RuntimeError("[gloo/tcp/pair.cc:547] Read error [10.0.0.2]:1: Connection reset"), True),
        (RuntimeError("Application timeout caused pair closure"), True),
        (RuntimeError("Timed out waiting 600000ms for recv operation to complete"), True),
        (dist.DistBackendError("NCCL error: ncclRemoteError: A call failed"), True),
        (dist.DistBackendError("NCCL communicator was aborted on rank 3."), True),
        (dist.DistNetworkError("Failed to recv, got 0 bytes. Connection was likely closed"), True),
        (dist.DistStoreError("wait timeout after 300000ms, keys: /default_pg/0//cpu//0"), True),
        (RuntimeError("[enforce fail at gloo/types.h] op.preamble.length <= op.nbytes"), False),
        (RuntimeError("Tensors must be CUDA and dense for NCCL"), False),
        (torch.OutOfMemoryError("CUDA out of memory, in use by NCCL: 2 GiB"), False),
        (dist.DistBackendError("ncclInvalidUsage: Duplicate GPU detected: rank 0 and 1"), False),
        (dist.DistNetworkError("The server socket has failed to listen on any address"), False),
    ],
)
def test_error_of_a_lost_peer_is_told_from_others(error: RuntimeError, is_lost: bool) -> None:
    assert is_lost_peer(error) is is_lost


def compare_data(ranks: Ranks) -> str:
    with pytest.raises(PermanentError) as caught:
        check_same_data(f"sha256-of-{ranks.rank}", ranks)
    return str(caught.value)


def test_nodes_that_prepared_different_data_all_refuse_to_train() -> None:
    for rank, sentence in enumerate(results(run_ranks(compare_data, world_size=2))):
        assert f"different data (rank {rank} has sha256-of-{rank})" in sentence


def join_without_the_peer(_rank: int, arguments: list[str], environ: dict[str, str]) -> None:
    os.environ["WORLD_SIZE"] = "2"
    exit_now(main(arguments, {**environ, **os.environ}))


def test_rank_that_hangs_while_it_joins_the_others_ends_itself(workspace: Workspace) -> None:
    arguments = workspace.arguments("steps=1", "--watchdog-slow", "1", "--watchdog-floor", "1")

    (end,) = start_ranks(join_without_the_peer, arguments, workspace.environ(), world_size=1)

    assert end.exit_code == EXIT_STALLED
    failed = parse_lines((workspace.output_dir / "metrics.jsonl").read_text())[-1]
    assert "rank 0 stood still in joining the other ranks for" in failed["reason"]


def test_record_of_collectives_is_kept_with_the_run(tmp_path: Path) -> None:
    with lone_rank():
        dist.all_reduce(torch.ones(3))
        path = write_record(tmp_path / "out", 7, rank=2)

    assert path == tmp_path / "out/flight-recorder/step-00000007/nccl_trace_rank_2"
    (tmp_path / "file").write_text("in the way")
    assert write_record(tmp_path / "file", None, rank=0) is None
    recorded = pickle.loads(path.read_bytes())
    assert "gloo:all_reduce" in {entry["profiling_name"] for entry in recorded["entries"]}


def test_elastic_agent_does_not_try_again_what_cannot_succeed(workspace: Workspace) -> None:
    finished = subprocess.run(
        [
            *TORCHRUN,
            *("--standalone", "--nproc-per-node", "2", "--max-restarts", "3"),
            *("--local-addr", "127.0.0.1"),
            *("-m", "training", *workspace.arguments("stepz=3")),
        ],
        env=workspace.environ(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )

    assert finished.returncode == 1
    # By the first worker, and by the second if it came so far before the agent ended it.
    assert 1 <= finished.stderr.count('has no key "stepz"') <= 2
    (failed,) = parse_lines(finished.stdout)
    assert (failed["kind"], failed.get("restarting")) == ("failed", None)


def test_elastic_end_agent_spares_a_parent_that_is_not_torchrun() -> None:
    # This process would end: it is not torchrun, whatever the environment says.
    child = "from training.elastic import end_agent; print(end_agent({'TORCHELASTIC_RUN_ID': 'r'}))"

    assert subprocess.check_output([sys.executable, "-c", child], text=True) == "False\n"

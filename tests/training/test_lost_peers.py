"""Workers and their peers and agents: one that is lost, that dies, or that is about to stop one."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from checkpoint_ranks import lone_rank
from forked_ranks import results, run_ranks, start_ranks
from trainer_runs import TORCHRUN, Workspace, parse_lines

from stationmaster.domain.errors import PermanentError
from training.__main__ import main
from training.agreement import check_same_data
from training.elastic import exit_now
from training.flight_recorder import write_record
from training.parallel import Ranks, is_lost_peer
from training.watchdog import EXIT_STALLED


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
        timeout=1800,
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

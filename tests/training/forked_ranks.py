"""Ranks of one gloo group as processes, for this folder's tests.

They are forked from one process that has loaded torch and transformers, before it has any thread:
a rank costs tenths of a second, and not the seconds of its imports.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from trainer_runs import Lines, Workspace, parse_lines

from bench.gang import free_port
from tests.support.patience import PATIENCE_S
from training.__main__ import main
from training.config import Launch
from training.elastic import exit_now
from training.parallel import joined_ranks

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "training.__main__",
        "training.trainer",
        "training.models.language",
        "training.models.mixtral",
        "transformers.models.llama.modeling_llama",
        "torch.distributed.fsdp",
        # Loaded late by what is above, in every rank.
        "torch._dynamo",
        "fsspec",
    ]
)


@dataclass
class RankEnd:
    """How a rank's process ended."""

    exit_code: int
    """Negative: the signal that killed it."""
    result: Any
    """What the function returned; None if it did not get there."""


def start_ranks(function: Callable[..., Any], *arguments: Any, world_size: int) -> list[RankEnd]:
    """Call `function(rank, *arguments)` where the environment is as torchrun makes it.

    One that is killed, or that ends badly, is no error here: it may be what a test is about.
    """
    port = free_port()
    processes, ends = [], []
    for rank in range(world_size):
        receiving, sending = CONTEXT.Pipe(duplex=False)
        call = (sending, rank, world_size, port, function, arguments)
        process = CONTEXT.Process(target=_be_rank, args=call)
        process.start()
        sending.close()
        processes.append((process, receiving))
    for process, receiving in processes:
        try:
            # Plain pickle: torch's own would send tensors through memory of a process that ends.
            result = pickle.loads(receiving.recv_bytes()) if receiving.poll(PATIENCE_S) else None
        except EOFError:
            result = None
        process.join(PATIENCE_S)
        if process.exitcode is None:
            process.kill()
            process.join()
        assert process.exitcode is not None
        ends.append(RankEnd(process.exitcode, result))
    return ends


def results(ends: list[RankEnd]) -> list[Any]:
    """What all ranks returned, having ended well."""
    assert [end.exit_code for end in ends] == [0] * len(ends)
    return [end.result for end in ends]


def run_ranks(function: Callable[..., Any], *arguments: Any, world_size: int) -> list[RankEnd]:
    """Call `function(ranks, *arguments)` on new ranks that have joined."""
    return start_ranks(_join, function, arguments, world_size=world_size)


def _join(rank: int, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    world_size = int(os.environ["WORLD_SIZE"])
    launch = Launch(rank=rank, local_rank=rank, world_size=world_size, elastic=True)
    with joined_ranks(launch) as ranks:
        return function(ranks, *arguments)


def train_on_ranks(workspace: Workspace, *overrides: str, num_ranks: int) -> Lines:
    """Run the trainer on ranks of one node and return its progress lines.

    Fails with what the ranks wrote to standard error.
    """
    arguments = workspace.arguments(*overrides)
    with TemporaryDirectory() as directory:
        out, err = Path(directory, "out"), Path(directory, "err")
        call = (arguments, workspace.environ(), out, err)
        ends = start_ranks(_train, *call, world_size=num_ranks)
        assert not any(end.exit_code for end in ends), err.read_text()
        return parse_lines(out.read_text())


def _train(_rank: int, arguments: list[str], environ: dict[str, str], out: Path, err: Path) -> None:
    for path, descriptor in ((out, 1), (err, 2)):
        with path.open("a") as file:
            os.dup2(file.fileno(), descriptor)
    # As the trainer ends where it is a program: native threads of libraries may hang a shutdown.
    exit_now(main(arguments, {**environ, **os.environ}))


def _be_rank(
    sending: Connection,
    rank: int,
    world_size: int,
    port: int,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    gc.freeze()  # the libraries: each run begins with a collection, which would walk them
    torch.set_num_threads(1)
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(world_size),
        LOCAL_WORLD_SIZE=str(world_size),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        TORCHELASTIC_RUN_ID="tests",
    )
    sending.send_bytes(pickle.dumps(function(rank, *arguments)))

"""Ranks of one gloo group as processes, for this folder's tests.

They are forked from one process that has loaded torch and transformers, before it has any thread:
a rank costs tenths of a second, and not the seconds of its imports.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.multiprocessing
from torch.multiprocessing import ProcessExitedException
from trainer_runs import Lines, Workspace, free_port, parse_lines

from training.__main__ import main
from training.elastic import exit_now

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


def start_ranks(function: Callable[..., None], *arguments: Any, world_size: int) -> None:
    """Call `function(rank, *arguments)` where the environment is as torchrun makes it.

    Raises:
        torch.multiprocessing.ProcessRaisedException: with the first rank's error.
        torch.multiprocessing.ProcessExitedException: a rank ended with another code than 0.
    """
    torch.multiprocessing.start_processes(
        _be_rank,
        args=(world_size, free_port(), function, arguments),
        nprocs=world_size,
        daemon=True,
        start_method="forkserver",
    )


def train_on_ranks(workspace: Workspace, *overrides: str, num_ranks: int) -> Lines:
    """Run the trainer on ranks of one node and return its progress lines.

    Fails with what the ranks wrote to standard error. `elastic_runs` starts them as pods do.
    """
    arguments = workspace.arguments(*overrides)
    with TemporaryDirectory() as directory:
        out, err = Path(directory, "out"), Path(directory, "err")
        try:
            start_ranks(_train, arguments, workspace.environ(), out, err, world_size=num_ranks)
        except ProcessExitedException as error:
            raise AssertionError(err.read_text()) from error
        return parse_lines(out.read_text())


def _train(_rank: int, arguments: list[str], environ: dict[str, str], out: Path, err: Path) -> None:
    for path, descriptor in ((out, 1), (err, 2)):
        with path.open("a") as file:
            os.dup2(file.fileno(), descriptor)
    # As the trainer ends where it is a program: native threads of libraries may hang a shutdown.
    exit_now(main(arguments, {**environ, **os.environ}))


def _be_rank(
    rank: int,
    world_size: int,
    port: int,
    function: Callable[..., None],
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
    function(rank, *arguments)

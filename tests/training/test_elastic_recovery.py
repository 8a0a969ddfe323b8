"""Runs that lose workers, agents and nodes, under both rendezvous backends, in real processes.

Each scenario is one run that suffers many things in a row, because every start of a worker takes
seconds. The model is the smallest preset; the losses must be those of a run that nothing happened
to.
"""

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from trainer_runs import Workspace, losses, of_kind, train_here

from bench.gang import (
    Gang,
    Lines,
    Pod,
    etcd_server,
    free_port,
    newest_start,
    num_starts,
    start_agent,
)
from stationmaster.domain.run.attempts import first_assignment
from stationmaster.rendering import job_spec
from stationmaster.rendering.rendezvous import rendezvous_conf
from stationmaster.settings import HubAccess
from tests.chaos.forked_programs import add_programs
from tests.support.factories import make_request
from tests.support.patience import PATIENCE_S
from training.watchdog import EXIT_STALLED

BATCH = 8
# Large enough a step that a run does not end while a process is being looked up and killed. The
# rate is constant so that the number of steps does not decide the losses, and small so that what
# two ranks round otherwise than one does not grow.
KEYS = (
    *("preset=smoke", "sequence_length=128", f"global_batch_size={BATCH}", "micro_batch_size=8"),
    *("schedule=constant", "learning_rate=3e-4", "min_learning_rate=0", "warmup_steps=5"),
    *("eval_every=0", "log_every=1"),
)
STEPS = 60


def gang_of(
    workspace: Workspace, *overrides: str, directory: Path, torchrun: str = "", **how: Any
) -> Gang:
    """Agents for the trainer, none started yet; with the programs that lie in their directory."""
    programs = f"{directory}{os.pathsep}{os.environ['PATH']}"
    return Gang(
        ["-m", "training", *workspace.arguments(*KEYS, *overrides)],
        environ=workspace.environ(PATH=programs, HF_ENDPOINT=HubAccess.from_environment().url),
        directory=directory,
        missed_beats=10,
        **({"torchrun": [torchrun]} if torchrun else {}),
        **how,
    )


@pytest.fixture(scope="module")
def undisturbed(
    tmp_path_factory: pytest.TempPathFactory, text_dir: Path, cache_dir: Path
) -> dict[int, float]:
    """Loss by step of the same run in one process that nothing happens to."""
    workspace = Workspace(tmp_path_factory.mktemp("undisturbed"), cache_dir, text_dir)
    return losses(train_here(workspace, *KEYS, f"steps={STEPS}", "checkpoint_every=1000"))


@contextmanager
def rendezvous(backend: str, directory: Path) -> Iterator[str | None]:
    """Whatever server the backend needs beside the agents; gives its endpoint."""
    if backend == "c10d":
        yield None
    elif shutil.which("etcd") is None:
        pytest.skip("there is no etcd on this machine (Debian: apt-get install etcd-server)")
    else:
        pytest.importorskip("etcd", reason="python-etcd is not installed")
        with etcd_server(directory) as endpoint:
            yield endpoint


def freeze_worker(gang: Gang, pod: Pod) -> None:
    """Let a worker stand still, alive, its connections open, until its peer has given up on it.

    Left frozen it would be killed by its agent, which waits 30 s for it to end.
    """
    worker = pod.worker()
    os.kill(worker, signal.SIGSTOP)
    gang.wait_for(lambda lines: lines[-1]["kind"] == "failed", what="the peer's end")
    os.kill(worker, signal.SIGCONT)


@pytest.mark.parametrize("backend", ["c10d", "etcd-v2"])
def test_elastic_deaths_in_a_row_lose_nothing_but_time(
    backend: str, workspace: Workspace, tmp_path: Path, undisturbed: dict[int, float]
) -> None:
    freezes = backend == "c10d"
    # Under c10d the worker of one pod freezes, and that of the other is killed.
    num_deaths = 1 + freezes
    with (
        rendezvous(backend, tmp_path) as endpoint,
        gang_of(
            workspace,
            *(f"steps={STEPS}", "checkpoint_every=5", "--watchdog-floor=8"),
            directory=tmp_path,
            nnodes="2:2",
            backend=backend,
            endpoint=endpoint,
            max_restarts=num_deaths + 2,
        ) as gang,
    ):
        gang.add(2)
        for death in range(num_deaths):
            gang.wait_for_save(start=death + 1)
            pod = gang.pods[(death + 1) % 2]
            if freezes and death == 0:
                freeze_worker(gang, pod)
            else:
                pod.kill_worker()
        gang.wait_for_save(start=num_deaths + 1)
        agents_ended = [list(pod.exit_codes) for pod in gang.pods]
        # Under c10d this one hosts the rendezvous, so that the other agent ends as well.
        gang.pods[0].kill_agent()
        seen = gang.wait_for_end()

    errors = "".join(pod.errors() for pod in gang.pods)
    failed = of_kind(seen, "failed")
    stacks_shown = f"exitcode: {EXIT_STALLED}" in errors and "in _train_step" in errors
    assert agents_ended == [[], []]
    assert gang.pods[0].exit_codes == [-signal.SIGKILL, 0]
    assert gang.pods[1].exit_codes == ([1, 0] if backend == "c10d" else [0])
    assert stacks_shown == freezes
    assert [(line["error"], line["restarting"]) for line in failed] == [("Stalled", True)] * freezes
    assert_resumed_from_checkpoints(seen, interval=5, at_least=num_deaths + 1)
    assert of_kind(seen, "finished")[0]["samples_seen"] == STEPS * BATCH
    assert losses(seen).keys() == undisturbed.keys()
    assert different_losses(seen, undisturbed) == []
    assert [line["seq"] for line in seen] == sorted({line["seq"] for line in seen})


def test_elastic_nodes_come_and_go_and_each_sample_is_used_once(
    workspace: Workspace, tmp_path: Path, undisturbed: dict[int, float]
) -> None:
    # Agents and workers are forked: a second instead of four. Their processes are then not each
    # other's children, so that none of them can be looked up.
    add_programs(tmp_path, trains=True)
    with gang_of(
        workspace,
        # No end that comes too early, and no checkpoint but those that a change asks for.
        *("steps=1000000", "checkpoint_every=1000000"),
        directory=tmp_path,
        nnodes="1:3",
        torchrun=str(tmp_path / "torchrun"),
    ) as gang:
        gang.add(2)
        gang.wait_for(lambda lines: is_training(lines, world_size=2), what="two nodes")
        gang.add(1)
        gang.wait_for(lambda lines: is_training(lines, world_size=3), what="three nodes")
        failed_while_growing = ["failed (exitcode" in pod.errors() for pod in gang.pods]
        gang.pods[2].delete()
        seen = gang.wait_for(
            lambda lines: 3 in sizes(lines) and is_training(lines, world_size=2),
            what="two nodes again",
        )
        agents_ended = [list(pod.exit_codes) for pod in gang.pods]

    resumed = of_kind(seen, "resumed")
    steps = [line["step"] for line in of_kind(seen, "progress")]
    # On a busy machine the first node may begin alone, and the third come too late for the start
    # that it asked for.
    grown = [size for size, _ in groupby(sizes(seen))]
    assert grown in ([2, 3, 2], [1, 2, 3, 2])
    assert failed_while_growing == [False, False, False]
    assert agents_ended == [[], [], []]
    assert steps == list(range(1, len(steps) + 1))
    assert [line["samples_seen"] for line in resumed] == [line["step"] * BATCH for line in resumed]
    assert different_losses(seen, undisturbed) == []


def test_agent_waits_for_an_absent_first_worker_as_long_as_its_conf_says(tmp_path: Path) -> None:
    request = make_request(recipe="llama2-7b", instance_type="p4d.24xlarge")
    assignment = first_assignment("run-1", request)
    rendered = rendezvous_conf(job_spec(request, assignment, run_id="run-1", image="i"))
    endpoint = f"127.0.0.1:{free_port()}"

    with ExitStack() as agents:

        def agent(name: str, *, hosts: bool, **changes: str) -> subprocess.Popen[bytes]:
            conf = rendered | {"is_host": str(hosts).lower()} | changes
            environ = {
                **os.environ,
                "PET_NNODES": "2",
                "PET_NPROC_PER_NODE": "1",
                "PET_RDZV_ID": "run-1",
                "PET_RDZV_BACKEND": "c10d",
                "PET_RDZV_ENDPOINT": endpoint,
                "PET_RDZV_CONF": ",".join(f"{key}={value}" for key, value in conf.items()),
                "PET_LOCAL_ADDR": "127.0.0.1",
            }
            command = [sys.executable, "-m", "torch.distributed.run", "--no-python", "true"]
            process = start_agent(command, environ, tmp_path / name)
            agents.callback(process.kill)
            return process

        patient = agent("patient", hosts=False)
        given_up = agent("impatient", hosts=False, read_timeout="1").wait(timeout=PATIENCE_S)
        still_waiting = patient.poll()
        first = agent("first", hosts=True)
        ended = [process.wait(timeout=PATIENCE_S) for process in (first, patient)]

    assert (given_up, still_waiting, ended) == (1, None, [0, 0])
    assert "RendezvousConnectionError" in (tmp_path / "impatient.err").read_text()


def sizes(lines: Lines) -> list[int]:
    """How many ranks each start had."""
    return [line["world_size"] for line in of_kind(lines, "started")]


def is_training(lines: Lines, *, world_size: int) -> bool:
    """Tell whether the newest start has so many ranks and has taken a step."""
    newest = newest_start(lines)
    return bool(newest) and newest[0]["world_size"] == world_size and bool(losses(newest))


def assert_resumed_from_checkpoints(lines: Lines, *, interval: int, at_least: int) -> None:
    """Every start but the first went on from the newest checkpoint that was complete."""
    saved = 0
    resumes = 0
    for line in lines:
        if line["kind"] == "checkpoint_saved":
            saved = max(saved, line["step"])
        elif line["kind"] == "resumed":
            resumes += 1
            # One may have been completed in the moment before the line about it was written.
            assert line["step"] in {saved, saved + interval}
            assert line["samples_seen"] == line["step"] * BATCH
    assert resumes == num_starts(lines) - 1 >= at_least


def different_losses(lines: Lines, expected: dict[int, float]) -> list[tuple[int, float, float]]:
    """Steps of any start whose loss is not what it is when nothing happens: step, loss, expected.

    Sums over two ranks are rounded otherwise than over one: 1e-5 nats at most over these steps.
    """
    reported = [(line["step"], line["loss_nats"]) for line in of_kind(lines, "progress")]
    return [
        (step, loss, expected[step])
        for step, loss in reported
        if step in expected and not math.isclose(loss, expected[step], abs_tol=1e-5)
    ]

"""Train a few steps as a run does, and report on every rank what came of it.

    torchrun --nnodes 2 --nproc-per-node 8 ... -m training.smoke tiny-llama preset=smoke steps=6 \
        --output-dir DIR

Takes what `python -m training` takes and is made of the same parts. Half way it stops with a
checkpoint, as a run that is stopped, and starts anew from what is on the file system. Each rank
prints one JSON line with its losses, so that the ranks are compared outside of the network that may
have changed what they exchanged; rank 0 also prints the usual progress lines. DIR is the program's
own, and is deleted at the end, also after a failure or SIGTERM. Where DIR is named as jobs name
theirs, CLUSTER-tr-LETTERS, others of such names beside it are what killed processes have left:
deleted if they are of the same cluster, or some hours old.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stationmaster.domain.errors import PermanentError, StationmasterError
from stationmaster.domain.progress_lines import (
    CheckpointSavedLine,
    FailedLine,
    FinishedLine,
    Line,
    ProgressLine,
    ResumedLine,
    SmokeLine,
)
from training.build import Prepared, build_trainer, prepare_data
from training.config import TrainerConfig, parse_config
from training.elastic import EXIT_PEER_LOST, EXIT_STOPPED, exit_now, exit_with_parent
from training.progress import ProgressWriter
from training.watchdog import Stall, Watchdog, report_and_exit

if TYPE_CHECKING:
    from training.parallel import Ranks

KIND: Final = "smoke"
EXIT_FAILED: Final = 1
# Directories of the job of a check; whatever else lies beside one belongs to somebody else.
_NAME: Final = re.compile(r"(?P<cluster>.+-tr-)[a-z0-9]+")
# No such training lasts so long: what is older was left by one that was killed.
_STALE_S: Final = 6 * 3600

logger = logging.getLogger("training.smoke")


class Seen(ProgressWriter):
    """Writes progress lines as ever, and keeps on every rank what is judged."""

    def __init__(self, *, run_id: str, rank: int, stop: threading.Event, stop_after: int) -> None:
        """`stop` is set once step `stop_after` is reported."""
        super().__init__(run_id=run_id, rank=rank)
        self._stop = stop
        self._stop_after = stop_after
        self.losses: dict[int, float] = {}
        """The losses by step, in nats."""
        self.checkpoint_bytes = 0
        """The bytes of the newest checkpoint."""
        self.resumed_from: int | None = None
        self.is_finished = False

    def emit(self, line: Line) -> None:
        """Take and write one line."""
        match line:
            case ProgressLine():
                assert line.loss_nats is not None  # our own trainer always tells it
                self.losses[line.step] = line.loss_nats
                if line.step == self._stop_after:
                    self._stop.set()
            case CheckpointSavedLine():
                self.checkpoint_bytes = line.size_bytes or 0
            case ResumedLine():
                self.resumed_from = line.step
            case FinishedLine():
                self.is_finished = True
            case _:
                pass
        super().emit(line)


class Leftovers:
    """What the program writes, in a directory of its own on the shared file system."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def delete(self) -> None:
        """Delete it; other ranks may do so at the same time, and may be writing still."""
        for _ in range(2):
            shutil.rmtree(self._directory, ignore_errors=True)

    def delete_earlier(self) -> None:
        """Delete what processes that were killed have left: of the same name, and old ones."""
        own = _NAME.fullmatch(self._directory.name)
        if own is None:
            return  # named by hand, somewhere
        try:
            beside = list(self._directory.parent.iterdir())
        except OSError:
            return  # it is the first
        for path in beside:
            other = _NAME.fullmatch(path.name)
            if path == self._directory or other is None:
                continue
            try:
                is_stale = time.time() - path.stat().st_mtime > _STALE_S
            except OSError:
                continue  # another rank was faster
            if is_stale or other["cluster"] == own["cluster"]:
                shutil.rmtree(path, ignore_errors=True)

    def delete_at_sigterm(self) -> None:
        """Delete it and end when this process is told to, or when its agent is gone.

        Threads wait for that: the main one may be inside a collective that never ends. To be called
        before any other thread is there.
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

        def wait_for_signal() -> None:
            signal.sigwait({signal.SIGTERM})
            self.delete()
            exit_now(EXIT_STOPPED)

        threading.Thread(target=wait_for_signal, name="wait-for-signal", daemon=True).start()
        exit_with_parent(self.delete)


def main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Train and delete everything; return the exit code."""
    rank = int(environ.get("RANK", "0"))
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO if rank == 0 else logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    try:
        config = parse_config(argv, environ)
    except StationmasterError as error:
        return _failed(error, rank)
    leftovers = Leftovers(config.output_dir)
    leftovers.delete_at_sigterm()
    try:
        if rank == 0:
            leftovers.delete_earlier()
        return _train(config, leftovers, node=environ.get("NODE_NAME") or socket.gethostname())
    except StationmasterError as error:
        return _failed(error, rank)
    finally:
        leftovers.delete()


def _failed(error: StationmasterError, rank: int) -> int:
    sys.stderr.write(f"{error}\n")
    line = FailedLine(error=type(error).__name__, reason=str(error))
    ProgressWriter(run_id=KIND, rank=rank).emit(line)
    return EXIT_FAILED


def _train(config: TrainerConfig, leftovers: Leftovers, *, node: str) -> int:
    prepared = prepare_data(config)
    # Imported only now, as in `training.__main__`: it loads torch.
    from training.flight_recorder import record_directory
    from training.parallel import is_lost_peer, joined_ranks, sum_over_ranks

    record_directory(config.output_dir).mkdir(parents=True, exist_ok=True)
    stop = threading.Event()
    steps = config.recipe.training.steps
    seen = Seen(
        run_id=config.run_id, rank=config.launch.rank, stop=stop, stop_after=max(1, steps // 2 - 1)
    )
    try:
        with joined_ranks(config.launch) as ranks:
            for _ in range(2):
                _start(config, prepared, ranks, seen=seen, stop=stop, leftovers=leftovers)
                stop.clear()
            sys.stdout.write(_line(seen, ranks, node=node, steps=steps).text() + "\n")
            sys.stdout.flush()
            sum_over_ranks([1.0], ranks)  # nobody deletes before all have read
    except RuntimeError as error:
        if not is_lost_peer(error):
            raise
        logger.error("another worker of the job is gone: %s", error)
        leftovers.delete()
        exit_now(EXIT_PEER_LOST)
    return 0


def _start(
    config: TrainerConfig,
    prepared: Prepared,
    ranks: Ranks,
    *,
    seen: Seen,
    stop: threading.Event,
    leftovers: Leftovers,
) -> None:
    """Start the trainer once: from the newest checkpoint there is, to its end or a stop."""
    from training.flight_recorder import write_record

    record = partial(write_record, config.output_dir, rank=ranks.rank)
    report = report_and_exit(seen, rank=ranks.rank, restarting=False, record=record)

    def end(stall: Stall) -> None:
        leftovers.delete()
        report(stall)

    watchdog = Watchdog(config.watchdog, on_stall=end)
    watchdog.start()
    try:
        build_trainer(
            config, prepared=prepared, ranks=ranks, progress=seen, stop=stop, watchdog=watchdog
        ).train()
    finally:
        watchdog.stop()


def _line(seen: Seen, ranks: Ranks, *, node: str, steps: int) -> SmokeLine:
    """Report what came of it.

    Raises:
        PermanentError: training did not go on from the checkpoint, or not to its end.
    """
    if seen.resumed_from is None:
        raise PermanentError("training did not find the checkpoint that it had written")
    if not seen.is_finished or sorted(seen.losses) != list(range(1, steps + 1)):
        raise PermanentError(
            f"steps {sorted(seen.losses)} were reported, expected 1 to {steps}, each once"
        )
    return SmokeLine(
        rank=ranks.rank,
        world_size=ranks.world_size,
        node=node,
        device=ranks.device.type,
        losses_nats=tuple(seen.losses[step] for step in sorted(seen.losses)),
        resumed_from_step=seen.resumed_from,
        checkpoint_bytes=seen.checkpoint_bytes,
    )


if __name__ == "__main__":
    # Everything is deleted and all ranks are left: what libraries do at exit may only hang.
    exit_now(main(sys.argv[1:], os.environ))

"""Start the trainer.

    torchrun --nnodes 2 --nproc-per-node 1 ... -m training tiny-llama steps=60 --output-dir DIR
    python -m training tiny-llama steps=60 --output-dir DIR          (one process)
    python -m training --help                                        (every key, exit codes)

On several nodes the output directory is shared by all of them. Every pod carries, besides what
the training operator sets:

    TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1  or a restart may dial a port of the dead generation
    OMP_NUM_THREADS                       cores of the pod / its workers
    STATIONMASTER_RUN_ID                  the run named in the progress lines
    PET_RDZV_CONF=join_timeout=900,read_timeout=900,keep_alive_interval=3,keep_alive_max_attempt=3
                                          agents wait 15 minutes for each other and for the first
                                          worker; a dead agent is noticed after 9 s, not 15 s

torchrun starts failed workers again, up to its --max-restarts, except where that would not help (an
exception, a wrong key, damaged data, a full disk): then worker and agent end at once. An agent that
dies, or that loses the agent on which the rendezvous lives, exits, and its pod's restart policy
starts it again.

Wiring and exit codes only. Standard output carries progress lines and nothing else; everything for
people goes to standard error.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

from stationmaster.domain.errors import BadCommand, BadParameter, StationmasterError
from stationmaster.domain.exit_codes import EXIT_MISUNDERSTOOD
from stationmaster.domain.full_disk import full_disk
from stationmaster.domain.progress_lines import FailedLine
from stationmaster.domain.results import METRICS_FILE
from stationmaster.domain.run.failure_lines import says_passing
from training.build import build_trainer, prepare_data
from training.config import TrainerConfig, parse_config
from training.elastic import (
    EXIT_PEER_LOST,
    EXIT_STOPPED,
    end_agent,
    exit_now,
    exit_with_parent,
    leave_in_time,
    restarts_left,
    stop_on_sigterm,
    wait_for_own_sigterm,
)
from training.float8 import prepare_torchao
from training.progress import MetricsFile, ProgressWriter, take_attempt
from training.sinks import open_sinks
from training.watchdog import Watchdog, report_and_exit

if TYPE_CHECKING:
    from training.parallel import Ranks

EXIT_FINISHED: Final = 0
EXIT_FAILED: Final = 1

logger = logging.getLogger("training")


def main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Train, and turn every ending into an exit code."""
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO if environ.get("RANK", "0") == "0" else logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    rank = int(environ.get("RANK", "0"))
    progress = ProgressWriter(run_id=environ.get("STATIONMASTER_RUN_ID", "local"), rank=rank)
    failure: StationmasterError | None = None
    try:
        config = parse_config(argv, environ)
        progress = _progress_writer(config)
        return _train(config, progress, restarting=restarts_left(environ) > 0)
    except StationmasterError as error:
        failure = error
    except SystemExit as error:
        if not error.code:
            raise  # --help
        failure = BadCommand("the command line is not understood; see the pod's log")
    except Exception as error:
        failure = full_disk(error)
        if failure is None:
            # What nobody expected is shown in full: the boundary of the process.
            traceback.print_exception(error)
            return _report(error, progress, environ)
    finally:
        if failure is None:
            progress.close()
    if isinstance(failure, BadCommand):  # argparse has printed it, with the usage
        _report(failure, progress, environ)
        return EXIT_MISUNDERSTOOD
    sys.stderr.write(f"{failure}\n")
    return _report(failure, progress, environ)


def _report(error: Exception, progress: ProgressWriter, environ: Mapping[str, str]) -> int:
    """Report the failure of a start.

    The same program fails again, so the agent ends too, unless the error names what passes.
    """
    is_ours = isinstance(error, StationmasterError)
    restarting = not is_ours and says_passing(str(error)) and restarts_left(environ) > 0
    line = FailedLine(error=type(error).__name__, reason=str(error)[:2000])
    progress.emit(line if is_ours else line.model_copy(update={"restarting": restarting}))
    progress.close()
    if not restarting:
        end_agent(environ)
    return EXIT_FAILED


def _train(config: TrainerConfig, progress: ProgressWriter, *, restarting: bool) -> int:
    # Read when CUDA starts. Growing segments instead of new ones: fragmentation is out of the way.
    os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    stop = stop_on_sigterm(deadline_s=config.stop_deadline_s)
    if config.launch.elastic:
        exit_with_parent()
    prepare_torchao(config.recipe.own_training)
    prepared = prepare_data(config, progress.waits_for)
    logger.info("data ready")
    progress.waits_for("libraries")
    # Imported only now: these load torch and transformers, 2 s and more, and a mistyped key or a
    # missing data set is reported before.
    with _garbage_kept():
        from training.flight_recorder import record_directory, write_record
        from training.parallel import is_lost_peer
        from training.trainer import Outcome

    # NCCL, when a collective gives up, writes there and makes no directory.
    record_directory(config.output_dir).mkdir(parents=True, exist_ok=True)
    record = partial(write_record, config.output_dir, rank=config.launch.rank)
    end = report_and_exit(progress, rank=config.launch.rank, restarting=restarting, record=record)
    watchdog = Watchdog(config.watchdog, on_stall=end)
    try:
        logger.info("libraries loaded")
        progress.waits_for("its ranks to join")
        with _joined(config, watchdog) as ranks:
            progress.waits_for("its model and first weights")
            with _garbage_kept():
                trainer = build_trainer(
                    config,
                    prepared=prepared,
                    ranks=ranks,
                    progress=progress,
                    stop=stop,
                    watchdog=watchdog,
                )
            outcome = trainer.train()
            watchdog.stop()
            code = EXIT_FINISHED if outcome is Outcome.FINISHED else EXIT_STOPPED
            overdue = leave_in_time(code)
        overdue.cancel()
    except RuntimeError as error:
        if not is_lost_peer(error):
            raise
        logger.error("another worker of the job is gone, start again to continue: %s", error)
        exit_now(EXIT_PEER_LOST)
    finally:
        watchdog.stop()
    if code == EXIT_STOPPED and config.launch.elastic:
        wait_for_own_sigterm(stop)
    return code


@contextmanager
def _joined(config: TrainerConfig, watchdog: Watchdog) -> Iterator[Ranks]:
    """Join the ranks, already under the watchdog's eyes: NCCL connects there."""
    from training.parallel import joined_ranks

    watchdog.start()
    with ExitStack() as stack:
        with watchdog.paused("joining the other ranks"):
            ranks = stack.enter_context(joined_ranks(config.launch))
        logger.info("joined: rank %d of %d on %s", ranks.rank, ranks.world_size, ranks.device)
        yield ranks


@contextmanager
def _garbage_kept() -> Iterator[None]:
    """Keep garbage while libraries load: the collector would walk it, a third of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _progress_writer(config: TrainerConfig) -> ProgressWriter:
    rank = config.launch.rank
    sinks = open_sinks(config.tracker, output_dir=config.output_dir, run_id=config.run_id)
    try:
        attempt = take_attempt(config.output_dir, run_id=config.run_id, rank=rank)
    except OSError as exc:
        raise BadParameter(
            f"--output-dir {config.output_dir} cannot be written: {exc.strerror}; "
            "give a directory that every node of the job can write"
        ) from exc
    return ProgressWriter(
        run_id=config.run_id,
        rank=rank,
        attempt=attempt,
        sinks=sinks,
        metrics=MetricsFile(config.output_dir / METRICS_FILE),
    )


if __name__ == "__main__":
    # Not sys.exit: all is written, and native threads of libraries may hang a shutdown.
    exit_now(main(sys.argv[1:], os.environ))

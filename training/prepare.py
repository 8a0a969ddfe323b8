"""Make of copied data what the trainer reads, on as many nodes at once as there are.

    python -m training.prepare images ID --classes 1000 --data-directory /fsx/data
    python -m training.prepare tokens ID --tokenizer bpe --vocab-size 512 --data-directory /fsx/data

    python -m training.prepare tokens --dataset c4 --tokenizer T --vocab-size N --data-directory D
    python -m training.prepare megatron ID --tokenizer T --vocab-size N --data-directory D

ID names data that the stager has copied below the data directory. Any number of these programs,
on any nodes that see the directory, divide the work; the result does not depend on their number.
Killed at any time and started again, it goes on with what is not done. Standard output carries
JSON lines of the kinds `staging` and, at the end, `staged`; where it fails, the last line is one
sentence.

Exit codes: 0 done, 1 not done but worth another try, 2 the command line is not understood, 3 the
data is not what the recipe needs.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from stationmaster.domain.datasets import NO_VALIDATION, Preparation
from stationmaster.domain.errors import StationmasterError, UserError
from stationmaster.domain.exit_codes import EXIT_NOT_DONE, EXIT_REFUSED
from stationmaster.domain.full_disk import full_disk
from stationmaster.domain.staged_data import StagedLine, StagingLine
from training.config import positive
from training.data.indexed_work import IndexedWork
from training.data.preparing import ImageWork, Work, prepare
from training.data.targets import Settings, find_target, find_target_on_hub
from training.data.token_work import TokenWork

REPORT_EVERY_S: Final = 5.0
# More processes than this wait for the file system and not for a core.
_MOST_PROCESSES: Final = 64


def main(argv: Sequence[str]) -> int:
    """Prepare, and turn every ending into a last line and an exit code."""
    arguments = _parser().parse_args(argv)
    logging.basicConfig(
        stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(levelname)s: %(message)s"
    )
    report = _Report(arguments.run_id)
    try:
        staged = prepare(_work(arguments), processes=arguments.processes, progress=report.take)
    except UserError as error:
        return _fail(str(error), EXIT_REFUSED)
    except Exception as error:
        said = full_disk(error, directory=arguments.data_directory) or error
        if not isinstance(said, StationmasterError | OSError):
            raise
        return _fail(str(said), EXIT_NOT_DONE)
    head = {"run_id": arguments.run_id, "at": datetime.now(UTC)}
    _print(staged.model_copy(update=head))
    return 0


def _work(arguments: argparse.Namespace) -> Work:
    data, name = arguments.data_directory, arguments.id
    if arguments.what == "images":
        rest = {NO_VALIDATION: 1} if arguments.no_validation else {}
        settings: Settings = {"num_classes": arguments.classes, **rest}
        return ImageWork(find_target(data, name, preparation=Preparation.IMAGES, settings=settings))
    settings = {"tokenizer": arguments.tokenizer, "vocab_size": arguments.vocab_size}
    preparation = Preparation(arguments.what)
    if arguments.dataset is not None:
        target = find_target_on_hub(
            data,
            arguments.dataset,
            run_id=arguments.run_id or "no run",
            preparation=preparation,
            settings=settings,
        )
    else:
        target = find_target(data, name, preparation=preparation, settings=settings)
    return TokenWork(target) if preparation is Preparation.TOKENS else IndexedWork(target)


class _Report:
    """Prints a line every few seconds."""

    def __init__(self, run_id: str | None) -> None:
        self._run_id = run_id
        self._printed_at = -REPORT_EVERY_S

    def take(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._printed_at < REPORT_EVERY_S:
            return
        self._printed_at = now
        _print(
            StagingLine(
                run_id=self._run_id, at=datetime.now(UTC), staged_bytes=done, total_bytes=total
            )
        )


def _print(line: StagingLine | StagedLine) -> None:
    sys.stdout.write(line.text() + "\n")
    sys.stdout.flush()


def _fail(sentence: str, code: int) -> int:
    sys.stdout.write(" ".join(sentence.split()) + "\n")
    sys.stdout.flush()
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m training.prepare",
        description="Make of copied data what the trainer reads, resumably and on many nodes.",
    )
    what = parser.add_subparsers(dest="what", required=True)
    images = what.add_parser("images", help="archives become class folders; folders are counted")
    images.add_argument("--classes", type=positive, required=True, metavar="N")
    images.add_argument(
        "--no-validation", action="store_true", help="for a run that does not evaluate"
    )
    tokens = what.add_parser("tokens", help="text is tokenised and packed")
    megatron = what.add_parser("megatron", help="text becomes an indexed data set of Megatron")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    images.add_argument("id", metavar="ID", help="names the copied data")
    for each in (tokens, megatron):
        each.add_argument("--tokenizer", required=True, metavar="T")
        each.add_argument("--vocab-size", type=positive, required=True, metavar="N")
        source = each.add_mutually_exclusive_group(required=True)
        source.add_argument("id", nargs="?", metavar="ID", help="names the copied data")
        source.add_argument(
            "--dataset", metavar="D", help="of the hub: c4, or hub:ORG/NAME[/CONFIG]"
        )
    for each in (images, tokens, megatron):
        each.add_argument("--data-directory", type=Path, required=True, metavar="DIR")
        each.add_argument("--run-id", metavar="RUN", help="for the lines that are printed")
        each.add_argument(
            "--processes",
            type=positive,
            default=min(cores, _MOST_PROCESSES),
            metavar="N",
            help="on this node (default: %(default)s, one a core)",
        )
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

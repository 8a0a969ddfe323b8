"""Make of copied data what the trainer reads: images in class folders, text as packed tokens.

    python -m training.prepare images ID --classes 1000 --data-directory /fsx/data
    python -m training.prepare tokens ID --tokenizer bpe --vocab-size 512 --data-directory /fsx/data

    python -m training.prepare tokens --dataset c4 --tokenizer T --vocab-size N --data-directory D
    python -m training.prepare megatron ID --tokenizer T --vocab-size N --data-directory D

ID names data that the stager has copied below the data directory. Any number of these programs,
on any nodes that see the directory, divide the work, and the first that finds all of it done writes
the manifest; the result does not depend on their number.
Killed at any time and started again, it goes on with what is not done. Standard output carries
JSON lines of the kinds `staging` and, at the end, `staged`; where it fails, the last line is one
sentence.

Exit codes: 0 done, 1 not done but worth another try, 2 the command line is not understood, 3 the
data is not what the recipe needs.

This module must not import torch.
"""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Final, Protocol

from stationmaster.domain.datasets import (
    FILES,
    MANIFEST_FILE,
    NO_VALIDATION,
    Preparation,
)
from stationmaster.domain.errors import BadParameter, StationmasterError, UserError
from stationmaster.domain.exit_codes import EXIT_NOT_DONE, EXIT_REFUSED
from stationmaster.domain.full_disk import full_disk
from stationmaster.domain.staged_data import (
    DataManifest,
    StagedLine,
    StagingLine,
    read_data_manifest,
)
from training.config import positive
from training.data.imagenet import EXPECTED, IMAGENET, Size, check_size, count_folders
from training.data.imagenet_source import ImageSource, find_source
from training.data.indexed_work import IndexedWork
from training.data.shares import SHARES, Pass, Result, Share, Shares, in_processes
from training.data.targets import Settings, Target, find_target, find_target_on_hub
from training.data.token_work import TokenWork
from training.files import locked, write_whole

Progress = Callable[[int, int], None]
"""A listener to the bytes that are done, of all bytes."""

REPORT_EVERY_S: Final = 5.0
# More processes than this wait for the file system and not for a core.
_MOST_PROCESSES: Final = 64


class Work(Protocol):
    """What is to be done with a data set; another process makes an equal one from the same."""

    @property
    def target(self) -> Target:
        """The place of the result."""

    def passes(self) -> list[Pass]:
        """List the passes."""

    def finish(self) -> DataManifest:
        """Return the manifest when all shares are done."""

    def needed_bytes(self) -> int:
        """Return the most room that it takes, where nobody has checked for it; 0 elsewhere."""


@dataclass(frozen=True)
class ImageWork:
    """Unpacks archives into class folders, which are counted, as are those that exist."""

    target: Target
    expected: Size = IMAGENET

    def passes(self) -> list[Pass]:
        """List a share for each class and one for the validation images; none for class folders."""
        return [Pass(SHARES, self._source.shares(), self.do)]

    def needed_bytes(self) -> int:
        """Return 0: the copying has checked."""
        return 0

    def do(self, share: Share) -> Result:
        """Unpack one archive, or sort and link what lies in folders."""
        return self._source.unpack(share, files=self.target.directory / FILES)

    def finish(self) -> DataManifest:
        """Count the folders.

        Raises:
            BadParameter: they are not as many as the model's, or images as ImageNet has.
        """
        root = self._source.in_place or self.target.directory / FILES
        folders = count_folders(root)
        settings = self.target.settings
        counts = check_size(
            folders,
            num_classes=int(settings["num_classes"]),
            expected=self.expected,
            evaluates=NO_VALIDATION not in settings,
        )
        relative = str(root.relative_to(self.target.data))
        return self.target.manifest(root=relative, counts=counts, folders=tuple(folders))

    @cached_property
    def _source(self) -> ImageSource:
        copied = self.target.copied
        names = [file.path for file in copied.files]
        found = find_source(self.target.data / copied.root, names)
        if found is None:
            raise BadParameter(
                f"{copied.source} holds neither class folders nor ImageNet's archives; expected "
                f"{EXPECTED}, or one .tar or .tar.gz of such folders"
            )
        return found


def prepare(
    work: Work,
    *,
    processes: int,
    progress: Progress,
    free_bytes: Callable[[Path], int] = lambda path: shutil.disk_usage(path).free,
) -> StagedLine:
    """Do what nobody else does, until all is done; return what is there then.

    Raises:
        BadParameter: the data is not what the recipe needs.
        PermanentError: a process was killed, or the hub cannot be reached.
        OSError: the file system does not take it.
    """
    began = time.monotonic()
    target = work.target
    target.directory.mkdir(parents=True, exist_ok=True)
    manifest = _find(target)
    was_there = manifest is not None
    if manifest is not None:
        _check_files(target, manifest)
    else:
        passes = work.passes()
        divided = [Shares(target.directory / each.name, each.shares) for each in passes]
        if not any(each.num_bytes_done() for each in divided):
            _check_room(work, free_bytes(target.data))
        total = sum(share.weight for each in passes for share in each.shares)
        largest = max(len(each.shares) for each in passes)
        if largest:
            in_processes(
                partial(_work_off, passes, divided),
                number=min(processes, largest),
                meanwhile=lambda: progress(sum(each.num_bytes_done() for each in divided), total),
            )
        with locked(target.directory / ".lock"):
            manifest = _find(target)
            if manifest is None:
                manifest = work.finish()
                os.sync()
                write_whole(target.directory / MANIFEST_FILE, manifest.to_json())
    return StagedLine(
        data_id=target.name,
        root=manifest.root,
        preparation=Preparation.NONE,
        num_files=len(manifest.files) + sum(each.num_files for each in manifest.folders),
        num_bytes=manifest.num_bytes,
        counts=manifest.counts,
        was_there=was_there,
        seconds=round(time.monotonic() - began, 3),
    )


def _check_room(work: Work, free_bytes: int) -> None:
    """Compare what will be made with the room for it.

    Raises:
        BadParameter: the file system has no room for it.
    """
    name = work.target.copied.source
    needed = work.needed_bytes()
    is_for_trainer = work.target.preparation is Preparation.TOKENS
    stream = f"stream it with dataset={name}, or " if is_for_trainer else ""
    if needed > free_bytes:
        raise BadParameter(
            f"{name} needs up to {needed / 1e9:,.1f} GB when it is packed, and the file system has "
            f"{free_bytes / 1e9:,.1f} GB free; {stream}use a cluster with a larger file system"
        )


def _work_off(passes: Sequence[Pass], divided: Sequence[Shares]) -> None:
    for each, shares in zip(passes, divided, strict=True):
        shares.work(each.do)


def _find(target: Target) -> DataManifest | None:
    path = target.directory / MANIFEST_FILE
    try:
        return read_data_manifest(path.read_bytes(), path=str(path))
    except FileNotFoundError:
        return None


def _check_files(target: Target, manifest: DataManifest) -> None:
    """Compare the sizes of what an earlier run has made with its manifest.

    Raises:
        BadParameter: a file is missing or has another size.
    """
    for file in manifest.files:
        path = target.data / manifest.root / file.path
        found = path.stat().st_size if path.is_file() else 0
        if found != file.num_bytes:
            raise BadParameter(
                f"{path} has {found:,} bytes, its manifest says {file.num_bytes:,}; remove "
                f"{target.directory} and have it made again"
            )


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

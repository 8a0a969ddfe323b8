"""Finds on the run's file system what is worth saving. Reads manifests, and no weights.

Called by `relay.saving.result`. The trainer's own rule decides which checkpoint counts: one with a
manifest whose files are all there at their size; whether their bytes are right shows while they are
uploaded.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from relay.saving.uploads import LocalFile
from stationmaster.domain import checkpoints, results
from stationmaster.domain.checkpoints import (
    DESCRIPTION,
    MARKER,
    Manifest,
    parse_manifest,
    step_of,
)
from stationmaster.domain.errors import PermanentError
from stationmaster.domain.results import TrainerFacts, is_plain_path

# Each file costs a request to save, one to verify and 300 bytes of the manifest.
MAX_FILES: Final = 10_000
# Below the 1,024 bytes of an S3 key, with room for the run's prefix.
MAX_PATH_BYTES: Final = 900
MAX_NAMED: Final = 20

_TAIL_BYTES: Final = 2**16


@dataclass(frozen=True, slots=True)
class SavedStep:
    """A complete checkpoint, its files, and what describes its model.

    Of each file of the checkpoint but its manifest the SHA-256 is known.
    """

    step: int
    source: str
    """CONFIGURATION/step-N"""
    files: tuple[LocalFile, ...]


@dataclass(slots=True)
class Output:
    """What lies below a command's output directory, as far as it can be saved."""

    files: list[LocalFile] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    """What cannot: each path with the reason, as many as a manifest bears."""
    num_left_out: int = 0

    def take(self, path: Path, run_directory: Path) -> None:
        """Take one more entry in.

        Raises:
            PermanentError: it is one too many.
        """
        saved_as = path.relative_to(run_directory).as_posix()
        status = path.lstat()
        why = _why_not(saved_as, status)
        if why:
            self.num_left_out += 1
            if len(self.left_out) < MAX_NAMED:
                self.left_out.append(f"{ascii(saved_as)[1:-1][:300]}: {why}")
            return
        identity = (status.st_dev, status.st_ino)
        self.files.append(LocalFile(path, saved_as, status.st_size, identity=identity))
        if len(self.files) > MAX_FILES:
            raise PermanentError(
                f"the command has written more than {MAX_FILES:,} files below its output "
                f"directory, {path.parent} and others, and no more are saved; pack them into "
                "archives on the file system and save again, or give them up"
            )

    @property
    def notes(self) -> tuple[str, ...]:
        """What the manifest says of what is not saved."""
        more = self.num_left_out - len(self.left_out)
        return (*self.left_out, *([f"{more:,} more"] if more else []))


def _why_not(saved_as: str, status: os.stat_result) -> str:
    if stat.S_ISLNK(status.st_mode):
        return "a link"
    if not stat.S_ISREG(status.st_mode):
        return "not a file"
    try:
        is_long = len(saved_as.encode()) > MAX_PATH_BYTES
    except UnicodeEncodeError:
        return "its name is not UTF-8"
    if is_long:
        return f"its path has more than {MAX_PATH_BYTES} bytes"
    return "" if is_plain_path(saved_as) else "its name has characters that no result has"


def _is_link(directory: str, name: str) -> bool:
    return Path(directory, name).is_symlink()


def _raise(error: OSError) -> None:
    raise error


class RunDirectory:
    """The trainer's output directory of one run; it may not exist.

    Whatever ran in the pods has written it. Links are not followed: they may lead anywhere on the
    machine that saves, its own credentials included.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        # The way to it may have links; nothing below has.
        self._real = path.parent.resolve() / path.name

    def output(self) -> Output:
        """What a command of people's own has written below its output directory.

        Raises:
            PermanentError: it is more than can be saved.
            OSError: the file system does not answer.
        """
        found = Output()
        root = self._path / results.OUTPUT
        if not self._is_own(root):
            return found
        for directory, folders, names in os.walk(root, onerror=_raise):
            folders.sort()
            for name in sorted(names + [each for each in folders if _is_link(directory, each)]):
                found.take(Path(directory, name), self._path)
        return found

    def _is_own(self, path: Path) -> bool:
        """Whether a path below the directory exists and is reached without links."""
        try:
            return path.resolve(strict=True) == self._real / path.relative_to(self._path)
        except (FileNotFoundError, NotADirectoryError, RuntimeError):
            return False

    def _are_files(self, paths: Iterable[Path]) -> list[Path]:
        return [path for path in paths if path.is_file() and self._is_own(path)]

    def model(self) -> list[LocalFile]:
        """Every file of the trained model; none before the end of training."""
        directory = self._path / results.MODEL
        return [
            _local(path, f"{results.MODEL}/{path.relative_to(directory).as_posix()}")
            for path in self._are_files(sorted(directory.rglob("*")))
        ]

    def lines(self, *, still_written: bool = False) -> list[LocalFile]:
        """The trainer's progress lines, samples and profile, if it has written any.

        While they are still written, these are the lines that were whole when they were found.
        """
        names = [results.METRICS_FILE, results.SAMPLES_FILE]
        if not still_written:
            profile = (results.PROFILE_TRACE, results.PROFILE_MEMORY)
            names += [f"{results.PROFILE}/{name}" for name in profile]
        found = self._are_files(self._path / name for name in names)
        if not still_written:
            return [_local(path, path.relative_to(self._path).as_posix()) for path in found]
        return [LocalFile(path, path.name, _whole_lines(path), grows=True) for path in found]

    def facts(self) -> TrainerFacts:
        """What the trainer says of itself; nothing where it has said nothing.

        Raises:
            PermanentError: what it says is not understood.
        """
        path = self._path / results.TRAINER_FACTS_FILE
        if not self._is_own(path):
            return TrainerFacts()
        try:
            return TrainerFacts.model_validate_json(path.read_bytes())
        except ValidationError as exc:
            raise PermanentError(
                f"{path} is not understood: {exc.errors()[0]['msg']}; remove it, or use the "
                "version that wrote it"
            ) from exc

    def checkpoints(self) -> Iterator[SavedStep]:
        """Complete checkpoints, the newest first: of the configuration that was trained last.

        Raises:
            OSError: the file system does not answer.
        """
        directory = self._path / checkpoints.DIRECTORY
        found = [
            (marker.stat().st_mtime_ns, marker.parent.parent)
            for marker in directory.glob(f"*/*/{MARKER}")
            if step_of(marker.parent.name) is not None and self._is_own(marker)
        ]
        newest_first = dict.fromkeys(path for _, path in sorted(found, reverse=True))
        for configuration in newest_first:
            steps = {step_of(path.name): path for path in configuration.iterdir()}
            for step in sorted((step for step in steps if step is not None), reverse=True):
                saved = self._complete(step, steps[step])
                if saved is not None:
                    yield saved

    def _complete(self, step: int, path: Path) -> SavedStep | None:
        marker = path / MARKER
        if not self._is_own(marker):
            return None
        manifest = parse_manifest(marker.read_bytes(), marker=str(marker))
        if not isinstance(manifest, Manifest):
            return None
        files = []
        for name, stored in sorted(manifest.files.items()):
            source = path / name
            if not self._are_files([source]) or source.stat().st_size != stored.size_bytes:
                return None
            saved_as = results.checkpoint_file(step, name)
            files.append(LocalFile(source, saved_as, stored.size_bytes, stored.sha256))
        files.append(_local(marker, results.checkpoint_file(step, MARKER)))
        files += self._described(path.parent)
        return SavedStep(step, f"{path.parent.name}/{path.name}", tuple(files))

    def _described(self, configuration: Path) -> list[LocalFile]:
        """What `training.export` needs besides a checkpoint, to make a model of it."""
        directory = configuration / DESCRIPTION
        return [
            _local(path, f"{results.CHECKPOINT}/{DESCRIPTION}/{path.name}")
            for path in self._are_files(sorted(directory.glob("*")))
        ]


def _whole_lines(path: Path) -> int:
    """The bytes of a file up to the end of its last whole line."""
    end = path.stat().st_size
    with path.open("rb") as lines:
        while end:
            start = max(0, end - _TAIL_BYTES)
            lines.seek(start)
            newline = lines.read(end - start).rfind(b"\n")
            if newline >= 0:
                return start + newline + 1
            end = start
    return 0


def _local(path: Path, saved_as: str) -> LocalFile:
    return LocalFile(path, saved_as, path.stat().st_size)

"""Finds on the run's file system what is worth saving. Reads manifests, and no weights.

Called by `relay.saving.result`. The trainer's own rule decides which checkpoint counts: one with a
manifest whose files are all there at their size; whether their bytes are right shows while they are
uploaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
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
from stationmaster.domain.results import TrainerFacts

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


class RunDirectory:
    """The trainer's output directory of one run; it may not exist."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def model(self) -> list[LocalFile]:
        """Every file of the trained model; none before the end of training."""
        directory = self._path / results.MODEL
        return [
            _local(path, f"{results.MODEL}/{path.relative_to(directory).as_posix()}")
            for path in sorted(directory.rglob("*"))
            if path.is_file()
        ]

    def lines(self, *, still_written: bool = False) -> list[LocalFile]:
        """The trainer's progress lines and samples, if it has written any.

        While they are still written, these are the lines that were whole when they were found.
        """
        names = (results.METRICS_FILE, results.SAMPLES_FILE)
        paths = [(self._path / name, name) for name in names if (self._path / name).is_file()]
        if not still_written:
            return [_local(path, name) for path, name in paths]
        return [LocalFile(path, name, _whole_lines(path), grows=True) for path, name in paths]

    def facts(self) -> TrainerFacts:
        """What the trainer says of itself; nothing where it has said nothing.

        Raises:
            PermanentError: what it says is not understood.
        """
        path = self._path / results.TRAINER_FACTS_FILE
        try:
            return TrainerFacts.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return TrainerFacts()
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
            if step_of(marker.parent.name) is not None
        ]
        newest_first = dict.fromkeys(path for _, path in sorted(found, reverse=True))
        for configuration in newest_first:
            steps = {step_of(path.name): path for path in configuration.iterdir()}
            for step in sorted((step for step in steps if step is not None), reverse=True):
                saved = _complete(step, steps[step])
                if saved is not None:
                    yield saved


def _complete(step: int, path: Path) -> SavedStep | None:
    marker = path / MARKER
    try:
        text = marker.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    manifest = parse_manifest(text, marker=str(marker))
    if not isinstance(manifest, Manifest):
        return None
    files = []
    for name, stored in sorted(manifest.files.items()):
        source = path / name
        if not source.is_file() or source.stat().st_size != stored.size_bytes:
            return None
        saved_as = results.checkpoint_file(step, name)
        files.append(LocalFile(source, saved_as, stored.size_bytes, stored.sha256))
    files.append(_local(marker, results.checkpoint_file(step, MARKER)))
    files += _described(path.parent)
    return SavedStep(step, f"{path.parent.name}/{path.name}", tuple(files))


def _described(configuration: Path) -> list[LocalFile]:
    """What `training.export` needs besides a checkpoint, to make a model of it."""
    directory = configuration / DESCRIPTION
    return [
        _local(path, f"{results.CHECKPOINT}/{DESCRIPTION}/{path.name}")
        for path in sorted(directory.glob("*"))
        if path.is_file()
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

"""Finds on the run's file system what is worth saving. Reads manifests, and no weights.

The trainer's own rule decides which checkpoint counts: one with a manifest whose files are all
there at their size; whether their bytes are right shows during the upload. What cannot be saved is
left out, and named.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace
from io import BufferedReader
from pathlib import Path
from typing import Final

from pydantic import ValidationError

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
from stationmaster.relay.saving.tree import Entry, Tree
from stationmaster.relay.saving.uploads import LocalFile

# Each file costs a request to save, one to verify and 300 bytes of the manifest.
MAX_FILES: Final = 10_000
# Below the 1,024 bytes of an S3 key, with room for the run's prefix.
MAX_PATH_BYTES: Final = 900
MAX_NAMED: Final = 20
# A checkpoint's manifest has about 150 bytes for each file.
MAX_JSON_BYTES: Final = 16 * 2**20

_TAIL_BYTES: Final = 2**16


@dataclass(frozen=True, slots=True)
class SavedStep:
    """A complete checkpoint, its files, and what describes its model.

    Of each file of the checkpoint but its manifest the SHA-256 is known.
    """

    step: int
    source: str
    """The checkpoint's place, CONFIGURATION/step-N."""
    files: tuple[LocalFile, ...]


def _why_not(saved_as: str, status: os.stat_result) -> str:
    """Say why something cannot be saved; empty where it can."""
    if stat.S_ISLNK(status.st_mode):
        return "a link"
    if not stat.S_ISREG(status.st_mode):
        return "not a file"
    return _why_no_path(saved_as)


def _why_no_path(path: str) -> str:
    try:
        is_long = len(path.encode()) > MAX_PATH_BYTES
    except UnicodeEncodeError:
        return "its name is not UTF-8"
    if is_long:
        return f"its path has more than {MAX_PATH_BYTES} bytes"
    return "" if is_plain_path(path) else "its name has characters that no result has"


class RunDirectory:
    """The trainer's output directory of one run; it may not exist.

    Whatever ran in the pods has written it. Links are not followed: they may lead anywhere on the
    machine that saves, its own credentials included.
    """

    def __init__(self, path: Path) -> None:
        self._tree = Tree(path)
        self._left_out: dict[str, str] = {}
        self._num_more = 0

    @property
    def left_out(self) -> tuple[str, ...]:
        """What was found and cannot be saved, each with the reason, as many as a manifest bears."""
        named = [f"{path}: {why}" for path, why in self._left_out.items()]
        return (*named, *([f"{self._num_more:,} more"] if self._num_more else []))

    def _leave_out(self, path: str, why: str) -> None:
        name = ascii(path)[1:-1][:300]
        if len(self._left_out) < MAX_NAMED or name in self._left_out:
            self._left_out[name] = why
        else:
            self._num_more += 1

    def below(self, top: str) -> list[LocalFile]:
        """List every file below a directory that can be saved under its name.

        Raises:
            PermanentError: it is more than can be saved.
            OSError: the file system does not answer.
        """
        files: list[LocalFile] = []
        found = self._tree.entry(top)
        if found is not None and not found.is_directory:
            self._leave_out(top, _why_not(top, found.status) or "not a directory")
        folders = [top]
        while folders:
            for entry in self._tree.entries(folders.pop()):
                if entry.is_directory and not _why_no_path(entry.path):
                    folders.append(entry.path)
                elif why := _why_not(entry.path, entry.status):
                    self._leave_out(entry.path, _why_no_path(entry.path) or why)
                else:
                    files.append(self._local(entry))
            if len(files) > MAX_FILES:
                raise PermanentError(
                    f"there are more than {MAX_FILES:,} files below {self._tree.root / top}, and "
                    "no more are saved; pack them into archives on the file system and save "
                    "again, or give them up"
                )
        return sorted(files, key=lambda file: file.path)

    def _local(self, entry: Entry, saved_as: str = "") -> LocalFile:
        return LocalFile(self._tree, entry.path, saved_as or entry.path, entry.status.st_size)

    def lines(self, *, still_written: bool = False) -> list[LocalFile]:
        """List the trainer's progress lines, samples, profile and event files, if there are any.

        While they are still written, these are the lines that were whole when they were found.
        """
        names = [results.METRICS_FILE, results.SAMPLES_FILE]
        if not still_written:
            profile = (results.PROFILE_TRACE, results.PROFILE_MEMORY)
            names += [f"{results.PROFILE}/{name}" for name in profile]
        found = [file for name in names if (file := self._file(name)) is not None]
        if not still_written:
            return [*found, *self.below(results.TENSORBOARD)]
        return [replace(each, num_bytes=self._whole_lines(each), grows=True) for each in found]

    def _file(self, path: str, saved_as: str = "") -> LocalFile | None:
        """Find a file that may be there; anything else in its place is left out."""
        entry = self._tree.entry(path)
        if entry is None:
            return None
        if why := _why_not(saved_as or path, entry.status):
            self._leave_out(path, why)
            return None
        return self._local(entry, saved_as)

    def facts(self) -> TrainerFacts:
        """Read what the trainer says of itself; empty where nothing is understood."""
        path = results.TRAINER_FACTS_FILE
        try:
            return TrainerFacts.model_validate_json(self._text(self._file(path)) or b"{}")
        except ValidationError as exc:
            self._leave_out(path, f"it is not understood: {exc.errors()[0]['msg']}")
            return TrainerFacts()

    def _text(self, file: LocalFile | None) -> bytes | None:
        """Read a small file; a large one is left out."""
        if file is None:
            return None
        if file.num_bytes > MAX_JSON_BYTES:
            self._leave_out(file.name, f"it has more than {MAX_JSON_BYTES:,} bytes")
            return None
        with self._tree.opened(file.name) as stream, BufferedReader(stream) as text:
            return text.read(MAX_JSON_BYTES)

    def checkpoints(self) -> Iterator[SavedStep]:
        """Yield complete checkpoints, the newest first: of the configuration that was trained last.

        Raises:
            OSError: the file system does not answer.
        """
        found: dict[str, list[tuple[int, str]]] = {}
        newest: dict[str, int] = {}
        for configuration in self._tree.entries(checkpoints.DIRECTORY):
            if why := _why_no_path(configuration.path):
                self._leave_out(configuration.path, why)
                continue
            for entry in self._tree.entries(configuration.path):
                step = step_of(entry.path.rpartition("/")[2])
                marker = self._tree.entry(f"{entry.path}/{MARKER}")
                if step is not None and marker is not None:
                    found.setdefault(configuration.path, []).append((step, entry.path))
                    written = max(newest.get(configuration.path, 0), marker.status.st_mtime_ns)
                    newest[configuration.path] = written
        for path in sorted(found, key=lambda each: (newest[each], each), reverse=True):
            for step, directory in sorted(found[path], reverse=True):
                saved = self._complete(step, directory)
                if saved is not None:
                    yield saved

    def _complete(self, step: int, path: str) -> SavedStep | None:
        marker = self._file(f"{path}/{MARKER}", results.checkpoint_file(step, MARKER))
        text = self._text(marker)
        if marker is None or text is None:
            return None
        manifest = parse_manifest(text, marker=marker.name)
        if not isinstance(manifest, Manifest):
            self._leave_out(path, manifest.reason)
            return None
        files = []
        for name, stored in sorted(manifest.files.items()):
            saved_as = results.checkpoint_file(step, name)
            if name == MARKER or _why_no_path(f"{path}/{name}"):
                self._leave_out(path, f"{MARKER} names a file that no result has")
                return None
            file = self._file(f"{path}/{name}", saved_as)
            if file is None or file.num_bytes != stored.size_bytes:
                return None
            files.append(replace(file, sha256=stored.sha256))
        configuration = path.rpartition("/")[0]
        files += [marker, *self._described(configuration)]
        return SavedStep(step, path.partition("/")[2], tuple(files))

    def _described(self, configuration: str) -> list[LocalFile]:
        """List what `training.export` needs besides a checkpoint, to make a model of it."""
        entries = self._tree.entries(f"{configuration}/{DESCRIPTION}")
        names = (entry.path.rpartition("/")[2] for entry in entries if not entry.is_directory)
        found = (
            self._file(
                f"{configuration}/{DESCRIPTION}/{name}",
                f"{results.CHECKPOINT}/{DESCRIPTION}/{name}",
            )
            for name in names
        )
        return [file for file in found if file is not None]

    def _whole_lines(self, file: LocalFile) -> int:
        """Count the bytes of a file up to the end of its last whole line."""
        end = file.num_bytes
        with self._tree.opened(file.name) as lines:
            while end:
                start = max(0, end - _TAIL_BYTES)
                lines.seek(start)
                newline = lines.read(end - start).rfind(b"\n")
                if newline >= 0:
                    return start + newline + 1
                end = start
        return 0

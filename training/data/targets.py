"""Where prepared data goes, and what it is made of: copied files, or a data set of the hub.

This module must not import torch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from stationmaster.domain.datasets import MANIFEST_FILE, Preparation, data_id
from stationmaster.domain.errors import NotPossibleNow
from stationmaster.domain.staged_data import DataFile, DataFolder, DataManifest, read_data_manifest
from training.data.corpus import SHORT_NAMES
from training.data.corpus_lookup import find_corpus
from training.files import locked, write_json

Settings = dict[str, str | int]


@dataclass(frozen=True)
class Target:
    """The place of a data set, and what its manifest says of its origin."""

    data: Path
    copied: DataManifest
    """The copy's manifest; without a root, a data set of the hub that is read while packing."""
    preparation: Preparation
    settings: Settings

    @property
    def name(self) -> str:
        copied = self.copied
        return data_id(copied.source, copied.source_version, self.preparation, self.settings)

    @property
    def directory(self) -> Path:
        return self.data / self.name

    def manifest(
        self,
        *,
        root: str,
        counts: dict[str, int],
        files: tuple[DataFile, ...] = (),
        folders: tuple[DataFolder, ...] = (),
    ) -> DataManifest:
        """Write its manifest."""
        return DataManifest(
            source=self.copied.source,
            source_version=self.copied.source_version,
            preparation=self.preparation,
            settings=self.settings,
            root=root,
            files=files,
            folders=folders,
            counts=counts,
        )


def data_files(
    directory: Path, paths: Iterable[Path], *, sha256: Mapping[str, str]
) -> tuple[DataFile, ...]:
    """List files as a manifest has them, with the hashes that are known."""
    names = sorted(str(path.relative_to(directory)) for path in paths)
    return tuple(
        DataFile(
            path=name, num_bytes=(directory / name).stat().st_size, sha256=sha256.get(name, "")
        )
        for name in names
    )


def find_target(data: Path, name: str, *, preparation: Preparation, settings: Settings) -> Target:
    """Find the place for preparing the data set that was copied as `name`.

    Raises:
        NotPossibleNow: it was not copied to its end.
        PermanentError: its manifest cannot be read.
    """
    path = data / name / MANIFEST_FILE
    try:
        copied = read_data_manifest(path.read_bytes(), path=str(path))
    except FileNotFoundError as exc:
        raise NotPossibleNow(
            f"{path} is not there: the data was not copied to its end; start the copying again"
        ) from exc
    return Target(data, copied, preparation, settings)


def find_target_on_hub(
    data: Path, dataset: str, *, run_id: str, preparation: Preparation, settings: Settings
) -> Target:
    """Find the place for packing a data set of the hub, at the commit that the run began with.

    The first process of a run that asks settles the commit for all of them.

    Raises:
        BadParameter: there is no such data set.
        PermanentError: the hub cannot be reached.
    """
    name = SHORT_NAMES.get(dataset, dataset)
    commits = data / ".commits"
    key = hashlib.sha256(f"{run_id} {name}".encode()).hexdigest()[:24]
    with locked(commits / f"{key}.lock"):
        known = commits / f"{key}.json"
        if not known.exists():
            write_json(known, {"commit": find_corpus(name).revision})
        commit = json.loads(known.read_text())["commit"]
    source = DataManifest(source=name, source_version=commit, root="")
    return Target(data, source, preparation, settings)

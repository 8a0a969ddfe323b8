"""Data that is brought to a run's file system before it trains: its source, name and manifest.
Pure.

    /fsx/data/ID/manifest.json   lists what is there; written last: without it nothing is complete
    /fsx/data/ID/files/...       what the trainer reads

ID is a hash of the source, its version and its preparation, so that a later run on the same file
system finds the data.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final

from stationmaster.domain.errors import BadParameter
from stationmaster.domain.frozen import Frozen

S3_SCHEME: Final = "s3://"
PACKED_PREFIX: Final = "packed:"
STREAM_PREFIX: Final = "stream:"
# Where pods see the file system of their cluster.
SHARED_PREFIX: Final = "/fsx/"
# The directory of the file system that has one for each run.
RUNS: Final = "runs"
MANIFEST_FILE: Final = "manifest.json"
FILES: Final = "files"
NO_VALIDATION: Final = "no_validation"
"""The setting with which images are prepared for a run that does not evaluate."""

# In place of a recipe's task where another program reads the data: as it is, or as Megatron does.
AS_IT_IS: Final = "as-it-is"
FOR_MEGATRON: Final = "megatron"

# How a packed data set is recognised: see `training.data.shards`.
PACKED: Final = frozenset({"manifest.json", "tokenizer.json"})
# Source: Amazon S3 user guide, "General purpose bucket naming rules", and "Naming Amazon S3
# objects": a key has up to 1,024 bytes. What would need quoting in a shell is not taken.
_S3_URI: Final = re.compile(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/([\w.+=@:/-]{0,450}))?")
_SHARED_PATH: Final = re.compile(r"[\w./@+-]{1,450}")
_ARCHIVES: Final = (".tar", ".tar.gz", ".tgz")
_COMPRESSED: Final = (".gz", ".parquet", ".zst", ".bz2", ".xz", ".lz4")


class Preparation(StrEnum):
    """What has to be done with copied data before it can be trained on."""

    NONE = "none"
    IMAGES = "images"
    """Archives become class folders; class folders are counted."""
    TOKENS = "tokens"
    """Text is tokenised and packed."""
    MEGATRON = "megatron"
    """Text becomes an indexed data set of Megatron's."""


@dataclass(frozen=True, slots=True)
class S3Source:
    """The objects below a prefix of a bucket; the prefix is empty or ends with a slash."""

    bucket: str
    prefix: str

    @property
    def uri(self) -> str:
        """The address as people and tools write it; equal for equal objects."""
        return f"{S3_SCHEME}{self.bucket}/{self.prefix}"

    def __str__(self) -> str:
        return self.uri.rstrip("/")


@dataclass(frozen=True, slots=True)
class HubSource:
    """A data set of the Hugging Face hub; `config` is one of its configurations, or ""."""

    repository: str
    config: str = ""

    @property
    def uri(self) -> str:
        return f"{HUB_PREFIX}{self.repository}" + (f"/{self.config}" if self.config else "")


HUB_PREFIX: Final = "hub:"
C4: Final = HubSource("allenai/c4", "en")
"""The data set that `c4` stands for."""


@dataclass(frozen=True, slots=True)
class PackedSource:
    """A data set of the hub that is packed before training; `name` is c4 or hub:ORG/NAME."""

    name: str

    @property
    def hub(self) -> HubSource | None:
        """The data set; None where the name is none of the hub."""
        name = C4.uri if self.name == "c4" else self.name
        owner, _, rest = name.removeprefix(HUB_PREFIX).partition("/")
        title, _, config = rest.partition("/")
        is_known = name.startswith(HUB_PREFIX) and title
        return HubSource(f"{owner}/{title}", config) if is_known else None

    def __str__(self) -> str:
        return f"{PACKED_PREFIX}{self.name}"


@dataclass(frozen=True, slots=True)
class SharedPath:
    """Data that lies on the run's file system."""

    path: str
    is_streamed: bool = False

    @property
    def run_directory(self) -> str | None:
        """The run whose directory it is in, "" for that of all runs; None for neither."""
        first, _, rest = self.path.removeprefix(SHARED_PREFIX).partition("/")
        return rest.partition("/")[0] if first == RUNS else None

    def check(self) -> None:
        """Refuse a path that leaves the file system or is written in a way that tools mistake.

        Raises:
            BadParameter: naming what is expected.
        """
        below = self.path.removeprefix(SHARED_PREFIX).rstrip("/")
        if not _SHARED_PATH.fullmatch(below) or not is_plain(below):
            raise BadParameter(
                f'dataset="{self}" is not accepted: expected {SHARED_PREFIX}PATH of letters, '
                f"digits and ._-@+ without .. in it, e.g. {SHARED_PREFIX}imagenet"
            )

    def __str__(self) -> str:
        return f"{STREAM_PREFIX if self.is_streamed else ''}{self.path}"


@dataclass(frozen=True, slots=True)
class NamedData:
    """What the program that trains finds by itself: a word, a path of its machine, or nothing."""

    name: str

    def __str__(self) -> str:
        return self.name


Dataset = S3Source | PackedSource | SharedPath | NamedData


@lru_cache(maxsize=256)
def read_dataset(text: str) -> Dataset:
    """Read what follows `dataset=`.

    Raises:
        BadParameter: it begins with s3:// and is no address of objects.
    """
    if text.startswith(PACKED_PREFIX):
        return PackedSource(text.removeprefix(PACKED_PREFIX))
    if not text.startswith(S3_SCHEME):
        return read_shared_path(text) or NamedData(text)
    found = _S3_URI.fullmatch(text)
    prefix = ((found[2] or "") if found else "").strip("/")
    if found is None or any(part in ("", ".", "..") for part in prefix.split("/") if prefix):
        raise BadParameter(
            f'dataset="{text}" is not accepted: expected {S3_SCHEME}BUCKET/PREFIX with the '
            f"name of a bucket, of 3 to 63 characters, e.g. {S3_SCHEME}my-bucket/imagenet"
        )
    return S3Source(found[1], f"{prefix}/" if prefix else "")


def read_shared_path(text: str) -> SharedPath | None:
    """Read a path on the run's file system, of data or of weights; None for anything else."""
    path = text.removeprefix(STREAM_PREFIX)
    return SharedPath(path, path != text) if path.startswith(SHARED_PREFIX) else None


class Listing(Frozen):
    """What S3, or the hub, said of a source when a person asked for the run."""

    source: str
    """The address, s3://BUCKET/PREFIX/ or hub:ORG/NAME."""
    num_bytes: int
    num_objects: int
    preparation: Preparation
    prepared_bytes: int
    """The room that its preparation takes."""
    is_complete: bool
    """False where there are more objects than were counted."""
    likely_objects: int = 0
    """The estimate of all, by class folders, where not all were counted; 0 where unknown."""
    likely_bytes: int = 0
    is_stored: bool = True
    """False where it is read from elsewhere during preparation, and takes no room itself."""
    may_link: bool = False
    """Whether the deployment lets FSx link the bucket to a file system."""
    link_saves_s: float = 600.0
    """By how many seconds training has to begin sooner than after a copy, for a link."""

    @property
    def expected_objects(self) -> int:
        return max(self.num_objects, self.likely_objects)

    @property
    def expected_bytes(self) -> int:
        return max(self.num_bytes, self.likely_bytes)


@dataclass(frozen=True, slots=True)
class SourceObject:
    """One object of a source; `path` is below its prefix."""

    path: str
    num_bytes: int
    etag: str


def version_of(objects: Iterable[SourceObject]) -> str:
    """Name the state of a source: the SHA-256, in hex, of its objects in any order."""
    digest = hashlib.sha256()
    for found in sorted(objects, key=lambda each: each.path):
        digest.update(json.dumps([found.path, found.num_bytes, found.etag]).encode() + b"\n")
    return digest.hexdigest()


def data_id(
    source: str, version: str, preparation: Preparation, settings: Mapping[str, str | int]
) -> str:
    """Name staged data; `settings` are what else decides how it was prepared."""
    text = json.dumps([1, source, version, preparation, dict(sorted(settings.items()))])
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def preparation_of(task: str, paths: Iterable[str]) -> Preparation:
    """Say what the objects of a source need for a recipe of this task."""
    match task:
        case "image-classification":
            return Preparation.IMAGES
        case task if task == FOR_MEGATRON:
            return Preparation.MEGATRON
        case "pretraining" if not set(paths) >= PACKED:
            return Preparation.TOKENS
        case _:
            return Preparation.NONE


def prepared_bytes(preparation: Preparation, path: str, num_bytes: int) -> int:
    """Estimate the most room that preparing one file takes beside the file itself.

    An archive of images holds what its files hold. Text becomes 2 or 4 bytes a token, of 3 to 5
    characters each: no more than the text, which may be compressed to a third. A fifth of that is
    Megatron's index, of at most 20 bytes a document.
    """
    match preparation:
        case Preparation.NONE:
            return 0
        case Preparation.IMAGES:
            return num_bytes if path.endswith(_ARCHIVES) else 0
        case Preparation.TOKENS:
            return 3 * num_bytes if path.endswith(_COMPRESSED) else num_bytes
        case Preparation.MEGATRON:
            tokens = prepared_bytes(Preparation.TOKENS, path, num_bytes)
            return 0 if path.endswith((".bin", ".idx")) else tokens * 5 // 4


def is_plain(path: str) -> bool:
    """Say whether a path names a file in the directory that it is relative to."""
    return "\0" not in path and not any(part in ("", ".", "..") for part in path.split("/"))

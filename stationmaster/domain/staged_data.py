"""What a data directory holds, and what the programs that bring data are told and say. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError

from stationmaster.domain.datasets import Preparation, is_plain
from stationmaster.domain.errors import PermanentError
from stationmaster.domain.frozen import Frozen
from stationmaster.domain.ids import RunId
from stationmaster.domain.outside import Count, Finite
from stationmaster.domain.progress_lines import PrintedLine


def _plain(path: str) -> str:
    if not is_plain(path):
        raise ValueError(f"path {path!r} is not a plain relative path")
    return path


class CheckedBy(StrEnum):
    """What a copied file was compared with, besides its size."""

    SHA256 = "sha256"
    """S3's own SHA-256."""
    ETAG = "etag"
    """The MD5 that the ETag is."""
    SIZE = "size"
    """Nothing else: the object has neither, e.g. because it is encrypted with a KMS key."""


class DataFile(Frozen):
    """One file of a data set."""

    path: Annotated[str, AfterValidator(_plain)]
    num_bytes: Count
    sha256: str = ""
    """The hash in hex; "" where nobody has computed it."""
    checked_by: CheckedBy = CheckedBy.SIZE


class DataFolder(Frozen):
    """A folder of very many files, which are counted and not listed."""

    path: Annotated[str, AfterValidator(_plain)]
    num_files: Count


class DataManifest(Frozen):
    """The contents of `manifest.json`."""

    version: Literal[1] = 1
    source: str
    source_version: str
    """The result of `version_of`."""
    preparation: Preparation = Preparation.NONE
    settings: dict[str, str | int] = {}
    root: str
    """The directory that the trainer reads, below that of all data."""
    files: tuple[DataFile, ...] = ()
    """The files, ordered by path, below `root`."""
    folders: tuple[DataFolder, ...] = ()
    counts: dict[str, int] = {}
    linked: bool = False
    """Whether the files are objects that FSx shows, so that nothing has compared their contents."""

    @property
    def num_bytes(self) -> int:
        return sum(file.num_bytes for file in self.files)

    def to_json(self) -> bytes:
        """Write the bytes of `manifest.json`; equal for equal manifests."""
        return self.model_dump_json(indent=1).encode() + b"\n"


def read_data_manifest(data: bytes, *, path: str) -> DataManifest:
    """Parse the bytes of a `manifest.json`; `path` is named in the error.

    Raises:
        PermanentError: they are no manifest of a known version.
    """
    try:
        return DataManifest.model_validate_json(data)
    except ValidationError as exc:
        raise PermanentError(
            f"{path} is not a manifest of staged data that this version reads; remove its "
            "directory, and the data is brought again"
        ) from exc


class StagingOrder(Frozen):
    """What a program that brings data has to do for a run."""

    run_id: RunId
    dataset: str
    task: str
    """The recipe's task, which decides the preparation."""
    settings: dict[str, str | int] = {}
    """What else decides how the data is prepared, e.g. the tokenizer."""
    keep_free_bytes: int = Field(default=0, ge=0)
    """The room that must be left on the file system for what training writes."""
    linked: str = ""
    """The directory that shows the objects already, as /fsx/linked; "" where they are copied."""
    objects_read: int | None = None
    """How many linked objects the run reads, for which there must be room; None for all."""


class LookingOrder(Frozen):
    """What has to be true of data that a run reads in place."""

    run_id: RunId
    dataset: str
    """The value of `dataset=` as it was typed."""
    path: str
    task: str
    """The recipe's task, which decides the kind of data that it needs."""
    num_classes: int = 0
    """The number of classes of an image recipe."""
    evaluates: bool = True
    keep_free_bytes: int = Field(default=0, ge=0)
    """The room that must be left on the file system for what training writes."""


class StagingLine(PrintedLine):
    """The progress of a program that brings data: bytes done, of all bytes."""

    kind: Literal["staging"] = "staging"
    staged_bytes: Count
    total_bytes: Count


class StagedLine(PrintedLine):
    """The last line of a program that brings data: all is there, with its manifest."""

    kind: Literal["staged"] = "staged"
    data_id: str
    root: str
    """What was staged, below the directory of all data."""
    preparation: Preparation
    """What is still to be done with it."""
    num_files: Count
    num_bytes: Count
    counts: dict[str, Count] = Field(default_factory=dict)
    was_there: bool
    """Whether it was found complete, so that nothing had to be done."""
    seconds: Finite


_LINE: Final[TypeAdapter[StagingLine | StagedLine]] = TypeAdapter(
    Annotated[StagingLine | StagedLine, Field(discriminator="kind")]
)


def read_staging_line(text: str) -> StagingLine | StagedLine | None:
    """Read a line of a program that brings data; None for any other text."""
    try:
        return _LINE.validate_json(text)
    except ValidationError:
        return None

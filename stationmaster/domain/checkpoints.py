"""The name of a trainer's checkpoint, and the manifest in its directory. Pure: reads no files.

Written and judged by `training.manifest`, which says what is complete and what is verified; read by
the saver, which loads no torch.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Final

from pydantic import ValidationError

from stationmaster.domain.frozen import Frozen

DIRECTORY: Final = "checkpoints"
"""The directory in a run's output directory, with one for each configuration of the run below it.
"""
MARKER: Final = "complete.json"
DESCRIPTION: Final = "huggingface"
"""The directory beside a configuration's checkpoints with its model's config.json and tokenizer."""
_NAME: Final = re.compile(r"step-(\d{8})")


class StoredFile(Frozen, extra="forbid"):
    """One file of a checkpoint, as it was given to the disk."""

    size_bytes: int
    sha256: str
    rank: int
    """The rank that wrote it; at a resume, rank % world size checks it."""


class Manifest(Frozen, extra="forbid"):
    """The contents of `complete.json`."""

    step: int
    world_size: int
    """The number of ranks that wrote it; any number may read it."""
    verified: bool
    configuration: dict[str, str]
    """Everything that decides the weights after a given step, by name."""
    files: dict[str, StoredFile]

    @property
    def num_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files.values())


@dataclass(frozen=True, slots=True)
class Unusable:
    """The reason for which a checkpoint that has a manifest cannot be used."""

    reason: str
    is_foreign: bool = False
    """Whether this version does not know the manifest's form; the files may be whole."""


def step_name(step: int) -> str:
    """Name the directory of a step's checkpoint."""
    return f"step-{step:08d}"


def step_of(name: str) -> int | None:
    """Read the step from a checkpoint directory's name; None for any other directory."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


def parse_manifest(text: bytes, *, marker: str) -> Manifest | Unusable:
    """Parse the bytes of the file `marker`, or say why they are no manifest."""
    try:
        return Manifest.model_validate(json.loads(text))
    except (ValueError, RecursionError) as exc:  # not JSON, not UTF-8, too deep; pydantic's own
        if isinstance(exc, ValidationError):
            return Unusable(f"{marker}: {_unknown_form(exc)}", is_foreign=True)
        return Unusable(f"{marker} is torn: {exc}")


def _unknown_form(error: ValidationError) -> str:
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"]) or "the whole"
    match first["type"]:
        case "extra_forbidden":
            return f'the key "{key}" is not known'
        case "missing":
            return f'the key "{key}" is missing'
        case _:
            return f'the key "{key}" is not as expected: {first["msg"]}'

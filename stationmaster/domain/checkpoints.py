"""How a checkpoint of the trainer is described: its name, and the manifest in its directory.

Written and judged by `training.manifest`, which says what is complete and what is verified; read by
the saver, which loads no torch. Pure: parses text, and reads no files.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Final

from pydantic import BaseModel, ConfigDict, ValidationError

DIRECTORY: Final = "checkpoints"
"""In a run's output directory; below it, one directory for each configuration of the run."""
MARKER: Final = "complete.json"
DESCRIPTION: Final = "huggingface"
"""Directory beside a configuration's checkpoints, with its model's config.json and tokenizer."""
_NAME: Final = re.compile(r"step-(\d{8})")


class StoredFile(BaseModel):
    """One file of a checkpoint, as it was given to the disk."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    size_bytes: int
    sha256: str
    rank: int
    """Who wrote it; at a resume, rank % world size checks it."""


class Manifest(BaseModel):
    """The contents of `complete.json`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    step: int
    world_size: int
    """Ranks of the run that wrote it; any number may read it."""
    verified: bool
    configuration: dict[str, str]
    """Everything that decides the weights after a given step, by name."""
    files: dict[str, StoredFile]

    @property
    def num_bytes(self) -> int:
        """All files together."""
        return sum(file.size_bytes for file in self.files.values())


@dataclass(frozen=True, slots=True)
class Unusable:
    """Why a checkpoint that has a manifest cannot be used."""

    reason: str
    is_foreign: bool = False
    """Its manifest is of a form that this version does not know; the rest may be whole."""


def step_name(step: int) -> str:
    """Name of the directory of a step's checkpoint."""
    return f"step-{step:08d}"


def step_of(name: str) -> int | None:
    """The step whose checkpoint a directory of this name holds; None for any other directory."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


def parse_manifest(text: bytes, *, marker: str) -> Manifest | Unusable:
    """The manifest in the bytes of the file `marker`, or why it is none."""
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

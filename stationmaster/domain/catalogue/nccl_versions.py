"""Versions of NCCL's plugin for EFA that are known to be bad, each with its source and date."""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel, ConfigDict

Version = tuple[int, ...]


class BadVersions(BaseModel):
    """Versions from `first` on and before `fixed` of one piece of software."""

    model_config = ConfigDict(frozen=True)

    software: str
    first: Version
    fixed: Version
    what: str
    """What goes wrong, after "it"."""
    remedy: str
    source: str
    as_of: str


BAD_VERSIONS: Final = (
    BadVersions(
        software="aws-ofi-nccl",
        first=(1, 18),
        fixed=(1, 20),
        what="hangs on large broadcasts between nodes, which all-reduce alone does not show",
        remedy="use aws-ofi-nccl 1.20.0 (EFA installer 1.49.0) or newer in the image",
        source="aws/deep-learning-containers pull requests 6551 and 6668",
        as_of="2026-08-27",
    ),
)


def parse_version(text: str) -> Version:
    """The leading numbers of "1.18.0-aws" or "2.21.5+cuda12.4"; () where there are none."""
    numbers: list[int] = []
    for part in text.split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits or len(digits) > 9:
            break
        numbers.append(int(digits))
        if digits != part:
            break
    return tuple(numbers)


def bad_version(software: str, version: str) -> BadVersions | None:
    """What is known against a version; None where nothing is, or where it has no number."""
    number = parse_version(version)
    for bad in BAD_VERSIONS:
        if number and bad.software == software and bad.first <= number < bad.fixed:
            return bad
    return None

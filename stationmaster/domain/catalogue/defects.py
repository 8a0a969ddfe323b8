"""Versions of libraries below a training job that must not be used, each with its source and date.

`container/self_check.py` is copied into images beside it, so it takes only the standard library of
Python 3.10.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

Version = tuple[int, ...]


@dataclass(frozen=True)
class Defect:
    """Versions of one library from `first` on and before `fixed`; without it, all newer ones."""

    id: str
    package: str
    """The name in images' tags: ofi (aws-ofi-nccl), efa (the EFA installer), etcd."""
    name: str
    """The name that people use."""
    first: Version
    fixed: Version | None
    what: str
    """What is wrong, to follow name and version in a sentence."""
    remedy: str
    source: str
    as_of: str = "2026-08-27"


_PLUGIN: Final = "aws-ofi-nccl"
_BROADCASTS: Final = "hangs in large broadcasts between nodes, which all-reduce alone does not show"
_NEWER: Final = "use aws-ofi-nccl 1.20.0 (EFA installer 1.49.0) or newer in the image"
_NOTES: Final = "aws/aws-ofi-nccl, release notes"
_REPORTS: Final = "aws/deep-learning-containers pull requests 6551 and 6668"

DEFECTS: Final = (
    Defect(
        "ofi-deadlock", "ofi", _PLUGIN, (1, 14, 0), (1, 14, 1),
        "can wait for itself for ever", _NEWER, _NOTES,
    ),
    Defect("ofi-broadcast", "ofi", _PLUGIN, (1, 18), (1, 20), _BROADCASTS, _NEWER, _REPORTS),
    Defect(
        "efa-broadcast", "efa", "the EFA installer", (1, 47), (1, 49),
        f"brings an aws-ofi-nccl that {_BROADCASTS}", _NEWER, _REPORTS,
    ),
    Defect(
        "etcd-v2", "etcd", "etcd", (3, 6), None,
        "has no v2 API any more, which torchrun's etcd rendezvous speaks",
        "use etcd 3.5, or the c10d rendezvous", "etcd, changelog 3.6",
    ),
)  # fmt: skip


def parse_version(text: str) -> Version:
    """Read the leading numbers of "1.18.0-aws" or "2.21.5+cuda12.4"; () where there are none."""
    numbers: list[int] = []
    for part in text.split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits or len(digits) > 9:
            break
        numbers.append(int(digits))
        if digits != part:
            break
    return tuple(numbers)


def defect_of(package: str, version: str) -> Defect | None:
    """Return what is known against a version, or None."""
    number = parse_version(version)
    for defect in DEFECTS:
        before = defect.fixed is None or number < defect.fixed
        if number and defect.package == package and defect.first <= number and before:
            return defect
    return None

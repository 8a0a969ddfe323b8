"""Versions of libraries below a training job that must not be used, each with its source and date.

`container/self_check.py` is copied into images beside it, so it takes only the standard library of
Python 3.10.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

Version = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Defect:
    """Versions of one library from `first` on and before `fixed`; without it, all newer ones."""

    id: str
    package: str
    """The name in images' tags: ofi (aws-ofi-nccl), efa (the EFA installer), etcd."""
    first: Version
    fixed: Version | None
    name: str
    """The name that people use."""
    what: str
    """What is wrong, to follow name and version in a sentence."""
    remedy: str
    source: str
    as_of: str


_BROADCASTS: Final = "hangs in large broadcasts between nodes, which all-reduce alone does not show"
_NEWER_PLUGIN: Final = "use aws-ofi-nccl 1.20.0 (EFA installer 1.49.0) or newer in the image"
_REPORTS: Final = "aws/deep-learning-containers pull requests 6551 and 6668"

DEFECTS: Final = (
    Defect(
        id="ofi-deadlock",
        package="ofi",
        first=(1, 14, 0),
        fixed=(1, 14, 1),
        name="aws-ofi-nccl",
        what="can wait for itself for ever",
        remedy=_NEWER_PLUGIN,
        source="aws/aws-ofi-nccl, release notes",
        as_of="2026-08-27",
    ),
    Defect(
        id="ofi-broadcast",
        package="ofi",
        first=(1, 18),
        fixed=(1, 20),
        name="aws-ofi-nccl",
        what=_BROADCASTS,
        remedy=_NEWER_PLUGIN,
        source=_REPORTS,
        as_of="2026-08-27",
    ),
    Defect(
        id="efa-broadcast",
        package="efa",
        first=(1, 47),
        fixed=(1, 49),
        name="the EFA installer",
        what=f"brings an aws-ofi-nccl that {_BROADCASTS}",
        remedy=_NEWER_PLUGIN,
        source=_REPORTS,
        as_of="2026-08-27",
    ),
    Defect(
        id="etcd-v2",
        package="etcd",
        first=(3, 6),
        fixed=None,
        name="etcd",
        what="has no v2 API any more, which torchrun's etcd rendezvous speaks",
        remedy="use etcd 3.5, or the c10d rendezvous",
        source="etcd, changelog 3.6",
        as_of="2026-08-27",
    ),
)


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

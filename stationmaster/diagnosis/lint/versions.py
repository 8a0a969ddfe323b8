"""Versions of libraries in the tags of images, and those with known defects. Pure.

Tags of AWS's images name what is inside: `pytorch-training:2.7.1-gpu-py312-cu128-...`,
`nccl-tests:cuda13.0.2-efa1.48.0-ofiv1.19.0-ncclv2.30.4-1-testsv2.18.3`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_NUMBER: Final = r"v?(\d{1,4}(?:\.\d{1,4}){1,3})"
_IN_TAG: Final = {
    "efa": re.compile(rf"efa[-_]?{_NUMBER}"),
    "ofi": re.compile(rf"ofi(?:-nccl)?[-_]?{_NUMBER}"),
    "nccl": re.compile(rf"nccl[-_]?{_NUMBER}"),
    "torch": re.compile(rf"(?:torch|pytorch)[-_]?{_NUMBER}"),
    "etcd": re.compile(rf"^{_NUMBER}"),
}
_LEADING: Final = re.compile(rf"{_NUMBER}")


@dataclass(frozen=True)
class Defect:
    """Versions of a library that must not be used: from `first` up to, without, `fixed`."""

    package: str
    first: str
    fixed: str
    what: str
    source: str


DEFECTS: Final = (
    Defect(
        "ofi",
        "1.14.0",
        "1.14.1",
        "aws-ofi-nccl 1.14.0 deadlocks",
        "aws/aws-ofi-nccl, release notes",
    ),
    Defect(
        "ofi",
        "1.18",
        "1.20",
        "aws-ofi-nccl 1.18 and 1.19 hang in large broadcasts",
        "aws/deep-learning-containers issues 6551 and 6668",
    ),
    Defect(
        "efa",
        "1.47",
        "1.49",
        "the EFA installers 1.47 and 1.48 carry an aws-ofi-nccl that hangs in large broadcasts",
        "aws/deep-learning-containers issues 6551 and 6668",
    ),
    Defect(
        "etcd",
        "3.6",
        "99.0",
        "etcd 3.6 has no v2 API any more, which torchrun's etcd rendezvous speaks",
        "etcd, changelog 3.6",
    ),
)


def versions_of(image: str) -> dict[str, str]:
    """Library versions by name, as far as the image's tag names them."""
    name, tag = split_image(image)
    found = {
        package: match[1]
        for package, pattern in _IN_TAG.items()
        if package != "etcd" and (match := pattern.search(tag.lower()))
    }
    last = name.rpartition("/")[2]
    leading = _LEADING.match(tag)
    if leading and last in ("pytorch", "pytorch-training", "pytorch-inference"):
        found["torch"] = leading[1]
    if leading and last == "etcd":
        found["etcd"] = leading[1]
    return found


def split_image(image: str) -> tuple[str, str]:
    """(name, tag) of an image; "" for no tag. A digest is no tag."""
    name = image.partition("@")[0]
    before, colon, tag = name.rpartition(":")
    if not colon or "/" in tag:
        return name, ""
    return before, tag


def is_older(version: str, than: str) -> bool:
    """Whether a version is before another one, number by number."""
    return _numbers(version) < _numbers(than)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def defects_of(image: str) -> list[Defect]:
    """The known defects of what an image's tag names."""
    versions = versions_of(image)
    return [
        defect
        for defect in DEFECTS
        if (version := versions.get(defect.package)) is not None
        and not is_older(version, defect.first)
        and is_older(version, defect.fixed)
    ]

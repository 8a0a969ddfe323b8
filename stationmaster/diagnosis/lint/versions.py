"""Versions of libraries in the tags of images. Pure.

Tags of AWS's images name what is inside: `pytorch-training:2.7.1-gpu-py312-cu128-...`,
`nccl-tests:cuda13.0.2-efa1.48.0-ofiv1.19.0-ncclv2.30.4-1-testsv2.18.3`.
"""

from __future__ import annotations

import re
from typing import Final

from stationmaster.domain.catalogue.defects import Defect, defect_of, parse_version

_NUMBER: Final = r"v?(\d{1,4}(?:\.\d{1,4}){1,3})"
_IN_TAG: Final = {
    "efa": re.compile(rf"efa[-_]?{_NUMBER}"),
    "ofi": re.compile(rf"ofi(?:-nccl)?[-_]?{_NUMBER}"),
    "nccl": re.compile(rf"nccl[-_]?{_NUMBER}"),
    "torch": re.compile(rf"(?:torch|pytorch)[-_]?{_NUMBER}"),
    "etcd": re.compile(rf"^{_NUMBER}"),
}
_LEADING: Final = re.compile(rf"{_NUMBER}")


def versions_of(image: str) -> dict[str, str]:
    """List library versions by name, as far as the image's tag names them."""
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
    """Split an image into (name, tag); "" for no tag. A digest is no tag."""
    name = image.partition("@")[0]
    before, colon, tag = name.rpartition(":")
    if not colon or "/" in tag:
        return name, ""
    return before, tag


def is_older(version: str, than: str) -> bool:
    """Compare two versions, number by number."""
    return parse_version(version) < parse_version(than)


def defects_of(image: str) -> list[tuple[str, Defect]]:
    """List the known defects of what an image's tag names, each with the version that has it."""
    return [
        (version, defect)
        for package, version in versions_of(image).items()
        if (defect := defect_of(package, version)) is not None
    ]

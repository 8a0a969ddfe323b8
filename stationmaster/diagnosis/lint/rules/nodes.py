"""Node groups of eksctl's ClusterConfig: disks that training images fill, ranges nothing scales in.

Source: eksctl's schema of ClusterConfig v1alpha5 (volumeSize, minSize, maxSize, withAddonPolicies).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from stationmaster.diagnosis.lint.findings import Found, found
from stationmaster.diagnosis.lint.manifest import Manifest
from stationmaster.diagnosis.lint.placeholders import is_unresolved
from stationmaster.diagnosis.lint.reading import Path
from stationmaster.diagnosis.lint.values import mapping, sequence, text, whole
from stationmaster.domain.catalogue.instances import CATALOGUE

_GROUPS: Final = ("managedNodeGroups", "nodeGroups")
_DEFAULT_GIB: Final = 80
# An image for training is 10 to 20 GB packed, twice that unpacked; caches and logs come on top.
_LEAST_GIB: Final = 100


def check(manifest: Manifest) -> Iterator[Found]:
    """Check each node group, unmanaged ones last."""
    if manifest.kind != "ClusterConfig":
        return
    for field in _GROUPS:
        for index, item in enumerate(sequence(manifest.data.get(field))):
            group, path = mapping(item), (field, index)
            name = text(group.get("name")) or f"{field}[{index}]"
            yield from _volume(group, path, name)
            yield from _range(group, path, name)


def _volume(group: Mapping[str, Any], path: Path, name: str) -> Iterator[Found]:
    types = [text(group.get("instanceType")), *map(text, sequence(group.get("instanceTypes")))]
    if not any(CATALOGUE[each].num_gpus for each in types if each in CATALOGUE):
        return
    written = group.get("volumeSize")
    if is_unresolved(written) or group.get("launchTemplate"):
        return
    size = whole(written) if written is not None else _DEFAULT_GIB
    if size is not None and size < _LEAST_GIB:
        what = f"volumeSize {size}" if written is not None else "no volumeSize, so eksctl's 80 GiB"
        yield found(
            "node-volume",
            (*path, "volumeSize"),
            f"the GPU nodes of {name} have {what}: images for training are unpacked there, beside "
            "logs and caches, and pods are evicted when it is full",
            fix="write volumeSize: 200 or more",
        )


def _range(group: Mapping[str, Any], path: Path, name: str) -> Iterator[Found]:
    least, most = whole(group.get("minSize")), whole(group.get("maxSize"))
    if least is None or most is None or least >= most:
        return
    policies = mapping(mapping(group.get("iam")).get("withAddonPolicies"))
    if policies.get("autoScaler") is True:
        return
    desired = whole(group.get("desiredCapacity"))
    stays = f"{least if desired is None else desired}"
    yield found(
        "node-range",
        (*path, "maxSize"),
        f"{name} may have {least} to {most} nodes, and nothing in this file scales it: eksctl "
        f"installs no autoscaler, and its nodes have no rights for one, so {stays} stay",
        fix="install one, e.g. Cluster Autoscaler with iam.withAddonPolicies.autoScaler: true, or "
        "write one number",
    )

"""Validating admission of pods by their images: what no node of the cluster can run is refused.

Called for every object that is created or changed. A cluster that pulls images lets every one pass;
one whose pods are processes of a machine has the programs of a few. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from stationmaster.local.cluster.api import errors
from stationmaster.local.cluster.api.resources import Object, Resource
from stationmaster.local.cluster.labels import WAIT_FOR_MASTER

_WITH_TEMPLATE = ("Deployment", "DaemonSet", "ReplicaSet", "StatefulSet", "Job")

RefusedImages = Callable[[list[str]], list[str]]
"""Of the images of a pod's containers, in their order, those that no node can run."""


def admit(resource: Resource, obj: Object, refused: RefusedImages) -> None:
    """Let an object pass unless pods are made of it that cannot run.

    Raises:
        ApiError: 403 with the images.
    """
    for pod in _pod_specs(obj):
        waits = [each for each in pod.get("initContainers") or [] if not is_emulated(each)]
        containers = [*(pod.get("containers") or []), *waits]
        images = [container.get("image", "") for container in containers]
        if found := refused(images):
            listed = ", ".join(f'"{image}"' for image in dict.fromkeys(found))
            raise errors.forbidden(
                f'{resource.key} "{obj["metadata"]["name"]}" is forbidden: this cluster cannot run '
                f"the image {listed}: its pods are processes of one machine, which has the "
                "programs of the product's own images only"
            )


def is_emulated(init_container: Mapping[str, Any]) -> bool:
    """Say whether a node does its work without the image: it waits for a job's master."""
    return init_container.get("name") == WAIT_FOR_MASTER


def _pod_specs(obj: Object) -> Iterator[Mapping[str, Any]]:
    spec = obj.get("spec") or {}
    if obj["kind"] == "Pod":
        yield spec
    elif obj["kind"] in _WITH_TEMPLATE:
        yield (spec.get("template") or {}).get("spec") or {}
    elif obj["kind"] == "PyTorchJob":
        for replica in (spec.get("pytorchReplicaSpecs") or {}).values():
            yield ((replica or {}).get("template") or {}).get("spec") or {}

"""What the linter says: findings, and the table of its rules.

Pure. A rule's id is for people to search for and to quote, so it stays when its words change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from stationmaster.diagnosis.lint.reading import Path, without_line
from stationmaster.domain.catalogue.variables import Severity

__all__ = ["RULES", "Found", "Severity", "found"]


@dataclass(frozen=True)
class Found:
    """A finding in a document."""

    rule: str
    severity: Severity
    path: Path
    message: str
    fix: str


def found(
    rule: str, path: Path, message: str, *, fix: str, severity: Severity | None = None
) -> Found:
    """Make a finding with its rule's severity, or another one."""
    return Found(rule, severity or RULES[rule][0], path, message, fix)


def shown_path(path: Path) -> str:
    """Write a path as Kubernetes does: `spec.containers[0].image`."""
    written = ""
    for part in without_line(path):
        if isinstance(part, int):
            written += f"[{part}]"
        elif "." in part or "/" in part:
            written += f"['{part}']"
        else:
            written += f".{part}" if written else part
    return written


# Rule: (severity, what it is about). In the order of docs and of nothing else.
RULES: Final[dict[str, tuple[Severity, str]]] = {
    "yaml": ("error", "text that is not YAML"),
    "yaml-too-large": ("error", "a document that is too large, too deep, or full of aliases"),
    "yaml-key-twice": ("error", "a key that stands twice in a mapping; readers keep one of both"),
    "not-an-object": ("error", "a document without apiVersion or kind"),
    "wrong-type": ("error", "a field with a value of the wrong type"),
    "unknown-field": ("error", "a field that its kind does not have at this place"),
    "template-unresolved": ("error", "a placeholder of envsubst that is still there"),
    "template-default": ("warning", "a placeholder with a default, which GNU envsubst leaves"),
    "template-eats-shell": ("warning", "a script's own variable, which envsubst empties"),
    "template-misspelt": ("error", "a placeholder of another template engine"),
    "admission": ("error", "what the operator's webhook or validation refuses"),
    "old-api": ("error", "an API that no current cluster serves"),
    "mpijob-version": ("warning", "an MPIJob v1, which the MPI operator does not know"),
    "same-object": ("error", "two objects of one kind and name"),
    "operator-variable": ("warning", "a variable that the operator overwrites"),
    "env-policy": ("warning", "a variable, or its value, that does harm or nothing"),
    "env-wanted": ("warning", "a variable that should be set on this machine"),
    "env-conflict": ("error", "variables that contradict each other or the pod"),
    "env-twice": ("warning", "a variable that is set twice; the last one counts"),
    "env-not-expanded": ("error", "$NAME in a variable, which nothing expands"),
    "nccl-log": ("warning", "a measurement of NCCL whose log does not say what it measured"),
    "library-path": ("info", "a library path without NCCL's EFA plugin"),
    "secret-in-clear": ("error", "a token or password in the manifest"),
    "image-tag": ("warning", "an image without a version"),
    "image-region": ("warning", "images, file systems and zones of different regions"),
    "image-version": ("warning", "a version in an image's tag with a known defect"),
    "instance-unknown": ("error", "an instance type that does not exist in the catalogue"),
    "instance-unnamed": ("info", "a GPU job that may land on any instance type"),
    "gpu-count": ("error", "more GPUs than a node has, or requests that differ from limits"),
    "efa-count": ("error", "more EFA interfaces than a node has"),
    "efa-partial": ("warning", "a training pod with fewer EFA interfaces than the node has"),
    "efa-without-gpu": ("error", "EFA interfaces without GPUs"),
    "host-device": ("error", "host directories or privileges in place of device plugins"),
    "host-network": ("warning", "hostNetwork, which EFA does not need"),
    "hugepages": ("error", "huge pages beyond what nodes have, or that nothing uses"),
    "memory": ("warning", "memory or CPU that no node has, or too little of it"),
    "shared-memory": ("warning", "/dev/shm that is too small, on the host, or too large"),
    "processes": ("error", "torchrun's processes against the GPUs of a pod"),
    "torchrun": ("error", "torchrun flags that contradict each other or the job"),
    "accelerate": ("warning", "accelerate launch in several pods, without what joins them"),
    "torchrun-path": ("warning", "torchrun by a path that images do not share"),
    "port": ("warning", "a rendezvous port that is not the operator's"),
    "ranks": ("warning", "RANK or WORLD_SIZE of the operator used as those of processes"),
    "replicas-differ": ("warning", "replicas of one job with different resources"),
    "elastic": ("warning", "an elastic policy that does not do what it says"),
    "restarts": ("warning", "restarts that never end, or never happen"),
    "deadline": ("warning", "a deadline that the operator does not keep"),
    "node-volume": ("warning", "GPU nodes whose disk an image for training fills"),
    "node-range": ("info", "a node group with a range of sizes that nothing scales"),
    "volume": ("error", "mounts and volumes that do not belong together"),
    "claim": ("error", "claims and volumes that do not fit"),
    "storage-not-shared": ("warning", "results or checkpoints that no other node can read"),
    "cache-on-shared-storage": ("warning", "compiler caches on a network file system"),
    "etcd-beside-job": ("warning", "an etcd that is deleted with one of its jobs"),
    "trainer-flag": ("warning", "a flag that the trainer does not have any more"),
    "model-shape": ("warning", "the shape of a published model with other numbers"),
    "tokenizer": ("warning", "a tokenizer of another model"),
    "megatron": ("warning", "Megatron flags that do not build what is loaded"),
}

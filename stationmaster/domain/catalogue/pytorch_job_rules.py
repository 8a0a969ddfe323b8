"""What the Training Operator's webhook refuses in a PyTorchJob. Pure.

Read by the linter, and by the local cluster, which answers as the operator would. Rules and wording
follow pytorchjob_webhook.go of v1.9. It takes any JSON: wrong types are left to the schema.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

CONTAINER: Final = "pytorch"
ROLES: Final = ("Master", "Worker")
MANAGERS: Final = ("kubeflow.org/training-operator", "kueue.x-k8s.io/multikueue")
PORT: Final = 23456
DNS_1035_FORM: Final = "[a-z]([-a-z0-9]*[a-z0-9])?"
DNS_1035_MESSAGE: Final = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an "
    "alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', "
    f"regex used for validation is '{DNS_1035_FORM}')"
)
_DNS_1035: Final = re.compile(rf"{DNS_1035_FORM}\Z")
_SPECS: Final = ("spec", "pytorchReplicaSpecs")

Path = tuple[str | int, ...]
Denial = tuple[Path, str]
"""A path, and a message in the webhook's words."""


def is_dns_1035(text: str) -> bool:
    """Say whether a text can be the name of a service."""
    return len(text) <= 63 and _DNS_1035.match(text) is not None


def denials(job: Mapping[str, Any]) -> list[Denial]:
    """List the reasons to refuse a PyTorchJob; empty when it is admitted."""
    name, spec = _map(job.get("metadata")).get("name", ""), _map(job.get("spec"))
    found: list[Denial] = []
    if not is_dns_1035(str(name)):
        message = f'Invalid value: "{name}": should match: {DNS_1035_MESSAGE}'
        found.append((("metadata", "name"), message))
    manager = _map(spec.get("runPolicy")).get("managedBy")
    if manager is not None and manager not in MANAGERS:
        message = f'Unsupported value: "{manager}": supported values: {_quoted(MANAGERS)}'
        found.append((("spec", "runPolicy", "managedBy"), message))
    found += _elastic_denials(spec)
    if spec.get("pytorchReplicaSpecs") is None:
        found.append((_SPECS, "Required value: must be required"))
    for role, replica in _map(spec.get("pytorchReplicaSpecs")).items():
        found += _replica_denials(role, _map(replica))
    return found


def _elastic_denials(spec: Mapping[str, Any]) -> list[Denial]:
    if spec.get("elasticPolicy") is None:
        return []
    found: list[Denial] = []
    if "Worker" not in _map(spec.get("pytorchReplicaSpecs")):
        message = "Required value: must be configured if elastic policy is used"
        found.append(((*_SPECS, "Worker"), message))
    elastic = _map(spec.get("elasticPolicy"))
    if elastic.get("nProcPerNode") is not None and spec.get("nprocPerNode") is not None:
        message = "Forbidden: must not be used with spec.nprocPerNode"
        found.append((("spec", "elasticPolicy", "nProcPerNode"), message))
    return found


def _replica_denials(role: str, replica: Mapping[str, Any]) -> list[Denial]:
    path = (*_SPECS, role)
    at = (*path, "template", "spec", "containers")
    containers = _map(_map(replica.get("template")).get("spec")).get("containers") or []
    if not isinstance(containers, list):
        containers = []
    found: list[Denial] = []
    if role not in ROLES:
        message = f'Unsupported value: "{role}": supported values: {_quoted(ROLES)}'
        found.append((path, message))
    if not containers:
        found.append((at, "Required value: must be specified"))
    for index, container in enumerate(containers):
        if not _map(container).get("image"):
            found.append(((*at, index, "image"), "Required value: must be required"))
    if not any(_map(container).get("name") == CONTAINER for container in containers):
        message = f"Required value: must have at least one container with name {CONTAINER}"
        found.append((at, message))
    replicas = replica.get("replicas")
    if role == "Master":
        if replicas != 1:
            found.append(((*path, "replicas"), "Forbidden: must be 1"))
    elif isinstance(replicas, int) and replicas < 1:
        found.append(((*path, "replicas"), "Forbidden: must be at least 1"))
    return found


def _map(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _quoted(words: tuple[str, ...]) -> str:
    return ", ".join(f'"{word}"' for word in words)

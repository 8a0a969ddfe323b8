"""Bodies in protobuf: kubectl sends what it makes itself in it, and tries nothing else on a 415.

Read are access reviews and what `kubectl create` makes that has no pods; answers are JSON. Pure.
Source: kubernetes, the files generated.proto of k8s.io/api and apimachinery.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any, Final

from stationmaster.local.cluster.api import errors
from stationmaster.local.cluster.api.resources import Object

MEDIA_TYPE: Final = "application/vnd.kubernetes.protobuf"
# Fields by number: text, [] several, {} a map, ? a boolean, * bytes, :TYPE a message.
_TYPES: Final = {
    "Envelope": "1 type:TypeMeta 2 raw* 3 contentEncoding 4 contentType",
    "TypeMeta": "1 apiVersion 2 kind",
    "Meta": "1 name 2 generateName 3 namespace 4 selfLink 5 uid 6 resourceVersion 7 generation "
    "8 creationTimestamp:Time 11 labels{} 12 annotations{} 14 finalizers[]",
    "Time": "",  # of a new object it is empty
    "Rule": "1 verbs[] 2 apiGroups[] 3 resources[] 4 resourceNames[] 5 nonResourceURLs[]",
    "Subject": "1 kind 2 apiGroup 3 name 4 namespace",
    "RoleRef": "1 apiGroup 2 kind 3 name",
    "Attributes": "1 namespace 2 verb 3 group 4 version 5 resource 6 subresource 7 name",
    "Asked": "1 resourceAttributes:Attributes",
    "Answered": "1 allowed? 2 reason 3 evaluationError 4 denied?",
    "NamespaceSpec": "1 finalizers[]",
    "NamespaceStatus": "1 phase",
    "SelfSubjectAccessReview": "1 metadata:Meta 2 spec:Asked 3 status:Answered",
    "SelfSubjectRulesReview": "1 metadata:Meta 2 spec:InNamespace 3 status:Rules",
    "InNamespace": "1 namespace",
    "Rules": "3 incomplete? 4 evaluationError",
    "SelfSubjectReview": "1 metadata:Meta 2 status:Reviewed",
    "Reviewed": "1 userInfo:Nobody",
    "Nobody": "1 username 2 uid",
    "Namespace": "1 metadata:Meta 2 spec:NamespaceSpec 3 status:NamespaceStatus",
    "ConfigMap": "1 metadata:Meta 2 data{} 3 binaryData{}* 4 immutable?",
    "Secret": "1 metadata:Meta 2 data{}* 3 type 4 stringData{} 5 immutable?",
    "ServiceAccount": "1 metadata:Meta 4 automountServiceAccountToken?",
    "Role": "1 metadata:Meta 2 rules[]:Rule",
    "RoleBinding": "1 metadata:Meta 2 subjects[]:Subject 3 roleRef:RoleRef",
}


def decode(raw: bytes) -> Object:
    """Return the object of a body.

    Raises:
        ApiError: 400 for what is no protobuf, 415 for a type or a field that is not read.
    """
    try:
        envelope = _message(raw.removeprefix(b"k8s\0"), "Envelope")
        found = envelope["type"]
        return found | _message(
            base64.b64decode(envelope.get("raw", "")), found["kind"].removeprefix("Cluster")
        )
    except (IndexError, ValueError, TypeError) as exc:
        raise errors.bad_request(f"the body of the request is no {MEDIA_TYPE}: {exc}") from exc
    except KeyError as exc:
        raise errors.unsupported_media_type(
            f"{exc.args[0]} is not read as {MEDIA_TYPE} here: write it as YAML, as with `--dry-run="
            "client -o yaml`, and pipe it into `kubectl apply -f -`"
        ) from exc


def _message(raw: bytes, name: str) -> Object:
    words = _TYPES[name].split()
    fields = dict(zip(words[::2], words[1::2], strict=True))
    result: Object = {}
    for number, value in _parts(raw):
        if number not in fields:
            raise KeyError(f"field {number} of {name}")
        field, _, inner = fields[number].partition(":")
        key = field.rstrip("[]{}?*")
        if "{}" in field:
            pair = dict(_parts(value))
            result.setdefault(key, {})[pair.get("1", b"").decode()] = _read(
                pair.get("2", b""), field, inner
            )
        elif "[]" in field:
            result.setdefault(key, []).append(_read(value, field, inner))
        elif value or "?" in field:  # others are sent without a value too
            result[key] = _read(value, field, inner)
    return {key: value for key, value in result.items() if value != {}}


def _read(value: Any, field: str, inner: str) -> Any:
    if inner:
        return _message(value, inner)
    if "?" in field:
        return bool(value)
    return base64.b64encode(value).decode() if field.endswith("*") else value.decode()


def _parts(raw: bytes) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a message by number: integers, and what has a length."""
    at = 0
    while at < len(raw):
        tag, at = _number(raw, at)
        value, at = _number(raw, at)
        if tag & 7 not in (0, 2) or (tag & 7 == 2 and at + value > len(raw)):
            raise ValueError(f"field {tag >> 3} is cut off, or of another encoding")
        yield str(tag >> 3), raw[at : at + value] if tag & 7 else value
        at += value if tag & 7 else 0


def _number(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while raw[at] > 127:
        value, at, shift = value | (raw[at] & 127) << shift, at + 1, shift + 7
    return value | raw[at] << shift, at + 1

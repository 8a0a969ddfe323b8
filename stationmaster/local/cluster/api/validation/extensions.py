"""CustomResourceDefinitions and webhook configurations.

Source: kubernetes, staging/src/k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation and
.../apiserver/schema/validation.go (structural schemas), pkg/apis/admissionregistration/validation.
Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stationmaster.local.cluster.api.resources import Object
from stationmaster.local.cluster.api.validation.problems import Problems

Schema = Mapping[str, Any]


def check_definition(obj: Object, problems: Problems) -> None:
    """Check a CustomResourceDefinition: its name, one storage version, structural schemas."""
    spec = obj.get("spec") or {}
    wanted = f"{(spec.get('names') or {}).get('plural', '')}.{spec.get('group', '')}"
    if obj["metadata"]["name"] != wanted:
        problems.invalid(
            "metadata.name", obj["metadata"]["name"], 'must be spec.names.plural+"."+spec.group'
        )
    versions = spec.get("versions") or []
    if versions and sum(1 for version in versions if version.get("storage")) != 1:
        problems.invalid(
            "spec.versions",
            [version.get("name") for version in versions],
            "must have exactly one version marked as storage version",
        )
    for index, version in enumerate(versions):
        where = f"spec.versions[{index}].schema.openAPIV3Schema"
        declared = (version.get("schema") or {}).get("openAPIV3Schema")
        if declared is None:
            problems.required(where, "schemas are required")
            continue
        if not declared.get("type"):
            problems.required(f"{where}.type", "must not be empty at the root")
        elif declared["type"] != "object":
            problems.invalid(f"{where}.type", declared["type"], "must be object at the root")
        _check_structure(declared, where, problems)


def _check_structure(declared: Schema, path: str, problems: Problems) -> None:
    """Check that each part of a structural schema has a type, and each array its items."""
    properties = declared.get("properties") or {}
    extra = declared.get("additionalProperties")
    if properties and isinstance(extra, Mapping):
        problems.forbidden(
            f"{path}.additionalProperties",
            "additionalProperties and properties are mutual exclusive",
        )
    if declared.get("type") == "array" and "items" not in declared:
        problems.required(f"{path}.items", "must be specified")
    inner = {f"{path}.properties[{name}]": each for name, each in properties.items()}
    if isinstance(extra, Mapping):
        inner[f"{path}.additionalProperties"] = extra
    if isinstance(declared.get("items"), Mapping):
        inner[f"{path}.items"] = declared["items"]
    for place, each in inner.items():
        _check_structure(each, place, problems)
        free = ("x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields")
        if each.get("type") or any(each.get(name) for name in free):
            continue
        what = "array items" if place.endswith(".items") else "object fields"
        problems.required(f"{place}.type", f"must not be empty for specified {what}")


def check_webhooks(obj: Object, problems: Problems) -> None:
    """Check a ValidatingWebhookConfiguration or a MutatingWebhookConfiguration."""
    taken: set[str] = set()
    for index, hook in enumerate(obj.get("webhooks") or []):
        where, name = f"webhooks[{index}]", hook.get("name", "")
        if name.count(".") < 2:
            problems.invalid(
                f"{where}.name",
                name,
                "should be a domain with at least three segments separated by dots",
            )
        if name in taken:
            problems.duplicate(f"{where}.name", name)
        taken.add(name)
        if not hook.get("admissionReviewVersions"):
            problems.required(f"{where}.admissionReviewVersions", "must specify one of v1, v1beta1")
        if not hook.get("sideEffects"):
            problems.required(f"{where}.sideEffects", "must specify one of None, NoneOnDryRun")
        elif hook["sideEffects"] not in ("None", "NoneOnDryRun"):
            problems.unsupported(
                f"{where}.sideEffects", hook["sideEffects"], ["None", "NoneOnDryRun"]
            )
        client = hook.get("clientConfig") or {}
        if ("url" in client) == ("service" in client):
            problems.required(f"{where}.clientConfig", "exactly one of url or service is required")

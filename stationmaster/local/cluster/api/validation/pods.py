"""Pod specifications, of pods and of templates: volumes, containers, selectors. Pure.

Called by the walk of this package. Source: kubernetes, pkg/apis/core/validation/validation.go.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from stationmaster.local.cluster.api.quantities import parse_quantity
from stationmaster.local.cluster.api.validation import names
from stationmaster.local.cluster.api.validation.problems import Problems

Spec = Mapping[str, Any]

_STANDARD_RESOURCES = {"cpu", "memory", "ephemeral-storage"}


def check_pod_spec(spec: Spec, path: str, problems: Problems) -> None:
    """Check everything of a specification that has a rule of its own."""
    volumes = _check_volumes(spec.get("volumes") or [], f"{path}.volumes", problems)
    taken: set[str] = set()
    for group in ("containers", "initContainers"):
        for index, container in enumerate(spec.get(group) or []):
            where = f"{path}.{group}[{index}]"
            name = container.get("name", "")
            if name and name in taken:
                problems.duplicate(f"{where}.name", name)
            taken.add(name)
            _check_container(container, where, problems, volumes=volumes)
    account = spec.get("serviceAccountName")
    problems.each(f"{path}.serviceAccountName", account, names.subdomain_problems)
    names.check_labels(spec.get("nodeSelector"), f"{path}.nodeSelector", problems)


def _check_volumes(volumes: Sequence[Spec], path: str, problems: Problems) -> set[str]:
    """Return the names of the volumes."""
    found: set[str] = set()
    for index, volume in enumerate(volumes):
        where, name = f"{path}[{index}]", volume.get("name", "")
        problems.each(f"{where}.name", name, names.label_problems)
        if name in found:
            problems.duplicate(f"{where}.name", name)
        found.add(name)
        for kind, field in (("secret", "secretName"), ("configMap", "name")):
            if kind in volume and not volume[kind].get(field):
                problems.required(f"{where}.{kind}.{field}")
    return found


def _check_container(
    container: Spec, path: str, problems: Problems, *, volumes: Collection[str]
) -> None:
    """Check a container, or init container, whose pod has these volumes."""
    problems.each(f"{path}.name", container.get("name"), names.label_problems)
    image = container.get("image") or ""
    if not image:
        problems.required(f"{path}.image")
    elif image != image.strip():
        problems.invalid(f"{path}.image", image, "must not have leading or trailing whitespace")
    mounts = container.get("volumeMounts") or []
    _check_mounts(mounts, f"{path}.volumeMounts", problems, volumes)
    _check_resources(container.get("resources") or {}, f"{path}.resources", problems)


def _check_mounts(
    mounts: Sequence[Spec], path: str, problems: Problems, volumes: Collection[str]
) -> None:
    taken: set[str] = set()
    for index, mount in enumerate(mounts):
        where = f"{path}[{index}]"
        name, place = mount.get("name", ""), mount.get("mountPath", "")
        if name and name not in volumes:
            problems.not_found(f"{where}.name", name)
        if place in taken:
            problems.invalid(f"{where}.mountPath", place, "must be unique")
        taken.add(place)


def _check_resources(resources: Spec, path: str, problems: Problems) -> None:
    """Limits and requests: known names, whole devices, no request above its limit."""
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for part, amounts in (("limits", limits), ("requests", requests)):
        for name, amount in amounts.items():
            _check_amount(name, amount, f"{path}.{part}[{name}]", problems)
    for name, amount in requests.items():
        limit, overcommitted = limits.get(name), name in _STANDARD_RESOURCES
        if limit is None:
            if not overcommitted:
                what = "Limit must be set for non overcommitable resources"
                problems.required(f"{path}.limits", what)
        elif overcommitted and parse_quantity(amount) > parse_quantity(limit):
            what = f"must be less than or equal to {name} limit of {limit}"
            problems.invalid(f"{path}.requests", str(amount), what)
        elif not overcommitted and parse_quantity(amount) != parse_quantity(limit):
            what = f"must be equal to {name} limit of {limit}"
            problems.invalid(f"{path}.requests", str(amount), what)


def _check_amount(name: str, amount: Any, path: str, problems: Problems) -> None:
    for message in names.qualified_problems(name):
        problems.invalid(path, name, message)
    if "/" not in name and name not in _STANDARD_RESOURCES and not name.startswith("hugepages-"):
        problems.invalid(path, name, "must be a standard resource type or fully qualified")
    if "/" in name and parse_quantity(amount).denominator != 1:
        problems.invalid(path, str(amount), "must be an integer")

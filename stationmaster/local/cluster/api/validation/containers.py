"""Containers of a pod specification: resources, ports, variables, mounts, probes.

Source: kubernetes, pkg/apis/core/validation/validation.go. Called by `pods.py`. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from stationmaster.local.cluster.api.quantities import parse_quantity
from stationmaster.local.cluster.api.validation import names
from stationmaster.local.cluster.api.validation.problems import Problems

Spec = Mapping[str, Any]

_STANDARD_RESOURCES = {"cpu", "memory", "ephemeral-storage"}
_FIELD_PATHS = {
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
}
_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
_HANDLERS = ("exec", "httpGet", "tcpSocket", "grpc")
_HOOKS = ("exec", "httpGet", "tcpSocket", "sleep")
_ENV_SOURCES = (
    "fieldRef",
    "resourceFieldRef",
    "configMapKeyRef",
    "secretKeyRef",
    "fileKeyRef",
)
_NO_OVERCOMMIT = "Limit must be set for non overcommitable resources"
_ESCALATES = "cannot set `allowPrivilegeEscalation` to false and "


def check_container(
    container: Spec, path: str, problems: Problems, *, volumes: Collection[str]
) -> None:
    """Check a container, or init container, whose pod has these volumes."""
    if name := container.get("name"):
        for message in names.label_problems(name):
            problems.invalid(f"{path}.name", name, message)
    image = container.get("image") or ""
    if not image:
        problems.required(f"{path}.image")
    elif image != image.strip():
        problems.invalid(f"{path}.image", image, "must not have leading or trailing whitespace")
    _check_ports(container.get("ports") or [], f"{path}.ports", problems)
    for index, variable in enumerate(container.get("env") or []):
        _check_variable(variable, f"{path}.env[{index}]", problems)
    for index, source in enumerate(container.get("envFrom") or []):
        _check_source(source, f"{path}.envFrom[{index}]", problems)
    mounts = container.get("volumeMounts") or []
    _check_mounts(mounts, f"{path}.volumeMounts", problems, volumes)
    for probe in _PROBES:
        if probe in container:
            _check_probe(container[probe], f"{path}.{probe}", problems)
            most = container[probe].get("successThreshold", 1)
            if probe != "readinessProbe" and most != 1:
                problems.invalid(f"{path}.{probe}.successThreshold", most, "must be 1")
    for hook, handler in (container.get("lifecycle") or {}).items():
        if hook in ("postStart", "preStop"):
            _check_handler(handler, f"{path}.lifecycle.{hook}", problems, _HOOKS)
    check_resources(container.get("resources") or {}, f"{path}.resources", problems)
    _check_security(container.get("securityContext") or {}, f"{path}.securityContext", problems)


def check_init_container(container: Spec, path: str, problems: Problems) -> None:
    """Check what only containers that stay may have."""
    if container.get("restartPolicy") == "Always":
        return
    for field in ("lifecycle", *_PROBES):
        if container.get(field):
            problems.forbidden(
                f"{path}.{field}", "may not be set for init containers without restartPolicy=Always"
            )


def _check_ports(ports: Sequence[Spec], path: str, problems: Problems) -> None:
    taken: set[str] = set()
    for index, port in enumerate(ports):
        where = f"{path}[{index}]"
        if name := port.get("name"):
            for message in names.port_name_problems(name):
                problems.invalid(f"{where}.name", name, message)
            if name in taken:
                problems.duplicate(f"{where}.name", name)
            taken.add(name)
        if port.get("containerPort") == 0:
            problems.required(f"{where}.containerPort")
        else:
            problems.between(f"{where}.containerPort", port.get("containerPort"), 1, 65535)
        if port.get("hostPort"):
            problems.between(f"{where}.hostPort", port["hostPort"], 1, 65535)


def _check_variable(variable: Spec, path: str, problems: Problems) -> None:
    name = variable.get("name", "")
    if "=" in name or not name.isprintable():
        problems.invalid(
            f"{path}.name",
            name,
            "a valid environment variable name must consist only of printable ASCII characters "
            "other than '='",
        )
    if "valueFrom" not in variable:
        return
    source, where = variable["valueFrom"], f"{path}.valueFrom"
    chosen = [each for each in _ENV_SOURCES if each in source]
    if variable.get("value"):
        problems.invalid(where, "", "may not be specified when `value` is not empty")
    if not chosen:
        listed = "`, `".join(_ENV_SOURCES[:-1])
        problems.invalid(where, "", f"must specify one of: `{listed}` or `{_ENV_SOURCES[-1]}`")
    if len(chosen) > 1:
        problems.invalid(where, "", "may not have more than one field specified at a time")
    for reference in ("configMapKeyRef", "secretKeyRef"):
        if reference in source:
            _check_reference(source[reference], f"{where}.{reference}", problems)
            key = source[reference].get("key", "")
            for message in names.key_problems(key) if key else []:
                problems.invalid(f"{where}.{reference}.key", key, message)
    field = (source.get("fieldRef") or {}).get("fieldPath", "")
    if field and not _is_field(field):
        problems.invalid(
            f"{where}.fieldRef.fieldPath",
            field,
            f"error converting fieldPath: field label not supported: {field}",
        )


def _is_field(path: str) -> bool:
    if path in _FIELD_PATHS:
        return True
    return path.endswith("']") and path.startswith(("metadata.labels['", "metadata.annotations['"))


def _check_reference(reference: Spec, path: str, problems: Problems) -> None:
    if not reference.get("name"):
        problems.required(f"{path}.name")


def _check_source(source: Spec, path: str, problems: Problems) -> None:
    chosen = [each for each in ("configMapRef", "secretRef") if each in source]
    if not chosen:
        problems.invalid(path, "", "must specify one of: `configMapRef` or `secretRef`")
    if len(chosen) > 1:
        problems.invalid(path, "", "may not have more than one field specified at a time")
    for each in chosen:
        _check_reference(source[each], f"{path}.{each}", problems)


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
        if ":" in place:
            problems.invalid(f"{where}.mountPath", place, "must not contain ':'")
        taken.add(place)
        for field in ("subPath", "subPathExpr"):
            text = mount.get(field, "")
            if text.startswith("/"):
                problems.invalid(f"{where}.{field}", text, "must be a relative path")
            if ".." in text.split("/"):
                problems.invalid(f"{where}.{field}", text, "must not contain '..'")
        if mount.get("subPath") and mount.get("subPathExpr"):
            problems.invalid(
                f"{where}.subPathExpr",
                mount["subPathExpr"],
                "subPathExpr and subPath are mutually exclusive",
            )


def _check_probe(probe: Spec, path: str, problems: Problems) -> None:
    _check_handler(probe, path, problems, _HANDLERS)
    for field in ("initialDelaySeconds", "timeoutSeconds", "periodSeconds"):
        problems.at_least(f"{path}.{field}", probe.get(field), 0)
    for field in ("successThreshold", "failureThreshold"):
        problems.at_least(f"{path}.{field}", probe.get(field), 0)


def _check_handler(handler: Spec, path: str, problems: Problems, known: tuple[str, ...]) -> None:
    chosen = [each for each in known if each in handler]
    if not chosen:
        problems.required(path, "must specify a handler type")
    for each in chosen[1:]:
        problems.forbidden(f"{path}.{each}", "may not specify more than 1 handler type")
    if "exec" in chosen and not (handler["exec"] or {}).get("command"):
        problems.required(f"{path}.exec.command")
    for each in ("httpGet", "tcpSocket"):
        port = (handler.get(each) or {}).get("port")
        if isinstance(port, int):
            problems.between(f"{path}.{each}.port", port, 1, 65535)
        elif port:
            for message in names.port_name_problems(port):
                problems.invalid(f"{path}.{each}.port", port, message)


def check_resources(resources: Spec, path: str, problems: Problems) -> None:
    """Limits and requests: known names, whole devices, no request above its limit."""
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for part, amounts in (("limits", limits), ("requests", requests)):
        for name, amount in amounts.items():
            _check_amount(name, amount, f"{path}.{part}[{name}]", problems)
    for name, amount in requests.items():
        limit, overcommitted = limits.get(name), name in _STANDARD_RESOURCES
        if limit is None:
            if not overcommitted:
                problems.required(f"{path}.limits", _NO_OVERCOMMIT)
        elif overcommitted and parse_quantity(amount) > parse_quantity(limit):
            problems.invalid(
                f"{path}.requests",
                str(amount),
                f"must be less than or equal to {name} limit of {limit}",
            )
        elif not overcommitted and parse_quantity(amount) != parse_quantity(limit):
            problems.invalid(
                f"{path}.requests", str(amount), f"must be equal to {name} limit of {limit}"
            )


def _check_amount(name: str, amount: Any, path: str, problems: Problems) -> None:
    for message in names.qualified_problems(name):
        problems.invalid(path, name, message)
    if "/" not in name and name not in _STANDARD_RESOURCES and not name.startswith("hugepages-"):
        problems.invalid(path, name, "must be a standard resource type or fully qualified")
        problems.invalid(path, name, "must be a standard resource for containers")
    quantity = parse_quantity(amount)
    if quantity < 0:
        problems.invalid(path, str(amount), "must be greater than or equal to 0")
    if "/" in name and quantity.denominator != 1:
        problems.invalid(path, str(amount), "must be an integer")


def _check_security(security: Spec, path: str, problems: Problems) -> None:
    for field in ("runAsUser", "runAsGroup"):
        problems.between(f"{path}.{field}", security.get(field), 0, 2147483647)
    if security.get("allowPrivilegeEscalation") is not False:
        return
    if security.get("privileged"):
        problems.invalid(path, security, f"{_ESCALATES}`privileged` to true")
    if "SYS_ADMIN" in ((security.get("capabilities") or {}).get("add") or []):
        problems.invalid(path, security, f"{_ESCALATES}`capabilities.Add` CAP_SYS_ADMIN")

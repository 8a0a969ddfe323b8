"""Services.

Source: kubernetes, pkg/apis/core/validation/validation.go, ValidateService. Pure.
"""

from __future__ import annotations

import ipaddress

from stationmaster.local.cluster.api.resources import Object
from stationmaster.local.cluster.api.validation import names
from stationmaster.local.cluster.api.validation.problems import Problems


def check_service(obj: Object, problems: Problems) -> None:
    """Ports, addresses and the selector of a Service."""
    spec = obj.get("spec") or {}
    ports = spec.get("ports") or []
    headless = spec.get("clusterIP") == "None"
    if not ports and not headless and spec.get("type") != "ExternalName":
        problems.required("spec.ports")
    if spec.get("type") == "ExternalName" and not spec.get("externalName"):
        problems.required("spec.externalName")
    taken: set[str] = set()
    for index, port in enumerate(ports):
        where, name = f"spec.ports[{index}]", port.get("name", "")
        if not name and len(ports) > 1:
            problems.required(f"{where}.name")
        for message in names.label_problems(name) if name else []:
            problems.invalid(f"{where}.name", name, message)
        if name and name in taken:
            problems.duplicate(f"{where}.name", name)
        taken.add(name)
        problems.between(f"{where}.port", port.get("port"), 1, 65535)
        target = port.get("targetPort")
        if isinstance(target, int):
            problems.between(f"{where}.targetPort", target, 1, 65535)
        elif target:
            for message in names.port_name_problems(target):
                problems.invalid(f"{where}.targetPort", target, message)
    names.check_labels(spec.get("selector"), "spec.selector", problems)
    address = spec.get("clusterIP")
    if address and not headless and not _is_address(address):
        problems.invalid(
            "spec.clusterIPs[0]",
            address,
            "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
        )


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True

"""Pod specifications, of pods and of templates.

Called by the walk of this package. Pure.
Source: kubernetes, pkg/apis/core/validation/validation.go.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stationmaster.local.cluster.api.quantities import parse_quantity
from stationmaster.local.cluster.api.validation import names
from stationmaster.local.cluster.api.validation.containers import (
    check_container,
    check_init_container,
)
from stationmaster.local.cluster.api.validation.problems import Problems

Spec = Mapping[str, Any]


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
            check_container(container, where, problems, volumes=volumes)
            if group == "initContainers":
                check_init_container(container, where, problems)
    problems.between(
        f"{path}.activeDeadlineSeconds", spec.get("activeDeadlineSeconds"), 1, 2147483647
    )
    if account := spec.get("serviceAccountName"):
        for message in names.subdomain_problems(account):
            problems.invalid(f"{path}.serviceAccountName", account, message)
    for field in ("hostname", "subdomain"):
        if text := spec.get(field):
            for message in names.label_problems(text):
                problems.invalid(f"{path}.{field}", text, message)
    names.check_labels(spec.get("nodeSelector"), f"{path}.nodeSelector", problems)
    for index, toleration in enumerate(spec.get("tolerations") or []):
        _check_toleration(toleration, f"{path}.tolerations[{index}]", problems)
    _check_security(spec.get("securityContext") or {}, f"{path}.securityContext", problems)


def _check_security(security: Spec, path: str, problems: Problems) -> None:
    for field in ("runAsUser", "runAsGroup", "fsGroup"):
        problems.between(f"{path}.{field}", security.get(field), 0, 2147483647)
    for index, group in enumerate(security.get("supplementalGroups") or []):
        problems.between(f"{path}.supplementalGroups[{index}]", group, 0, 2147483647)


def _check_volumes(volumes: Sequence[Spec], path: str, problems: Problems) -> set[str]:
    """Return the names of the volumes."""
    found: set[str] = set()
    for index, volume in enumerate(volumes):
        where, name = f"{path}[{index}]", volume.get("name", "")
        for message in names.label_problems(name) if name else []:
            problems.invalid(f"{where}.name", name, message)
        if name in found:
            problems.duplicate(f"{where}.name", name)
        found.add(name)
        kinds = [kind for kind in volume if kind != "name"]
        for kind in kinds[1:]:
            problems.forbidden(f"{where}.{kind}", "may not specify more than 1 volume type")
        _check_source(volume, where, problems)
    return found


def _check_source(volume: Spec, path: str, problems: Problems) -> None:
    if "secret" in volume and not volume["secret"].get("secretName"):
        problems.required(f"{path}.secret.secretName")
    if "configMap" in volume and not volume["configMap"].get("name"):
        problems.required(f"{path}.configMap.name")
    size = (volume.get("emptyDir") or {}).get("sizeLimit")
    if size is not None and parse_quantity(size) < 0:
        problems.forbidden(
            f"{path}.emptyDir.sizeLimit", "SizeLimit field must be a valid resource quantity"
        )
    for kind in ("secret", "configMap"):
        for index, item in enumerate((volume.get(kind) or {}).get("items") or []):
            place = item.get("path", "")
            if place.startswith("/"):
                problems.invalid(
                    f"{path}.{kind}.items[{index}].path", place, "must be a relative path"
                )


def _check_toleration(toleration: Spec, path: str, problems: Problems) -> None:
    key, operator = toleration.get("key", ""), toleration.get("operator", "Equal")
    if key:
        for message in names.qualified_problems(key):
            problems.invalid(f"{path}.key", key, message)
    elif operator != "Exists":
        problems.invalid(
            f"{path}.operator",
            operator,
            'operator must be Exists when `key` is empty, which means "match all values and all '
            'keys"',
        )
    if operator == "Exists" and toleration.get("value"):
        problems.invalid(
            f"{path}.operator", toleration, "value must be empty when `operator` is 'Exists'"
        )
    if "tolerationSeconds" in toleration and toleration.get("effect") != "NoExecute":
        problems.invalid(
            f"{path}.effect",
            toleration.get("effect", ""),
            "effect must be 'NoExecute' when `tolerationSeconds` is set",
        )


def check_node_term(term: Spec, path: str, problems: Problems) -> None:
    """Check the expressions of a node selector term."""
    for group in ("matchExpressions", "matchFields"):
        for index, each in enumerate(term.get(group) or []):
            where = f"{path}.{group}[{index}]"
            if group == "matchExpressions":
                check_expression(each, where, problems, numbers=True)
            elif each.get("key") != "metadata.name":
                problems.invalid(
                    f"{where}.key", each.get("key", ""), "not a valid field selector key"
                )


def check_selector(selector: Spec, path: str, problems: Problems) -> None:
    """Check a label selector."""
    names.check_labels(selector.get("matchLabels"), f"{path}.matchLabels", problems)
    for index, each in enumerate(selector.get("matchExpressions") or []):
        check_expression(each, f"{path}.matchExpressions[{index}]", problems)


def check_expression(term: Spec, path: str, problems: Problems, *, numbers: bool = False) -> None:
    """Check one expression about labels; `numbers`: Gt and Lt are allowed too."""
    operator, values = term.get("operator", ""), term.get("values") or []
    key = term.get("key", "")
    if operator in ("In", "NotIn"):
        if not values:
            problems.required(
                f"{path}.values", "must be specified when `operator` is 'In' or 'NotIn'"
            )
    elif operator in ("Exists", "DoesNotExist"):
        if values:
            problems.forbidden(
                f"{path}.values",
                "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
            )
    elif numbers and operator in ("Gt", "Lt"):
        if len(values) != 1:
            problems.required(
                f"{path}.values", "must be specified single value when `operator` is 'Lt' or 'Gt'"
            )
    elif operator:
        problems.invalid(f"{path}.operator", operator, "not a valid selector operator")
    for message in names.qualified_problems(key) if key else []:
        problems.invalid(f"{path}.key", key, message)
    if not numbers:
        for index, value in enumerate(values):
            for message in names.value_problems(value):
                problems.invalid(f"{path}.values[{index}]", value, message)

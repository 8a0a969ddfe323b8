"""Label selectors, field selectors and dotted paths: who matches a query.

Used by lists, watches, controllers and tables. Pure functions over objects.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from stationmaster.local.cluster.api import errors
from stationmaster.local.cluster.api.resources import Object

Predicate = Callable[[Object], bool]

_NAME = r"[A-Za-z0-9](?:[-\w.]*[A-Za-z0-9])?"
_LIST = rf"(?:{_NAME})?\s*(?:,\s*(?:{_NAME})?\s*)*"
_TERM = re.compile(
    rf"(!)?\s*((?:[-a-z0-9.]+/)?{_NAME})"
    rf"(?:\s+(in|notin)\s*\(\s*({_LIST})\)|\s*(!=|==?)\s*({_NAME})?)?",
    re.ASCII,
)
_SPLIT = re.compile(r",(?![^(]*\))")

# What a field selector may name besides names. Source: kubernetes, pkg/apis/core/v1/conversion.go.
_INVOLVED = [f"involvedObject.{name}" for name in ("kind", "namespace", "name", "uid", "fieldPath")]
_FIELDS: dict[str, list[str]] = {
    "pods": ["spec.nodeName", "spec.restartPolicy", "spec.serviceAccountName", "status.phase"],
    "namespaces": ["status.phase"],
    "secrets": ["type"],
    "events": [*_INVOLVED, "reason", "type"],
}


def value_at(obj: Any, path: str) -> Any:
    """Return the value under a dotted path (`status.conditions[-1:].type`), or None."""
    current = obj
    for part in path.strip(".").split("."):
        name, _, index = part.partition("[")
        if name:
            current = current.get(name) if isinstance(current, Mapping) else None
        if index and isinstance(current, list):
            position = int(index.rstrip("]").rstrip(":"))
            current = current[position] if -len(current) <= position < len(current) else None
        if current is None:
            return None
    return current


def match_labels(labels: Mapping[str, str] | None, wanted: Mapping[str, str] | None) -> bool:
    present = labels or {}
    return all(present.get(name) == value for name, value in (wanted or {}).items())


def match_expression(labels: Mapping[str, str], term: Mapping[str, Any]) -> bool:
    """Return one `matchExpressions` entry of a label selector or node selector term."""
    value = labels.get(term["key"])
    values = term.get("values") or []
    match term["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case operator:
            raise errors.bad_request(f'"{operator}" is not a valid label selector operator')


def match_selector(labels: Mapping[str, str] | None, selector: Mapping[str, Any] | None) -> bool:
    """Match a LabelSelector object (matchLabels, matchExpressions) against a set of labels."""
    present = labels or {}
    chosen = selector or {}
    return match_labels(present, chosen.get("matchLabels")) and all(
        match_expression(present, term) for term in chosen.get("matchExpressions") or []
    )


def parse_label_selector(text: str) -> Predicate:
    """Read `a=b,c!=d,e in (x,y),f,!g` as a predicate on objects."""
    terms = [_expression(term.strip()) for term in _SPLIT.split(text)] if text.strip() else []

    def matches(obj: Object) -> bool:
        labels = obj["metadata"].get("labels") or {}
        return all(match_expression(labels, term) for term in terms)

    return matches


def _expression(term: str) -> dict[str, Any]:
    """Return a term as an entry of `matchExpressions`.

    Raises:
        ApiError: 400. Source: apimachinery, pkg/labels/selector.go.
    """
    read = _TERM.fullmatch(term)
    if read is None or (read[1] and (read[3] or read[5])):
        expected = "!, identifier, or 'end of string'"
        raise errors.bad_request(
            f"unable to parse requirement: found '{term}', expected: {expected}"
        )
    _, key, in_set, listed, sign, value = read.groups(default="")
    values = [each.strip() for each in (listed or value).split(",")]
    if in_set or sign:
        operator = "NotIn" if in_set == "notin" or sign == "!=" else "In"
        return {"key": key, "operator": operator, "values": values}
    return {"key": key, "operator": "DoesNotExist" if read[1] else "Exists"}


def parse_field_selector(text: str, resource: str) -> Predicate:
    """Read `metadata.name=x,status.phase!=Running` as a predicate on objects of a type."""
    terms = []
    for term in filter(None, text.split(",")):
        negated = "!=" in term
        path, sign, value = term.partition("!=" if negated else "=")
        value = value.removeprefix("=")
        if not sign:
            raise errors.bad_request(f"invalid selector: '{text}'; can't understand '{term}'")
        if path not in ("metadata.name", "metadata.namespace", *_FIELDS.get(resource, ())):
            known = '"metadata.name", "metadata.namespace"'
            raise errors.bad_request(f'"{path}" is not a known field selector: only {known}')
        terms.append((path, value, negated))

    def matches(obj: Object) -> bool:
        return all(
            (str(value_at(obj, path) or "") == value) is not negated
            for path, value, negated in terms
        )

    return matches


def both(first: Predicate | None, second: Predicate | None) -> Predicate | None:
    """Return the conjunction, None when nothing is asked."""
    if first is None or second is None:
        return first or second
    return lambda obj: first(obj) and second(obj)

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

_SET_TERM = re.compile(r"^\s*(\S+)\s+(in|notin)\s+\(([^)]*)\)\s*$")
_COMPARED = re.compile(r"^([^!=\s]+)\s*(!=|==?)\s*(.*)$")
_SPLIT = re.compile(r",(?![^(]*\))")

_FIELDS = {
    "metadata.name",
    "metadata.namespace",
    "spec.nodeName",
    "status.phase",
    "involvedObject.kind",
    "involvedObject.namespace",
    "involvedObject.name",
    "involvedObject.uid",
    "involvedObject.fieldPath",
    "reason",
    "type",
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
    terms = [_expression(term.strip()) for term in _SPLIT.split(text) if term.strip()]

    def matches(obj: Object) -> bool:
        labels = obj["metadata"].get("labels") or {}
        return all(match_expression(labels, term) for term in terms)

    return matches


def _expression(term: str) -> dict[str, Any]:
    """Return a term as an entry of `matchExpressions`."""
    if in_set := _SET_TERM.match(term):
        key, operator, listed = in_set.groups()
        values = [value.strip() for value in listed.split(",")]
        return {"key": key, "operator": "In" if operator == "in" else "NotIn", "values": values}
    if compared := _COMPARED.match(term):
        key, sign, value = compared.groups()
        return {"key": key, "operator": "NotIn" if sign == "!=" else "In", "values": [value]}
    name = term.removeprefix("!")
    return {"key": name, "operator": "Exists" if name == term else "DoesNotExist"}


def parse_field_selector(text: str) -> Predicate:
    """Read `metadata.name=x,status.phase!=Running` as a predicate on objects."""
    terms = []
    for term in filter(None, text.split(",")):
        negated = "!=" in term
        path, _, value = term.partition("!=" if negated else "=")
        path, value = path.strip(), value.lstrip("=").strip()
        if path not in _FIELDS:
            raise errors.bad_request(f'field label not supported: "{path}"')
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

"""Fields that a kind does not have, or that stand in another place: the API server refuses them.

`fields.json` has the fields of each type, from the schemas that it names under "sources": a type's
name, "{" and a name for a mapping of such values, "*" or "" for what is not looked into.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path as File
from typing import Any, Final

from stationmaster.diagnosis.lint.findings import Found, found, shown_path
from stationmaster.diagnosis.lint.manifest import Manifest
from stationmaster.diagnosis.lint.placeholders import is_unresolved
from stationmaster.diagnosis.lint.reading import Path
from stationmaster.domain.spelling import nearest

_FILE: Final = File(__file__).parents[1] / "fields.json"
_Types = Mapping[str, Mapping[str, str]]


@cache
def _known() -> tuple[Mapping[str, str], _Types]:
    """Read the kinds by apiVersion and name, and the types."""
    data = json.loads(_FILE.read_text())
    return data["kinds"], data["types"]


def check(manifest: Manifest) -> Iterator[Found]:
    """Yield each field that the object's kind does not know at its place."""
    kinds, _ = _known()
    name = kinds.get(f"{manifest.data.get('apiVersion')} {manifest.kind}")
    if name is not None:
        yield from _look(manifest.data, name, ())


def _look(value: Any, name: str, path: Path) -> Iterator[Found]:
    _, types = _known()
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _look(item, name, (*path, index))
    elif isinstance(value, Mapping) and name.startswith("{"):
        for key, item in value.items():
            yield from _look(item, name[1:], (*path, key))
    elif isinstance(value, Mapping) and name in types:
        for key, item in value.items():
            if key in types[name]:
                yield from _look(item, types[name][key], (*path, key))
            elif not is_unresolved(key):
                yield _unknown(key, name, path)


def _unknown(key: str, name: str, path: Path) -> Found:
    _, types = _known()
    where = shown_path(path) or "the object"
    inside = [
        f"{field}[]" if field.endswith("s") else field
        for field, kind in types[name].items()
        if key in types.get(kind.lstrip("{"), {}) and field not in ("metadata", "status")
    ]
    near = nearest(key, types[name])
    if near:
        fix = f"write {near}"
    elif inside:
        fix = f"it belongs into {inside[0]}; move it there"
    else:
        fix = "remove it, or move it to where its kind has it: kubectl explain"
    return found("unknown-field", (*path, key), f'{where} has no field "{key}"', fix=fix)

"""Placeholders that were not filled in, line by line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from stationmaster.diagnosis.lint.findings import Found, found
from stationmaster.diagnosis.lint.manifest import Manifest
from stationmaster.diagnosis.lint.placeholders import placeholders
from stationmaster.diagnosis.lint.reading import Path
from stationmaster.diagnosis.lint.rules.environment import is_own_reference

_ANGLED: Final = re.compile(r"<[A-Za-z][\w .:-]{0,60}>")
_OTHER_ENGINE: Final = re.compile(r"\{\{[^{}\n]*\}\}")
# Kinds whose data is scripts and files, in which a dollar sign is their own.
_ANNOTATIONS: Final = ("metadata", "annotations")
_DATA_KINDS: Final = ("ConfigMap", "Secret")


@dataclass(frozen=True)
class _Use:
    path: Path
    name: str
    text: str
    default: str
    in_script: bool


def check(manifest: Manifest) -> Iterator[Found]:
    scripts = {path for pod in manifest.pods for each in pod.containers for path, _ in each.scripts}
    references = _references(manifest)
    uses = [
        _Use(path, each.name, each.text, each.default, _is_script(manifest, path, scripts))
        for path, value in _texts(manifest.document.data, ())
        for each in placeholders(value)
    ]
    yield from _angled(manifest, scripts)
    outside = [use for use in uses if not use.in_script and (use.path, use.name) not in references]
    for use in outside:
        yield _unresolved(use)
    if not outside:
        return
    filled = {use.name for use in outside}
    seen: set[tuple[Path, str]] = set()
    for use in uses:
        if use.in_script and use.name not in filled and (use.path, use.name) not in seen:
            seen.add((use.path, use.name))
            yield _eaten(use, sorted(filled))


def _angled(manifest: Manifest, scripts: set[Path]) -> Iterator[Found]:
    """Find what the writer of an example left for the reader: `<your-registry>/trainer`."""
    for path, value in _texts(manifest.document.data, ()):
        match = _ANGLED.search(value)
        if match is None or _is_script(manifest, path, scripts) or path[:2] == _ANNOTATIONS:
            continue
        if " " not in value.strip() or value.strip() == match[0]:
            fix = "write the value in its place"
            yield found("template-unresolved", path, f"{match[0]} is not filled in", fix=fix)


def _references(manifest: Manifest) -> set[tuple[Path, str]]:
    """List uses of a variable in another one's value, which rules on variables report."""
    return {
        ((*variable.path, "value"), each.name)
        for pod in manifest.pods
        for container in pod.containers
        for variable in container.env
        for each in placeholders(variable.value or "")
        if is_own_reference(variable.name, each.name, container.names)
    }


def _is_script(manifest: Manifest, path: Path, scripts: set[Path]) -> bool:
    if manifest.kind == "ClusterConfig":  # eksctl runs them on the node
        return any(str(part).endswith(("BootstrapCommand", "BootstrapCommands")) for part in path)
    return path in scripts or (
        manifest.kind in _DATA_KINDS and path[:1] in (("data",), ("stringData",))
    )


def _texts(value: Any, path: Path) -> Iterator[tuple[Path, str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _texts(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _texts(item, (*path, index))


def _unresolved(use: _Use) -> Found:
    if use.default:
        return found(
            "template-default",
            use.path,
            f"{use.text} has a default, which GNU envsubst does not read: it stays as it is",
            fix=f"write ${{{use.name}}}, and set the default where envsubst is called",
            severity="error",
        )
    return found(
        "template-unresolved",
        use.path,
        f"{use.text} is not filled in",
        fix=f"export {use.name}=..., then pipe the file through envsubst '${use.name}'",
    )


def _eaten(use: _Use, filled: list[str]) -> Found:
    listed = " ".join(f"${name}" for name in filled)
    return found(
        "template-eats-shell",
        use.path,
        f"{use.text} is the script's own variable, and envsubst empties it when it fills the rest "
        "in",
        fix=f"name what is to be filled in: envsubst '{listed}'",
    )


def other_engines(manifest: Manifest) -> Iterator[Found]:
    """Find `{{ ... }}` of Helm or Jinja, which nothing here fills in."""
    for path, value in _texts(manifest.document.data, ()):
        match = _OTHER_ENGINE.search(value)
        if match is not None and manifest.kind not in _DATA_KINDS:
            yield found(
                "template-misspelt",
                path,
                f"{match[0]} is a placeholder of Helm or Jinja",
                fix="render the chart first: helm template ... | stationmaster lint -",
            )

"""Files in, findings out. Pure: whoever calls reads the files.

A file is a name and a text. Findings come in the order of files and lines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from stationmaster.diagnosis.lint.findings import Found, Severity, found, shown_path
from stationmaster.diagnosis.lint.manifest import Manifest
from stationmaster.diagnosis.lint.reading import Document, read
from stationmaster.diagnosis.lint.rules import (
    across,
    devices,
    environment,
    fields,
    nodes,
    objects,
    programs,
    running,
    security,
    shared_volumes,
    templates,
)
from stationmaster.diagnosis.lint.values import mapping
from stationmaster.domain.catalogue.instances import InstanceType
from stationmaster.domain.frozen import Frozen

_CHECKS: Final = (
    templates.check,
    templates.other_engines,
    fields.check,
    objects.check,
    environment.check,
    devices.check,
    nodes.check,
    shared_volumes.check,
    running.check,
    security.check,
    programs.check,
)
_OF_PATCHES: Final = (templates.check, templates.other_engines, fields.check, security.check)
_MAX_MESSAGE: Final = 600
_MOST_OF_A_RULE: Final = 50
"""The most findings of one rule in one file."""
_FAULTS: Final = {
    "syntax": ("yaml", "correct the line; indentation is with spaces"),
    "key-twice": ("yaml-key-twice", "keep one of both"),
    "placeholder": ("template-unresolved", "export its value, and pipe the file through envsubst"),
    "too-large": ("yaml-too-large", "split it, and write repeated parts out"),
}


class Finding(Frozen):
    """A finding, as `stationmaster lint --json` shows it; `line` counts from 1."""

    rule: str
    severity: Severity
    file: str
    line: int
    path: str
    message: str
    fix: str


class Linted(Frozen):
    """The result: findings, and how many objects were looked at."""

    findings: list[Finding]
    num_objects: int
    without_objects: list[str]
    """The files without a Kubernetes object."""


def lint(files: Iterable[tuple[str, str]], *, instance: InstanceType | None = None) -> Linted:
    """Lint every document of (name, text) files.

    `instance` is the type of nodes where a manifest does not say.
    """
    manifests: list[Manifest] = []
    findings: list[Finding] = []
    empty: list[str] = []
    for name, text in files:
        of_file = [Manifest(each, instance, name) for each in read(text)]
        real = [each for each in of_file if _is_object(each)]
        if not real:
            empty.append(name)
        manifests += real
        for each in of_file:
            findings += _of_document(each)
    for manifest in manifests:
        checks = _OF_PATCHES if manifest.is_patch else _CHECKS
        said = [each for check in checks for each in check(manifest)]
        findings += [_finding(manifest, each) for each in _once(manifest, said)]
    findings += [_finding(manifest, each) for manifest, each in across.check_all(manifests)]
    order = {name: index for index, name in enumerate(dict.fromkeys(f.file for f in findings))}
    unique = sorted(dict.fromkeys(findings), key=lambda each: (order[each.file], each.line))
    return Linted(findings=_shortened(unique), num_objects=len(manifests), without_objects=empty)


def _once(manifest: Manifest, said: Sequence[Found]) -> Iterator[Found]:
    """Yield a finding once that several roles of a job have alike, e.g. Master and Worker."""
    seen: dict[tuple[object, ...], str] = {}
    for each in said:
        is_of_role = len(each.path) > 3 and each.path[1] == manifest.replica_field
        role = str(each.path[2]) if is_of_role else ""
        place = (*each.path[:2], *each.path[3:]) if role else each.path
        key = (each.rule, place, each.message.replace(role, "") if role else each.message)
        if seen.setdefault(key, role) == role:
            yield each


def _shortened(findings: Sequence[Finding]) -> list[Finding]:
    """Keep the first findings of each rule in each file; the last of them says how many follow."""
    counts = Counter((each.file, each.rule) for each in findings)
    taken: Counter[tuple[str, str]] = Counter()
    kept = []
    for each in findings:
        key = (each.file, each.rule)
        taken[key] += 1
        more = counts[key] - _MOST_OF_A_RULE
        if taken[key] == _MOST_OF_A_RULE and more > 0:
            message = f"{each.message} (and {more} more in this file)"
            kept.append(each.model_copy(update={"message": message}))
        elif taken[key] <= _MOST_OF_A_RULE:
            kept.append(each)
    return kept


def _is_object(manifest: Manifest) -> bool:
    return bool(manifest.kind) and bool(manifest.data.get("apiVersion"))


def _of_document(manifest: Manifest) -> Iterator[Finding]:
    document: Document = manifest.document
    for fault in document.faults:
        rule, fix = _FAULTS[fault.kind]
        said = found(rule, fault.path, fault.message, fix=fix)
        yield _finding(manifest, said).model_copy(update={"line": fault.line})
    if document.data is not None and not _is_object(manifest) and not _is_json_patch(document.data):
        missing = [key for key in ("apiVersion", "kind") if not mapping(document.data).get(key)]
        message = f"no Kubernetes object: {' and '.join(missing)} missing"
        fix = "add them, or leave the document out"
        yield _finding(manifest, found("not-an-object", (), message, fix=fix))


def _is_json_patch(data: object) -> bool:
    """Say whether it is a list of changes in the manner of RFC 6902."""
    return isinstance(data, list) and all({"op", "path"} <= mapping(each).keys() for each in data)


def _finding(manifest: Manifest, said: Found) -> Finding:
    return Finding(
        rule=said.rule,
        severity=said.severity,
        file=manifest.file,
        line=manifest.document.line(said.path),
        path=shown_path(said.path),
        message=_printable(said.message),
        fix=_printable(said.fix),
    )


def _printable(text: str) -> str:
    """Make one line without control characters, whatever the manifest has."""
    line = "".join(each if each.isprintable() else " " for each in text)
    return line if len(line) <= _MAX_MESSAGE else f"{line[:_MAX_MESSAGE]}..."

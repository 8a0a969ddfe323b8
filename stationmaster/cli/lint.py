"""`stationmaster lint FILE...`: reads manifests, and shows what the linter says of them.

Directories stand for the YAML and JSON files below them, `-` for what is piped in.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from stationmaster.cli.input_files import STDIN, opened
from stationmaster.diagnosis.lint import Finding, Linted, lint
from stationmaster.diagnosis.lint.reading import MAX_BYTES
from stationmaster.domain.catalogue.instances import get_instance
from stationmaster.domain.errors import BadCommand
from stationmaster.domain.sizes import counted

_ENDINGS: Final = (".yaml", ".yml", ".json", ".yaml-template", ".yml-template")
_MAX_FILES: Final = 2000
_SHOWN_STDIN: Final = "<stdin>"
_LOOKS_LIKE_ONE: Final = re.compile(r"^[ \t]*[\"']?(apiVersion|kind)[\"']?\s*:", re.MULTILINE)


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("lint", help="what is wrong in manifests of training jobs")
    parser.add_argument(
        "files", nargs="+", metavar="FILE", help="a file, a folder, or - for what is piped in"
    )
    parser.add_argument(
        "--instance", metavar="TYPE", help="what the nodes are, where a manifest does not say"
    )
    parser.add_argument("--json", action="store_true")
    parser.set_defaults(run=run_lint)


def run_lint(arguments: argparse.Namespace) -> int:
    """Lint the files; 1 where something is an error, else 0.

    Raises:
        UserError: a file that cannot be read or has no object, or an unknown instance type.
    """
    instance = get_instance(arguments.instance) if arguments.instance is not None else None
    named = [str(name) for name in arguments.files]
    files = [(name, _read(name)) for name in _expanded(named)]
    linted = lint(files, instance=instance)
    _check_manifests(named, dict(files), linted)
    if arguments.json:
        print(json.dumps([_as_json(finding) for finding in linted.findings], indent=2))
    else:
        _print(linted, num_files=len(files))
    return int(any(finding.severity == "error" for finding in linted.findings))


def _expanded(names: Sequence[str]) -> Iterator[str]:
    """Yield the files to read, each once, those of a folder by name."""
    for name in dict.fromkeys(names):
        if name == STDIN or not os.path.isdir(name):
            yield name
            continue
        found = [
            str(path)
            for path in sorted(Path(name).rglob("*"))
            if path.name.endswith(_ENDINGS) and path.is_file()
        ]
        if not found:
            raise BadCommand(f'no file below "{name}" ends in {", ".join(_ENDINGS)}')
        if len(found) > _MAX_FILES:
            raise BadCommand(f'{len(found)} files below "{name}"; name a folder with fewer')
        yield from found


def _read(name: str) -> str:
    with opened(name, advice="give a manifest, or a folder with some") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise BadCommand(f'"{name}" is larger than {MAX_BYTES // 1024**2} MiB; no manifest is')
    try:
        return content.decode()
    except UnicodeDecodeError as exc:
        raise BadCommand(f'"{name}" is no text: byte {exc.start} is not UTF-8') from None


def _check_manifests(named: Sequence[str], files: dict[str, str], linted: Linted) -> None:
    """Refuse a named file that is not a manifest; in a folder, others may lie beside manifests."""
    for name in linted.without_objects:
        if name not in named or _LOOKS_LIKE_ONE.search(files[name]):
            continue
        broken = [each for each in linted.findings if each.file == name and each.rule == "yaml"]
        shown = "what is piped in" if name == STDIN else f'"{name}"'
        if broken:
            raise BadCommand(f"{shown} is no manifest: line {broken[0].line}: {broken[0].message}")
        raise BadCommand(f"{shown} has no Kubernetes object; one starts with apiVersion: and kind:")


def _as_json(finding: Finding) -> dict[str, object]:
    first = ("rule", "severity", "path", "message", "fix")
    values = finding.model_dump()
    return {
        name: values[name] for name in (*first, *(each for each in values if each not in first))
    }


def _print(linted: Linted, *, num_files: int) -> None:
    for finding in linted.findings:
        file = _SHOWN_STDIN if finding.file == STDIN else finding.file
        print(f"{file}:{finding.line}: {finding.severity} {finding.rule}  {finding.message}")
        print(f"    fix: {finding.fix}")
    counts = Counter(str(finding.severity) for finding in linted.findings)
    shown = [
        counted(counts[severity], word)
        for severity, word in (("error", "error"), ("warning", "warning"), ("info", "note"))
        if counts[severity]
    ]
    where = f"{counted(linted.num_objects, 'object')} of {counted(num_files, 'file')}"
    print(f"{', '.join(shown) or 'nothing found'} in {where}")

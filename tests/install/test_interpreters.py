"""Which Pythons the fast tests run with."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest

from stationmaster.install.interpreters import (
    SUPPORTED,
    find_python,
    others_than,
    places,
    version_of,
)


def program(folder: Path, name: str, script: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_python_that_does_not_run_or_is_another_version_is_passed_over(tmp_path: Path) -> None:
    shim = program(tmp_path / "shims", "python3.12", "echo 'command not found' >&2; exit 127")
    other = program(tmp_path / "other", "python3.12", "echo 3.11")
    right = program(tmp_path / "right", "python3.12", "echo 3.12")
    missing = tmp_path / "missing"

    found = find_python("3.12", iter([missing, shim, other, right]), answer=version_of)

    assert found == right


def test_places_are_the_path_then_the_versions_of_pyenv(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_path = program(tmp_path / "bin", "python3.12", "exit 127")
    older = program(tmp_path / "versions" / "3.12.1" / "bin", "python3.12", "echo 3.12")
    newer = program(tmp_path / "versions" / "3.12.7" / "bin", "python3.12", "echo 3.12")
    program(tmp_path / "versions" / "3.13.0" / "bin", "python3.13", "echo 3.13")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))

    assert list(places("3.12")) == [on_path, newer, older]


def test_version_of_this_python_is_a_supported_one() -> None:
    assert version_of(Path(sys.executable)) == ".".join(map(str, sys.version_info[:2]))
    assert sys.version_info[:2] in SUPPORTED


@pytest.mark.parametrize(
    ("version", "others"),
    [((3, 11), ["3.13", "3.12"]), ((3, 12), ["3.11", "3.13"]), ((3, 13), ["3.11", "3.12"])],
)
def test_other_python_is_the_farthest_version(version: tuple[int, int], others: list[str]) -> None:
    assert others_than(version) == others


def test_supported_versions_are_the_ones_that_the_project_declares() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]

    declared = [line.rsplit(" ", 1)[1] for line in project["classifiers"] if "3." in line]
    assert declared == [".".join(map(str, version)) for version in SUPPORTED]
    assert project["requires-python"] == ">=3.11,<3.14"

"""When nothing is to be done, and the one sentence of each way in which it can fail."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from stationmaster.install.installers import InstallFailed, choose_installer, install
from stationmaster.install.interpreters import SUPPORTED, find_python, others_than
from stationmaster.install.set_up import EVERYTHING, LOCAL, Kind, fingerprint_of, is_done, set_up

ROOT = Path(__file__).parents[2]
PYPROJECT = (ROOT / "pyproject.toml").read_text()


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").touch()
    return tmp_path


def fingerprint(tmp_path: Path, pyproject: str, constraints: str = "torch==2.13.0\n") -> str:
    (tmp_path / "pyproject.toml").write_text(pyproject)
    (tmp_path / "constraints.txt").write_text(constraints)
    return fingerprint_of(tmp_path / "pyproject.toml", tmp_path / "constraints.txt")


def test_fingerprint_changes_with_dependencies_and_versions_only(tmp_path: Path) -> None:
    before = fingerprint(tmp_path, PYPROJECT)

    assert fingerprint(tmp_path, PYPROJECT + "\n[tool.another]\nx = 1\n") == before
    assert fingerprint(tmp_path, PYPROJECT.replace("moto[server", "moto[s3,server")) != before
    assert fingerprint(tmp_path, PYPROJECT, "torch==2.14.0\n") != before


@pytest.mark.parametrize(
    ("made", "fingerprint", "done"),
    [
        (EVERYTHING, "now", {LOCAL, EVERYTHING}),
        (LOCAL, "now", {LOCAL}),
        (EVERYTHING, "before", set()),
    ],
)
def test_set_up_is_done_by_one_that_contains_it_with_the_same_dependencies(
    venv: Path, made: Kind, fingerprint: str, done: set[Kind]
) -> None:
    (venv / made.marker).write_text(fingerprint)

    assert {kind for kind in (LOCAL, EVERYTHING) if is_done(kind, "now", venv=venv)} == done
    (venv / "bin" / "python").unlink()
    assert not is_done(made, fingerprint, venv=venv)


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what a set-up reads, as the current one."""
    fingerprint(tmp_path, PYPROJECT)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_set_up_that_is_done_says_and_does_nothing(
    clone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (clone / ".venv" / "bin").mkdir(parents=True)
    (clone / ".venv" / "bin" / "python").touch()
    now = fingerprint_of(clone / "pyproject.toml", clone / "constraints.txt")
    (clone / ".venv" / LOCAL.marker).write_text(now)

    set_up(LOCAL, installer="uv")

    assert capsys.readouterr().out == ""


def test_set_up_without_space_names_both_sizes_and_creates_nothing(clone: Path) -> None:
    greedy = Kind("a test", extra="local", marker=".ready-test", needed_gb=1e9)

    with pytest.raises(InstallFailed, match=r"\d GB are free on the disk of .*, and 1e\+09 GB are"):
        set_up(greedy, installer="uv")

    assert not (clone / ".venv").exists()


def test_environment_of_another_python_is_not_replaced(clone: Path) -> None:
    python = clone / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\necho 3.8.1\n")
    python.chmod(0o755)
    kind = Kind("a test", extra="local", marker=".ready-test", needed_gb=0)

    with pytest.raises(InstallFailed, match=r"made with Python 3\.8\.1, and Python 3\.\d+"):
        set_up(kind, installer="uv")

    assert "3.8.1" in python.read_text()


def says(tmp_path: Path, *, text: str, code: int) -> Path:
    """A Python whose every command prints a text and ends with a code."""
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\nprintf '%s\\n' \"{text}\"\nexit {code}\n")
    program.chmod(0o755)
    return program


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("OSError: [Errno 28] No space left on device", "the disk is full"),
        ("Temporary failure in name resolution", "the package index cannot be reached"),
        ("error: resolution-too-deep", "the packages could not be installed; pip said:"),
    ],
)
def test_failure_of_pip_becomes_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    python = says(tmp_path, text=text, code=1)

    with pytest.raises(InstallFailed, match=sentence):
        install(python, ["rich"], uv=None, report=lambda line: None)


def test_index_without_uv_leaves_the_work_to_pip(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\n[ "$3" = config ] || { echo "no versions: none"; exit 1; }\n')
    python.chmod(0o755)
    lines: list[str] = []

    assert choose_installer(python, wanted="uv", report=lines.append) is None
    assert lines == ["installer: pip, because the package index has no uv for this machine"]


def test_index_out_of_reach_ends_the_set_up_at_once(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\n[ "$3" = config ] || { echo "Connection refused"; exit 1; }\n')
    python.chmod(0o755)

    with pytest.raises(InstallFailed, match="package index cannot be reached"):
        choose_installer(python, wanted="uv", report=lambda line: None)


def test_entry_point_can_be_read_by_an_old_python() -> None:
    source = (ROOT / "stationmaster" / "install" / "__main__.py").read_text()

    compile(source, "stationmaster/install/__main__.py", "exec", dont_inherit=True)
    refused = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.version_info = (3, 8, 1)\n{source}"],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
    )

    assert refused.returncode == 1
    assert "Python 3.11, 3.12 or 3.13 is needed, but" in refused.stderr
    assert "is 3.8.1" in refused.stderr


def test_make_lets_python_keep_what_it_has_compiled_whatever_the_environment_says() -> None:
    said = subprocess.run(
        [
            "make",
            "--no-print-directory",
            "--eval",
            "said: ; @printenv PYTHONDONTWRITEBYTECODE || echo nothing",
            "said",
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )

    assert said.stdout.strip() == "nothing"


def chosen(folder: Path, *pythons: str, path: str = "") -> str:
    """The Python that the Makefile takes in a folder with these stand-ins, the PATH being `path`.

    What one of them is told to run, it runs with the Python of the tests.
    """
    for name in pythons:
        python = folder / name
        python.parent.mkdir(parents=True, exist_ok=True)
        python.symlink_to(sys.executable)
    script = (ROOT / "stationmaster" / "install" / "find_python.sh").read_text()
    return subprocess.run(
        # No Python of this machine has a say.
        ["/bin/sh", "-c", script.replace("/usr/bin/python3", f"{folder}/system/python3")],
        cwd=folder,
        env={"PATH": path},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()


def test_make_takes_the_python_of_venv_then_the_system_s_then_the_first_on_the_path(
    tmp_path: Path,
) -> None:
    path = str(tmp_path / "bin")

    assert chosen(tmp_path, path=path) == "python3"
    assert chosen(tmp_path, "bin/python3.12", path=path) == "python3.12"
    assert chosen(tmp_path, "system/python3", path=path) == f"{tmp_path}/system/python3"
    assert chosen(tmp_path, ".venv/bin/python", path=path) == ".venv/bin/python"


@pytest.mark.parametrize("question", ["version_info", "ensurepip", "Python.h"])
def test_make_passes_over_a_system_s_python_that_is_too_old_or_lacks_parts(
    question: str, tmp_path: Path
) -> None:
    """Debian's python3 without python3-venv and python3-dev, for one."""
    lacking = tmp_path / "system" / "python3"
    lacking.parent.mkdir()
    lacking.write_text(f'#!/bin/sh\ncase "$2" in *{question}*) exit 1 ;; esac\n')
    lacking.chmod(0o755)
    (tmp_path / "bin").mkdir()

    assert chosen(tmp_path, "bin/python3.11", path=str(tmp_path / "bin")) == "python3.11"


def test_python_is_the_newest_of_pyenv_or_else_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is on the PATH may be a shim of pyenv's, which does not run."""
    on_path, *of_pyenv = (
        tmp_path / place / "python3.12"
        for place in ("bin", "versions/3.12.1/bin", "versions/3.12.7/bin")
    )
    for python in (on_path, *of_pyenv):
        python.parent.mkdir(parents=True)
        python.touch(0o755)
    monkeypatch.setenv("PATH", str(on_path.parent))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))

    assert find_python("3.12") == str(of_pyenv[-1])
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "bin"))
    assert find_python("3.12") == str(on_path)
    assert find_python("3.13") is None


@pytest.mark.parametrize(
    ("version", "others"),
    [((3, 11), ["3.13", "3.12"]), ((3, 12), ["3.11", "3.13"]), ((3, 13), ["3.11", "3.12"])],
)
def test_other_python_is_the_farthest_version(version: tuple[int, int], others: list[str]) -> None:
    assert others_than(version) == others


def test_supported_versions_are_the_ones_that_the_project_declares() -> None:
    project = tomllib.loads(PYPROJECT)["project"]

    declared = [line.rsplit(" ", 1)[1] for line in project["classifiers"] if "3." in line]
    assert declared == [".".join(map(str, version)) for version in SUPPORTED]
    assert project["requires-python"] == ">=3.11,<3.14"

"""Installs packages into a virtual environment: with uv where possible, else with pip."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from stationmaster.install.pip_configuration import UvOptions, read_pip_configuration, uv_options

CONSTRAINTS: Final = "constraints.txt"
# Compiling every module takes longer than unpacking them; Python compiles those that it imports.
_PIP_INSTALL: Final = ("-m", "pip", "install", "--no-compile", "--disable-pip-version-check")
_UV: Final = Path(".venv/bin/uv")
Report = Callable[[str], None]

# What an installer prints when the reason is the machine's and another installer would not help.
_NO_SPACE: Final = re.compile(r"No space left|os error 28\b|Errno 28\b|quota exceeded", re.I)
_NO_NETWORK: Final = re.compile(
    r"NewConnectionError|name resolution|Name or service not known|nodename nor servname"
    r"|Network is unreachable|Connection refused|ConnectTimeout|ProxyError|dns error"
    r"|error sending request|tcp connect error|Connection reset",
    re.I,
)
# The lines of uv and pip that show a waiting person how far the installation is.
_PROGRESS: Final = re.compile(
    r"^(Resolved|Prepared|Installed) \d|^\s*Downloading .*\d ?(MB|MiB|GB|GiB)\b", re.I
)


class InstallFailed(Exception):
    """One sentence: what failed and what to do."""


class _CommandFailed(Exception):
    def __init__(self, output: str) -> None:
        super().__init__(output)
        self.output = output


def choose_installer(python: Path, *, wanted: str, report: Report) -> UvOptions | None:
    """Put uv into the environment; None means that pip has to do.

    Raises:
        InstallFailed: when there is no network or no space, so that pip could not do it either.
    """
    if wanted == "pip":
        report("installer: pip, as asked for")
        return None
    try:
        options = uv_options(read_pip_configuration(python))
    except subprocess.CalledProcessError as exc:
        last = (exc.stderr.strip() or "no message").splitlines()[-1]
        raise InstallFailed(f"pip cannot read its configuration: {last}") from exc
    if options.untranslated:
        names = ", ".join(options.untranslated)
        report(f"installer: pip, which is configured with what uv does not have: {names}")
        return None
    try:
        _run([python, *_PIP_INSTALL, "--constraint", CONSTRAINTS, "uv"])
    except _CommandFailed as exc:
        _raise_for_machine(exc)
        report("installer: pip, because the package index has no uv for this machine")
        return None
    report("installer: uv, with the indexes and files that pip is configured with")
    return options


def install(
    python: Path, requirements: Sequence[str], *, uv: UvOptions | None, report: Report
) -> None:
    """Install requirements in the versions of the constraints file.

    Raises:
        InstallFailed: with what was printed last.
    """
    arguments = ["--constraint", CONSTRAINTS, *requirements]
    if uv is not None:
        command: list[str | Path] = [_UV, "pip", "install", "--python", python, *uv.arguments]
        try:
            return _run([*command, *arguments], variables=uv.environment, report=report)
        except _CommandFailed as exc:
            if _NO_SPACE.search(exc.output):
                _raise_for_machine(exc)
            last = ([line for line in exc.output.splitlines() if line.strip()] or ["no message"])[
                -1
            ]
            report(f"uv failed ({last.strip()}); trying pip, which takes longer")
    try:
        _run([python, *_PIP_INSTALL, *arguments], report=report)
    except _CommandFailed as exc:
        _raise_for_machine(exc)
        tail = "\n".join(exc.output.rstrip().splitlines()[-15:])
        raise InstallFailed(f"the packages could not be installed; pip said:\n{tail}") from exc
    return None


def _run(
    command: Sequence[str | Path],
    *,
    variables: Mapping[str, str] | None = None,
    report: Report | None = None,
) -> None:
    """Run an installer and report the lines that show its progress."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **(variables or {})},
    )
    lines = []
    with process:
        for line in process.stdout or ():
            lines.append(line)
            if report and _PROGRESS.search(line):
                report(line.strip())
    if process.returncode:
        raise _CommandFailed("".join(lines))


def _raise_for_machine(failure: _CommandFailed) -> None:
    if _NO_SPACE.search(failure.output):
        raise InstallFailed(
            "the disk is full: free some space (the folder of temporary files counts, too), then "
            "run the same command again"
        ) from failure
    lines = [line.strip() for line in failure.output.splitlines()]
    if reason := next((line for line in lines if _NO_NETWORK.search(line)), ""):
        raise InstallFailed(
            "the package index cannot be reached: check the network and `pip config list`, then "
            f"run the same command again; the first message was:\n{reason[:400]}"
        ) from failure

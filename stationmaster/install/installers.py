"""Installs packages into a virtual environment: with uv where possible, else with pip.

uv reads none of pip's files and variables. A machine whose packages come from a mirror says so to
pip, so what pip knows is handed to uv, or uv is not used.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

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


# Of these sections a later one overrides an earlier one, as for `pip install`.
_SECTIONS: Final = ("global", "install", ":env:")
_TRUE: Final = ("1", "true", "t", "yes", "y", "on")
# Options that change neither which packages are installed nor where they come from.
_WITHOUT_EFFECT: Final = """
    break-system-packages cache-dir compile config-file default-timeout disable-pip-version-check
    exists-action isolated log no-cache-dir no-clean no-color no-compile no-input
    no-python-version-warning no-warn-conflicts no-warn-script-location no-warnings progress-bar
    prefer-binary quiet
    require-virtualenv retries root-user-action timeout upgrade-strategy use-deprecated
    use-feature verbose
"""


@dataclass(frozen=True)
class UvOptions:
    """Arguments of `uv pip install` and variables of its environment.

    Addresses go into variables: they may hold a password, and arguments are public on a machine.
    """

    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    untranslated: tuple[str, ...] = ()


def read_pip_configuration(python: Path) -> dict[str, str]:
    """Return what `pip install` of this Python uses: option names without dashes in front, as text.

    pip itself merges its files, `PIP_CONFIG_FILE` and the `PIP_*` variables.

    Raises:
        subprocess.CalledProcessError: when pip cannot read its own configuration.
    """
    listing = subprocess.run(
        [python, "-m", "pip", "config", "list"], check=True, capture_output=True, text=True
    )
    return parse_pip_configuration(listing.stdout)


def parse_pip_configuration(listing: str) -> dict[str, str]:
    """Merge the lines of `pip config list`, e.g. `global.index-url='https://...'`."""
    by_section: dict[str, dict[str, str]] = {name: {} for name in _SECTIONS}
    for line in listing.splitlines():
        key, _, value = line.partition("=")
        section, _, name = key.partition(".")
        # pip ignores empty values: they do not hide what another section says.
        if section in by_section and (text := str(ast.literal_eval(value))):
            by_section[section][name.lower().replace("_", "-")] = text
    return {name: text for section in _SECTIONS for name, text in by_section[section].items()}


def uv_options(configuration: Mapping[str, str]) -> UvOptions:
    """Translate what pip is configured with; names what has no translation."""
    arguments: list[str] = []
    environment: dict[str, str] = {}
    untranslated: list[str] = []
    for name, text in sorted(configuration.items()):
        match name:
            case "index-url":
                environment["UV_DEFAULT_INDEX"] = text
            case "extra-index-url":
                environment["UV_INDEX"] = " ".join(text.split())
            case "find-links":
                arguments += [part for link in text.split() for part in ("--find-links", link)]
            case "constraint":
                arguments += [part for file in text.split() for part in ("--constraint", file)]
            case "no-index":
                arguments += ["--no-index"] if text.lower() in _TRUE else []
            case "trusted-host":
                environment["UV_INSECURE_HOST"] = " ".join(text.split())
            case "cert":
                environment["SSL_CERT_FILE"] = text
            case "proxy":
                environment |= {"HTTP_PROXY": text, "HTTPS_PROXY": text}
            case _ if name not in _WITHOUT_EFFECT.split():
                untranslated.append(name)
    # pip takes the best version of all indexes; uv alone would stop at the first that has any.
    arguments += ["--index-strategy", "unsafe-best-match"]
    return UvOptions(tuple(arguments), environment, tuple(untranslated))

"""The machine's pip configuration, and the same in uv's terms.

uv reads none of pip's files and variables. A machine whose packages come from a mirror says so to
pip, so what pip knows is handed to uv, or uv is not used.
"""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

# Of these sections a later one overrides an earlier one, as for `pip install`.
_SECTIONS: Final = ("global", "install", ":env:")
_TRUE: Final = ("1", "true", "t", "yes", "y", "on")
_SWITCHES: Final = {
    "no-index": ("--no-index",),
    "pre": ("--prerelease", "allow"),
    "no-cache-dir": ("--no-cache",),
}
# Options that change neither which packages are installed nor where they come from.
_WITHOUT_EFFECT: Final = """
    break-system-packages compile config-file default-timeout disable-pip-version-check
    exists-action isolated log no-clean no-color no-compile no-input no-python-version-warning
    no-warn-conflicts no-warn-script-location no-warnings prefer-binary progress-bar quiet
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
            case "no-index" | "pre" | "no-cache-dir":
                arguments += _SWITCHES[name] if text.lower() in _TRUE else ()
            case "only-binary" | "no-binary":
                names = text.replace(",", " ").split()
                arguments += [part for package in names for part in (f"--{name}", package)]
            case "trusted-host":
                environment["UV_INSECURE_HOST"] = " ".join(text.split())
            case "cert":
                environment["SSL_CERT_FILE"] = text
            case "proxy":
                environment |= {"HTTP_PROXY": text, "HTTPS_PROXY": text}
            case "cache-dir":
                # Each has its own format; the point of the setting is the disk.
                environment["UV_CACHE_DIR"] = str(Path(text) / "uv")
            case "keyring-provider" if text in ("auto", "disabled"):
                pass
            case _ if name not in _WITHOUT_EFFECT.split():
                untranslated.append(name)
    # pip takes the best version of all indexes; uv alone would stop at the first that has any.
    arguments += ["--index-strategy", "unsafe-best-match"]
    return UvOptions(tuple(arguments), environment, tuple(untranslated))

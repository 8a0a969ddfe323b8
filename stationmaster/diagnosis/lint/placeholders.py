"""Placeholders of templates for `envsubst`: `${NAME}` and `$NAME`.

In a file that is applied they must be gone. YAML reads most of them as text; inside flow brackets
or alone on a line they would break it, so they are hidden from its parser. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

# Private characters, which YAML takes anywhere in plain text.
_OPEN, _CLOSE = "\ue000", "\ue001"
_BRACED: Final = re.compile(r"\$\{([^{}\n]*)\}")
_HIDDEN: Final = re.compile(f"{_OPEN}([^{_CLOSE}]*){_CLOSE}")
# A line that is nothing but a placeholder: what it stands for is not known, so it is left out.
_ALONE: Final = re.compile(r"^[ \t]*(\$\{[^{}\n]*\}|\$[A-Za-z_]\w*)[ \t]*$", re.MULTILINE)
_OTHER_ENGINES: Final = re.compile(r"\{\{[^{}\n]*\}\}|\{%[^{}\n]*%\}")
_OTHER_ALONE: Final = re.compile(r"^[ \t]*(\{\{.*\}\}|\{%.*%\})[ \t]*$", re.MULTILINE)
# Signs of a hidden placeholder that mean something to YAML, or to who searches for placeholders.
_SIGNS, _STAND_INS = ":# ${}", "\ue002\ue003\ue004\ue005\ue006\ue007"
_ESCAPES: Final = str.maketrans(_SIGNS, _STAND_INS)
_BACK: Final = str.maketrans(_STAND_INS, _SIGNS)
_NAME: Final = re.compile(r"\$\$|\$\{(?P<braced>[^{}\n]*)\}|\$(?P<plain>[A-Za-z_]\w*)")
_SHELL_NAME: Final = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True)
class Placeholder:
    """A `${NAME}` or `$NAME`; `default` is what follows the name, as in `${NAME:-1}`."""

    name: str
    text: str
    default: str = ""


def hidden(text: str) -> str:
    """Replace placeholders by ordinary words, line by line."""
    text = _OTHER_ALONE.sub("", text)
    text = _OTHER_ENGINES.sub(lambda match: _hide(match[0]), text)
    text = _ALONE.sub(_hide_alone, text)
    return _BRACED.sub(lambda match: _hide(match[0]), text)


def _hide_alone(match: re.Match[str]) -> str:
    # In a script it is a line like any other, so it must stay one; as a line of YAML, a comment.
    return f"{match[0][: -len(match[0].lstrip())]}# {_hide(match[1])}"


def alone(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line from 0, placeholder) of lines that are nothing but a placeholder."""
    line, begin = 0, 0
    for match in _ALONE.finditer(text):
        line += text.count("\n", begin, match.start(1))
        begin = match.start(1)
        yield line, match[1]


def _hide(text: str) -> str:
    return f"{_OPEN}{text.translate(_ESCAPES)}{_CLOSE}"


def shown(text: str) -> str:
    """Undo `hidden`."""
    return _HIDDEN.sub(lambda match: match[1].translate(_BACK), text)


def placeholders(text: str) -> Iterator[Placeholder]:
    """Yield every placeholder that `envsubst` would replace, or leaves because it has a default."""
    for match in _NAME.finditer(text):
        inside = match["braced"] if match["braced"] is not None else match["plain"]
        if inside is None:
            continue  # "$$", which Kubernetes reads as "$"
        name = _SHELL_NAME.match(inside)
        if name is not None:
            yield Placeholder(name[0], match[0], inside[name.end() :])


def is_unresolved(value: object) -> bool:
    """Say whether a value is not known before its template is filled in."""
    return isinstance(value, str) and ("{{" in value or next(placeholders(value), None) is not None)

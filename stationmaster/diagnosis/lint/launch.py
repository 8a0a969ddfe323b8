"""What a command line starts: torchrun and its flags, and the program with its own. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from stationmaster.diagnosis.lint.reading import Path

_TORCHRUN_MODULES: Final = ("torch.distributed.run", "torch.distributed.launch")
# Of hyperpod-elastic-agent: torchrun, told by SageMaker HyperPod's operator when to start.
AGENT: Final = "hyperpodrun"
_SHELLS: Final = ("bash", "sh", "zsh", "dash", "ash")
_ALONE: Final = ("--standalone", "--no_python", "--no-python", "--module", "-m", "--run_path")


@dataclass(frozen=True)
class Flag:
    """A flag's value; "" where it has none."""

    value: str
    path: Path


@dataclass(frozen=True)
class Launch:
    """A program that is started; flags by their names with underscores, without dashes."""

    path: Path
    program: str
    """The script or the module; "" where there is none."""
    words: Sequence[str]
    torchrun: dict[str, Flag] | None = None
    """The flags of torchrun itself; None where it is not used."""
    torchrun_word: str = ""
    flags: dict[str, Flag] = field(default_factory=dict)


def is_shell(word: str) -> bool:
    return word.rpartition("/")[2] in _SHELLS


def read_launch(line: Sequence[tuple[Path, str]]) -> Launch | None:
    """Read the launch from a command line's words, or None where it is not one of Python."""
    where, words = [path for path, _ in line], [word for _, word in line]
    begin, torchrun_word = _torchrun(words)
    if begin is None:
        script = next((i for i, word in enumerate(words) if word.endswith(".py")), None)
        if script is None:
            return None
        flags = _flags(words[script + 1 :], where[script + 1 :])
        return Launch(where[0], words[script], words, flags=flags)
    program = _program(words, begin)
    name = words[program] if program < len(words) else ""
    own = _flags(words[begin:program], where[begin:program])
    flags = _flags(words[program + 1 :], where[program + 1 :])
    at = where[begin - 1]
    return Launch(at, name, words, torchrun=own, torchrun_word=torchrun_word, flags=flags)


def _torchrun(words: Sequence[str]) -> tuple[int | None, str]:
    """Find where torchrun's own flags begin, and the word that names it."""
    for index, word in enumerate(words):
        if word.rpartition("/")[2] in ("torchrun", AGENT) or word in _TORCHRUN_MODULES:
            return index + 1, word
    return None, ""


def _program(words: Sequence[str], begin: int) -> int:
    """Find the index of the script or module behind torchrun's flags."""
    index = begin
    while index < len(words):
        word = words[index]
        if word in ("-m", "--module"):
            return min(index + 1, len(words))
        if not word.startswith("-"):
            return index
        takes_next = "=" not in word and word not in _ALONE
        index += 2 if takes_next else 1
    return len(words)


def _flags(words: Sequence[str], paths: Sequence[Path]) -> dict[str, Flag]:
    found: dict[str, Flag] = {}
    for index, (word, path) in enumerate(zip(words, paths, strict=True)):
        if not word.startswith("-") or len(word) < 3:
            continue
        name, equals, value = word.lstrip("-").partition("=")
        following = words[index + 1] if index + 1 < len(words) else ""
        if not equals and not following.startswith("--"):
            value = following
        found[name.replace("-", "_")] = Flag(value, path)
    return found

"""A container as rules look at it: its variables, its command lines, its resources. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from stationmaster.diagnosis.lint.launch import Launch, is_shell, read_launch
from stationmaster.diagnosis.lint.reading import Path, in_text
from stationmaster.diagnosis.lint.values import mapping, sequence, text, whole

_EXPORT: Final = re.compile(r"(?:^|[;&|\s])export\s+([A-Za-z_]\w*)=(\"[^\"]*\"|'[^']*'|[^\s;&|]*)")
_ASSIGNED: Final = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)


@dataclass(frozen=True)
class Variable:
    """A variable of a container, wherever it is set; `value` is None where it comes from elsewhere,
    e.g. a Secret."""

    name: str
    value: str | None
    path: Path


@dataclass(frozen=True)
class Container:
    """A container of a pod, or the trainer of a TrainJob."""

    path: Path
    body: Mapping[str, Any]
    is_init: bool = False

    @property
    def name(self) -> str:
        return text(self.body.get("name"))

    @property
    def image(self) -> str:
        return text(self.body.get("image"))

    @cached_property
    def env(self) -> list[Variable]:
        """The variables of `env`."""
        found = []
        for index, item in enumerate(sequence(self.body.get("env"))):
            entry = mapping(item)
            name, value = text(entry.get("name")), entry.get("value")
            shown = None if value is None or "valueFrom" in entry else str(value)
            if name:
                found.append(Variable(name, shown, (*self.path, "env", index)))
        return found

    @cached_property
    def names(self) -> frozenset[str]:
        return frozenset(variable.name for variable in self.env)

    @cached_property
    def variables(self) -> list[Variable]:
        """The variables of `env`, and of its command: `export`, `env NAME=VALUE`, mpirun's `-x`."""
        found = list(self.env)
        for words in self.command_lines:
            early = True
            befores = ("", *(each for _, each in words))
            for before, (path, word) in zip(befores, words, strict=False):
                assigned = _ASSIGNED.fullmatch(word)
                early = early and assigned is not None
                if assigned is not None and (early or before in ("-x", "env")):
                    found.append(Variable(assigned[1], assigned[2], path))
        for path, script in self.scripts:
            for number, line in enumerate(script.splitlines(), 1):
                for match in _EXPORT.finditer(line):
                    value = match[2].strip("\"'")
                    found.append(Variable(match[1], value, in_text(path, number)))
        return found

    def value(self, name: str) -> str | None:
        """Return a variable's value; the last one counts. None where it is not set in clear."""
        values = [each.value for each in self.variables if each.name == name]
        return values[-1] if values else None

    @cached_property
    def arguments(self) -> list[tuple[Path, str]]:
        """The words of command and args, each with its path."""
        return [
            ((*self.path, field, index), str(word))
            for field in ("command", "args")
            for index, word in enumerate(sequence(self.body.get(field)))
            if isinstance(word, str | int | float)
        ]

    @cached_property
    def scripts(self) -> list[tuple[Path, str]]:
        """The scripts for a shell: the text after `-c`."""
        words = self.arguments
        if not any(is_shell(word) for _, word in words[:2]):
            return []
        return [(path, word) for path, word in words if "\n" in word or " " in word]

    @cached_property
    def command_lines(self) -> list[list[tuple[Path, str]]]:
        """The words of each command line with their paths: the container's, or its scripts'."""
        if not self.scripts:
            return [self.arguments] if self.arguments else []
        return [
            [(in_text(path, number), word) for word in words]
            for path, script in self.scripts
            for number, line in _commands(script)
            if (words := _split(line))
        ]

    @property
    def words(self) -> list[str]:
        """The words of all command lines."""
        return [word for line in self.command_lines for _, word in line]

    @cached_property
    def launches(self) -> list[Launch]:
        """Every call of torchrun, or of a Python script."""
        found = [read_launch(line) for line in self.command_lines]
        return [launch for launch in found if launch is not None]

    @property
    def limits(self) -> Mapping[str, Any]:
        return mapping(mapping(self.body.get("resources")).get("limits"))

    @property
    def requests(self) -> Mapping[str, Any]:
        """The reserved resources; a limit without a request is also the request."""
        return {**self.limits, **mapping(mapping(self.body.get("resources")).get("requests"))}

    def count(self, resource: str) -> int:
        """Return how many of a device it asks for; 0 for none, or where it is not known."""
        return whole(self.requests.get(resource)) or 0

    def asks(self, resource: str) -> bool:
        """Say whether it asks for a device at all, in whatever number."""
        value = self.requests.get(resource)
        return value is not None and whole(value) != 0

    @property
    def mounts(self) -> list[tuple[Path, str, str]]:
        """The mounts as (path, volume, directory)."""
        return [
            (
                (*self.path, "volumeMounts", index),
                text(mapping(mount).get("name")),
                text(mapping(mount).get("mountPath")),
            )
            for index, mount in enumerate(sequence(self.body.get("volumeMounts")))
        ]


def _commands(script: str) -> Iterator[tuple[int, str]]:
    """Yield each command line of a script with its number from 1; continued lines are one."""
    begin, parts = 1, []
    for number, line in enumerate(script.splitlines(), 1):
        parts.append(line.removesuffix("\\"))
        if not line.endswith("\\"):
            yield begin, " ".join(parts)
            begin, parts = number + 1, []
    if parts:
        yield begin, " ".join(parts)


def _split(line: str) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError:
        return line.split()

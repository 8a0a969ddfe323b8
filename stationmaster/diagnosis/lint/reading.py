"""YAML text to documents whose every value knows its line. Pure.

Reading takes a time that grows with the size only: nesting, size and what aliases expand to have
limits, beyond which a file is refused with the line. It uses the events of PyYAML's parser, because
its loaders expand aliases without a limit, keep the last of two equal keys, and forget lines.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from stationmaster.diagnosis.lint.placeholders import alone, hidden, shown

MAX_BYTES: Final = 2 * 1024 * 1024
"""The largest file that is read; etcd stores no object above 1.5 MiB."""
_MAX_DEPTH: Final = 100
_MAX_VALUES: Final = 200_000
_SEPARATOR: Final = re.compile(r"^---(?=\s|$)", re.MULTILINE)
_LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# YAML 1.1 in Python also reads 1:30 as 90, which Kubernetes' reader does not.
_BASE_60: Final = re.compile(r"[-+]?\d+(:\d+)+(\.\d*)?")

# Begins the last part of a path to one line of a text; no key of YAML in use begins so.
_LINE_MARK: Final = "\n"

Path = tuple[str | int, ...]
"""The place of a value in its document, e.g. ("spec", "containers", 0)."""


@dataclass(frozen=True)
class Fault:
    """What is wrong with the text itself; `kind` is "syntax", "key-twice", "too-large", or
    "placeholder": one that stands alone on a line, where YAML has no place for text."""

    kind: str
    path: Path
    line: int
    message: str


@dataclass
class Document:
    """A document of a file: plain values, and the line (from 1) of each path."""

    data: Any = None
    lines: dict[Path, int] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    blocks: dict[Path, int] = field(default_factory=dict)
    """Texts that are written line by line (`|`), each with the line before its first."""
    first_line: int = 1

    def line(self, path: Path) -> int:
        """Return the line of a value, or of the nearest one that it would be in."""
        text = without_line(path)
        if text != path:
            offset = int(str(path[-1])[len(_LINE_MARK) :])
            return self.blocks[text] + offset if text in self.blocks else self.line(text)
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, self.first_line)


def in_text(path: Path, number: int) -> Path:
    """Make the path of a line, from 1, of a text of many lines."""
    return (*path, f"{_LINE_MARK}{number}")


def without_line(path: Path) -> Path:
    """Return the path of the text for the path of one of its lines; other paths stay."""
    last = str(path[-1]) if path else ""
    number = last.removeprefix(_LINE_MARK)
    return path[:-1] if number != last and number.isascii() and number.isdigit() else path


class _Refused(Exception):
    """A document that is not read any further."""

    def __init__(self, kind: str, message: str, line: int) -> None:
        super().__init__(message)
        self.fault = Fault(kind, (), line, message)


def read(text: str) -> list[Document]:
    """Read every document of the text that is not empty.

    One that is not YAML has a fault, no data, and leaves the others as they are. Placeholders of
    templates (`${NAME}`) are read as text wherever they stand.
    """
    documents = []
    for piece, first_line in _pieces(text.replace("\r\n", "\n").lstrip("\ufeff")):
        document = _read_one(piece, first_line)
        if document.data is not None or document.faults:
            documents.append(document)
    return documents


def _pieces(text: str) -> Iterator[tuple[str, int]]:
    """Yield the text between separators, and the line on which each part begins."""
    starts = [match.start() for match in _SEPARATOR.finditer(text)]
    line, begin = 1, 0
    for end in [*starts, len(text)]:
        if end > begin:
            yield text[begin:end], line
        line += text.count("\n", begin, end)
        begin = end


def _read_one(text: str, first_line: int) -> Document:
    document = Document(first_line=first_line)
    builder = _Builder(document, first_line)
    try:
        builder.build(yaml.parse(hidden(text), Loader=_LOADER))
    except _Refused as exc:
        document.data = None
        document.faults.append(exc.fault)
    except yaml.YAMLError as exc:
        document.data = None
        document.faults.append(_syntax_fault(exc, first_line))
    in_texts = {line for begin, end in builder.texts for line in range(begin, end + 1)}
    for number, placeholder in alone(text):
        line = first_line + number
        if line not in in_texts:
            message = f"{placeholder} stands alone on its line and is not filled in"
            document.faults.append(Fault("placeholder", (), line, message))
    return document


def _syntax_fault(exc: Exception, first_line: int) -> Fault:
    mark = getattr(exc, "problem_mark", None)
    line = first_line + (mark.line if mark is not None else 0)
    what = getattr(exc, "problem", None) or getattr(exc, "reason", None) or "it cannot be read"
    return Fault("syntax", (), line, f"not YAML: {shown(str(what))}")


class _Builder:
    """Fills one document from the parser's events."""

    def __init__(self, document: Document, first_line: int) -> None:
        self._document = document
        self._first_line = first_line
        self._events: Iterator[Any] = iter(())
        self._anchors: dict[str, Any] = {}
        self._num_values = 0
        self.texts: list[tuple[int, int]] = []
        """The first and last lines of texts of many lines."""
        self._resolver: Any = yaml.resolver.Resolver()
        self._constructor = yaml.constructor.SafeConstructor()

    def build(self, events: Iterator[Any]) -> None:
        self._events = events
        for event in events:
            if isinstance(event, yaml.NodeEvent):
                self._document.data = self._value(event, ())

    def _line(self, event: Any) -> int:
        return self._first_line + int(event.start_mark.line)

    def _value(self, event: Any, path: Path) -> Any:
        """Read the value that begins with an event, to its end."""
        line, last = self._line(event), self._first_line + event.end_mark.line
        self._count(1, line)
        self._document.lines.setdefault(path, line)
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self._anchors:
                message = f"not YAML: no anchor &{event.anchor} ends before *{event.anchor}"
                raise _Refused("syntax", message, line)
            return self._copy(self._anchors[event.anchor], path, line)
        value: Any
        if isinstance(event, yaml.ScalarEvent):
            value = self._scalar(event)
            if last > line:
                self.texts.append((line, last))
                if event.style == "|":
                    self._document.blocks[path] = line
        else:
            self._check_depth(path, line)
            is_list = isinstance(event, yaml.SequenceStartEvent)
            value = self._list(path) if is_list else self._mapping(path)
        if event.anchor:
            self._anchors[event.anchor] = value
        return value

    def _list(self, path: Path) -> list[Any]:
        items: list[Any] = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            items.append(self._value(event, (*path, len(items))))
        return items

    def _mapping(self, path: Path) -> dict[str, Any]:
        pairs: dict[str, Any] = {}
        merged: list[Any] = []
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key = self._key(event, path, pairs)
            value = self._value(next(self._events), (*path, key))
            if key == "<<":
                merged += value if isinstance(value, list) else [value]
            else:
                pairs[key] = value
        for source in merged:
            for key, item in source.items() if isinstance(source, Mapping) else ():
                if key not in pairs:
                    where = self._document.line((*path, "<<"))
                    self._document.lines.setdefault((*path, key), where)
                    pairs[key] = item
        return pairs

    def _key(self, event: Any, path: Path, before: Mapping[str, Any]) -> str:
        line = self._line(event)
        if not isinstance(event, yaml.ScalarEvent):
            message = "a key must be text, not a mapping or a list, as an object is JSON in the end"
            raise _Refused("syntax", message, line)
        key = shown(event.value)
        at = (*path, key)
        if key in before:
            first = self._document.lines.get(at, line)
            message = f'the key "{key}" stands here a second time, first on line {first}'
            self._document.faults.append(Fault("key-twice", at, line, message))
        self._document.lines[at] = line
        return key

    def _count(self, number: int, line: int) -> None:
        self._num_values += number
        if self._num_values > _MAX_VALUES:
            raise _Refused("too-large", f"more than {_MAX_VALUES:,} values, aliases expanded", line)

    def _check_depth(self, path: Path, line: int) -> None:
        if len(path) >= _MAX_DEPTH:
            raise _Refused("too-large", f"nested more than {_MAX_DEPTH} levels deep", line)

    def _scalar(self, event: Any) -> Any:
        tag = event.tag
        if tag is None or tag == "!":
            tag = self._resolver.resolve(yaml.ScalarNode, event.value, event.implicit)
        kind = tag.rpartition(":")[2]
        read: Callable[[Any], Any] | None = {
            "null": lambda _: None,
            "bool": self._constructor.construct_yaml_bool,
            "int": self._constructor.construct_yaml_int,
            "float": self._constructor.construct_yaml_float,
        }.get(kind)
        if read is None or _BASE_60.fullmatch(event.value):
            return shown(event.value)
        try:
            return read(yaml.ScalarNode(tag, event.value))
        except (ValueError, KeyError, OverflowError):
            return shown(event.value)

    def _copy(self, value: Any, path: Path, line: int) -> Any:
        """Copy an alias's value to its new place; its parts count, and have the alias's line."""
        pairs: list[tuple[str | int, Any]]
        if isinstance(value, Mapping):
            pairs = list(value.items())
        elif isinstance(value, list):
            pairs = list(enumerate(value))
        else:
            return value
        self._check_depth(path, line)
        self._count(len(pairs), line)
        copies = []
        for key, item in pairs:
            self._document.lines[(*path, key)] = line
            copies.append((key, self._copy(item, (*path, key), line)))
        return dict(copies) if isinstance(value, Mapping) else [item for _, item in copies]

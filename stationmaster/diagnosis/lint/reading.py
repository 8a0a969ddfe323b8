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


@dataclass
class _Open:
    """A mapping or a list that is being filled."""

    value: dict[str, Any] | list[Any]
    path: Path
    anchor: str | None
    key: str | None = None
    merged: list[Any] = field(default_factory=list)


class _Builder:
    """Fills one document from the parser's events, without recursion."""

    def __init__(self, document: Document, first_line: int) -> None:
        self._document = document
        self._first_line = first_line
        self._open: list[_Open] = []
        self._anchors: dict[str, Any] = {}
        self._num_values = 0
        self.texts: list[tuple[int, int]] = []
        """The first and last lines of texts of many lines."""
        self._resolver: Any = yaml.resolver.Resolver()
        self._constructor = yaml.constructor.SafeConstructor()

    def build(self, events: Iterator[Any]) -> None:
        for event in events:
            line = self._first_line + event.start_mark.line
            match event:
                case yaml.ScalarEvent():
                    self._add_scalar(event, line)
                case yaml.AliasEvent():
                    self._add_alias(str(event.anchor), line)
                case yaml.MappingStartEvent():
                    self._begin({}, event.anchor, line)
                case yaml.SequenceStartEvent():
                    self._begin([], event.anchor, line)
                case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                    self._end(line)

    def _place(self, line: int) -> Path:
        """Return the path of the value that comes next, and count it."""
        self._num_values += 1
        if self._num_values > _MAX_VALUES:
            raise _Refused("too-large", f"more than {_MAX_VALUES:,} values, aliases expanded", line)
        if not self._open:
            return ()
        around = self._open[-1]
        if isinstance(around.value, list):
            return (*around.path, len(around.value))
        return around.path if around.key is None else (*around.path, around.key)

    def _add_scalar(self, event: Any, line: int) -> None:
        around = self._open[-1] if self._open else None
        if around is not None and isinstance(around.value, dict) and around.key is None:
            self._take_key(around, shown(event.value), line)
            return
        path = self._place(line)
        value = self._scalar(event)
        if event.end_mark.line > event.start_mark.line:
            self.texts.append((line, self._first_line + event.end_mark.line))
            if event.style == "|":
                self._document.blocks[path] = line
        if event.anchor:
            self._anchors[event.anchor] = value
        self._put(value, path, line)

    def _take_key(self, around: _Open, key: str, line: int) -> None:
        around.key = key
        path = (*around.path, key)
        if isinstance(around.value, dict) and key in around.value:
            first = self._document.lines.get(path, line)
            message = f'the key "{key}" stands here a second time, first on line {first}'
            self._document.faults.append(Fault("key-twice", path, line, message))
        self._document.lines[path] = line

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

    def _add_alias(self, anchor: str, line: int) -> None:
        path = self._place(line)
        if anchor not in self._anchors:
            raise _Refused("syntax", f"not YAML: no anchor &{anchor} ends before *{anchor}", line)
        self._put(self._copy(self._anchors[anchor], path, line), path, line)

    def _copy(self, value: Any, path: Path, line: int) -> Any:
        """Copy an alias's value to its new place; its parts count, and have the alias's line."""
        if len(path) > _MAX_DEPTH:
            raise _Refused("too-large", f"nested more than {_MAX_DEPTH} levels deep", line)
        pairs: list[tuple[str | int, Any]]
        if isinstance(value, Mapping):
            pairs = list(value.items())
        elif isinstance(value, list):
            pairs = list(enumerate(value))
        else:
            return value
        self._num_values += len(pairs)
        if self._num_values > _MAX_VALUES:
            raise _Refused("too-large", f"more than {_MAX_VALUES:,} values, aliases expanded", line)
        copies = []
        for key, item in pairs:
            self._document.lines[(*path, key)] = line
            copies.append((key, self._copy(item, (*path, key), line)))
        return dict(copies) if isinstance(value, Mapping) else [item for _, item in copies]

    def _begin(self, value: dict[str, Any] | list[Any], anchor: str | None, line: int) -> None:
        if self._open and self._is_key_next():
            message = "a key must be text, not a mapping or a list, as an object is JSON in the end"
            raise _Refused("syntax", message, line)
        path = self._place(line)
        if len(self._open) >= _MAX_DEPTH:
            raise _Refused("too-large", f"nested more than {_MAX_DEPTH} levels deep", line)
        self._document.lines.setdefault(path, line)
        self._open.append(_Open(value, path, anchor))

    def _is_key_next(self) -> bool:
        around = self._open[-1]
        return isinstance(around.value, dict) and around.key is None

    def _end(self, line: int) -> None:
        done = self._open.pop()
        if isinstance(done.value, dict):
            for source in done.merged:
                for key, item in source.items():
                    if key not in done.value:
                        where = self._document.line((*done.path, "<<"))
                        self._document.lines.setdefault((*done.path, key), where)
                        done.value[key] = item
        if done.anchor:
            self._anchors[done.anchor] = done.value
        self._put(done.value, done.path, self._document.lines.get(done.path, line))

    def _put(self, value: Any, path: Path, line: int) -> None:
        if not self._open:
            self._document.data = value
            self._document.lines.setdefault((), line)
            return
        around = self._open[-1]
        if isinstance(around.value, list):
            self._document.lines.setdefault(path, line)
            around.value.append(value)
            return
        key, around.key = around.key, None
        if key == "<<":
            sources = value if isinstance(value, list) else [value]
            around.merged += [source for source in sources if isinstance(source, Mapping)]
        elif key is not None:
            around.value[key] = value

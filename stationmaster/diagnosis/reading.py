"""Text that somebody has saved, as a source: which of the known formats it is, and what it says.

Known are pod logs (also with --prefix and --timestamps), `kubectl get events|pods|nodes` as tables
or as YAML or JSON, `kubectl describe pod|node`, dmesg, `nvidia-smi dmon`, and answers of kubectl,
eksctl and AWS.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from stationmaster.diagnosis.explaining import Seen, Source
from stationmaster.diagnosis.nccl.log import TERMINAL_CODE
from stationmaster.diagnosis.objects import looks_like_objects, read_objects
from stationmaster.diagnosis.rules import LOG, POD, Where

_TABLE: Final = re.compile(r"^(?:NAMESPACE +)?(?:LAST SEEN|NAME) +")
_DMON: Final = re.compile(r"^# *gpu\b.*\bsm\b")
_DESCRIBED: Final = re.compile(r"^Name: +\S")
# A part of such a description, as people cut it out: of one pod, whose name is not there.
_CUT_OUT: Final = re.compile(
    r"^(?:(?:Events|(?:Init )?Containers|Conditions|Status):| +Type +Reason +Age +From +Message)"
)
_NAMELESS: Final = "the pod"
_SECTION: Final = re.compile(r"^(\w[\w ]*):")
_COLUMNS: Final = re.compile(r"\S+(?: \S+)*")
_ROW: Final = re.compile(r"^ +(?:Normal|Warning|Type|----) ")
_KEY: Final = re.compile(r"^ *(Reason|Exit Code|Message): +(\S.*)$")

_EVENT: Final = frozenset({Where.EVENT})
_NODE: Final = frozenset({Where.NODE})


def read_source(name: str, text: str) -> Source:
    """Read a file's findings.

    Raises:
        BadCommand: it is YAML or JSON that cannot be read, or has nothing of a cluster.
    """
    if "\x1b" in text:
        text = TERMINAL_CODE.sub("", text)
    if looks_like_objects(text):
        return Source(name=name, seen=read_objects(name, text))
    lines = text.split("\n")
    first = next((line for line in lines if line.strip()), "")
    if _TABLE.match(first):
        return Source(name=name, seen=list(_read_tables(lines)))
    if _DESCRIBED.match(first) and any(line.startswith("Events:") for line in lines):
        return Source(name=name, seen=list(_read_descriptions(lines)))
    if _CUT_OUT.match(first) and any(_ROW.match(line) for line in lines):
        lines = lines if "Events:" in text else ["Events:", *lines]
        return Source(name=name, seen=list(_read_descriptions(lines, _NAMELESS)))
    if any(_DMON.match(line) for line in lines[:3]):
        return Source(name=name, seen=list(_read_utilisation(lines)))
    # tqdm returns to the beginning of a line in place of ending it; only the newest part counts,
    # unless a failure stands between.
    return Source(name=name, lines=[line.rstrip("\r").replace("\r", " ") for line in lines])


def _read_tables(lines: Sequence[str]) -> Iterator[Seen]:
    """Yield rows of kubectl's tables, whose columns begin where those of the header do."""
    header: list[tuple[str, int]] = []
    for number, line in enumerate(lines, start=1):
        if _TABLE.match(line):
            header = [(match[0], match.start()) for match in _COLUMNS.finditer(line)]
            header = [part for each in header for part in _parts(*each)]
            continue
        if not line.strip():
            continue
        ends = [start for _, start in header[1:]] + [len(line)]
        row = {key: line[start:end].strip() for (key, start), end in zip(header, ends, strict=True)}
        yield from _read_row(row, line, number)


def _parts(words: str, start: int) -> Iterator[tuple[str, int]]:
    """Yield column titles, divided by single spaces that do not belong to a title."""
    for match in re.finditer(r"LAST SEEN|FIRST SEEN|NOMINATED NODE|READINESS GATES|\S+", words):
        yield match[0], start + match.start()


def _read_row(row: dict[str, str], line: str, number: int) -> Iterator[Seen]:
    if "REASON" in row and "MESSAGE" in row:
        text = f"{row['REASON']}: {row['MESSAGE']}"
        subject = row.get("OBJECT", "").partition("/")[2]
        is_warning = row.get("TYPE") == "Warning"
        yield Seen(text=text, where=_EVENT, line=number, subject=subject, is_warning=is_warning)
    elif "STATUS" in row and "RESTARTS" in row:
        yield Seen(text=row["STATUS"], where=POD, line=number, subject=row["NAME"])
    elif "STATUS" in row and "VERSION" in row:
        ready = "False" if row["STATUS"].startswith("NotReady") else "True"
        text = f"condition Ready {ready}: {row['STATUS']}"
        yield Seen(text=text, where=_NODE, line=number, subject=row["NAME"])
    else:
        yield Seen(text=line, where=_EVENT, line=number)


def _read_utilisation(lines: Sequence[str]) -> Iterator[Seen]:
    """Average what `nvidia-smi dmon` says of each GPU's multiprocessors."""
    columns: list[str] = []
    samples: dict[str, list[int]] = {}
    for line in lines:
        words = line.split()
        if _DMON.match(line):
            columns = line.lstrip("# ").split()
        elif len(words) == len(columns) and "sm" in columns:
            value = words[columns.index("sm")]
            if value.isdecimal():  # "-" where it is not known; units stand in a line of their own
                samples.setdefault(words[columns.index("gpu")], []).append(int(value[:3]))
    for gpu, values in samples.items():
        mean = sum(values) // len(values)
        text = f"dmon: GPU {gpu} sm {mean} % on average over {len(values)} samples"
        yield Seen(text=text, where=LOG, subject=f"GPU {gpu}")


def _read_descriptions(lines: Sequence[str], subject: str = "") -> Iterator[Seen]:
    """Yield what `kubectl describe` prints of pods and nodes, one after the other."""
    section = reason = ""
    place = 0
    events: list[tuple[int, str]] = []
    for number, line in enumerate(lines, start=1):
        # A message of several lines goes on at the beginning of a line, and may look like a title.
        is_inside = section == "Events" and not _DESCRIBED.match(line)
        heading = None if is_inside else _SECTION.match(line)
        if heading is not None:
            yield from _read_events(events, subject)
            section, events = heading[1], []
            if section == "Name":
                subject = line.partition(":")[2].strip()
        if section == "Events":
            if heading is None:
                events.append((number, line))
            continue
        key = _KEY.match(line)
        if reason and not (key and key[1] != "Reason"):
            yield Seen(text=reason, where=POD, line=place, subject=subject)
            reason = ""
        if key is not None:
            place = place if reason else number
            shown = f"exit code {key[2]}" if key[1] == "Exit Code" else key[2]
            reason = f"{reason} {shown}".strip() if shown != "exit code 0" else reason
        elif section == "Conditions" and line.startswith(" "):
            yield from _read_condition(line, number, subject)
    if reason:
        yield Seen(text=reason, where=POD, line=place, subject=subject)
    yield from _read_events(events, subject)


def _read_condition(line: str, number: int, subject: str) -> Iterator[Seen]:
    kind, *rest = re.split(r" {2,}", line.strip())
    if len(rest) < 4:  # of a pod: type and status only
        return
    status, reason, message = rest[0], rest[-2], rest[-1]
    text = f"condition {kind} {status}: {reason}: {message}"
    yield Seen(text=text, where=_NODE, line=number, subject=subject)


def _read_events(lines: Sequence[tuple[int, str]], subject: str) -> Iterator[Seen]:
    """Yield the rows of a table of events; what is no row continues the message before it."""
    rows: list[tuple[int, str]] = []
    for number, line in lines:
        if _ROW.match(line) or not rows:
            rows.append((number, line))
        elif line.strip():
            rows[-1] = (rows[-1][0], f"{rows[-1][1]} {line.strip()}")
    for number, line in rows:
        kind, *rest = re.split(r" {2,}", line.strip(), maxsplit=4)
        if not kind:
            continue
        text = f"{rest[0]}: {rest[-1]}" if len(rest) == 4 else line.strip()
        yield Seen(
            text=text,
            where=_EVENT,
            line=number,
            subject=subject,
            is_warning=kind == "Warning",
        )

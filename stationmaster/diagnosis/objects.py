"""Events, pods, nodes and jobs as `kubectl get -o yaml` and `-o json` print them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

import yaml

from stationmaster.diagnosis.explaining import Seen
from stationmaster.diagnosis.rules import POD, Where
from stationmaster.domain.errors import BadCommand

_HEAD: Final = re.compile(r"^(?:apiVersion|kind|items):", re.MULTILINE)
_JSON_HEAD: Final = re.compile(r'^\s*\{\s*"(?:apiVersion|kind|items|metadata)"\s*:')
_SEARCHED: Final = 4000  # characters in which the first object names its kind
_LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MAX_DEPTH: Final = 100
_KNOWN: Final = "Event, Pod, Node, PyTorchJob, TrainJob, MPIJob or Job with a status"

_Object = dict[str, Any]


def looks_like_objects(text: str) -> bool:
    """Say whether a text is YAML or JSON of Kubernetes, not a log with JSON in its lines."""
    head = text[:_SEARCHED]
    return _JSON_HEAD.match(head) is not None or (
        _HEAD.search(head) is not None and "kind:" in head
    )


def read_objects(name: str, text: str) -> list[Seen]:
    """List what the objects of a text say of themselves.

    Raises:
        BadCommand: it cannot be parsed, or none of its objects is of a known kind.
    """
    try:
        documents = [json.loads(text)] if _JSON_HEAD.match(text[:_SEARCHED]) else _read_yaml(text)
    except (ValueError, yaml.YAMLError, RecursionError) as exc:
        why = " ".join(str(exc).split())[:160] or type(exc).__name__
        raise BadCommand(
            f"{name} begins like YAML or JSON of Kubernetes and cannot be read: {why}; save it "
            "again with kubectl get events -o json"
        ) from exc
    found = [each for document in documents for each in _objects(document)]
    is_empty = not found and any(isinstance(each, dict) for each in documents)
    if not is_empty and not any(each.get("kind") in _READERS for each in found):
        raise BadCommand(
            f"{name} has no {_KNOWN}; save it with kubectl get events,pods,nodes -o yaml, and "
            "check a manifest with stationmaster lint FILE"
        )
    lines = _Lines(text)
    return [
        Seen(
            text=said,
            where=where,
            line=lines.find(said),
            subject=subject,
            at=at,
            is_warning=each.get("type") == "Warning",
        )
        for each in found
        if each.get("kind") in _READERS
        for said, where, subject, at in _READERS[each["kind"]](each)
    ]


def _read_yaml(text: str) -> list[Any]:
    """Parse the documents, once reading them is known to end: PyYAML follows nesting by recursion,
    in C, and repeats what aliases stand for.

    Raises:
        ValueError: it is nested too deeply, or has aliases, which kubectl does not write.
    """
    depth = 0
    for event in yaml.parse(text, Loader=_LOADER):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        line = event.start_mark.line + 1 if event.start_mark is not None else 0
        if isinstance(event, yaml.AliasEvent):
            raise ValueError(
                f"line {line} has the alias *{event.anchor}, which kubectl never writes"
            )
        if depth > _MAX_DEPTH:
            raise ValueError(f"line {line} is nested more than {_MAX_DEPTH} levels deep")
    return list(yaml.load_all(text, Loader=_LOADER))


def _objects(document: object) -> Iterator[_Object]:
    if isinstance(document, dict):
        items = document.get("items")
        if isinstance(items, list):
            kind = str(document.get("kind", "")).removesuffix("List")
            for item in items:
                if isinstance(item, dict):
                    yield item if "kind" in item else item | {"kind": kind}
        else:
            yield document


_Said = tuple[str, frozenset[Where], str, datetime | None]
_DISRUPTED: Final = "DisruptionTarget"
_EVENT: Final = frozenset({Where.EVENT})
_NODE: Final = frozenset({Where.NODE})


def _event(event: _Object) -> Iterator[_Said]:
    involved = _dict(event, "involvedObject") or _dict(event, "regarding")
    message = event.get("message") or event.get("note") or ""
    at = (
        event.get("lastTimestamp")
        or _dict(event, "series").get("lastObservedTime")
        or event.get("eventTime")
        or event.get("deprecatedLastTimestamp")
    )
    text = f"{event.get('reason', '')}: {message}"
    yield text, _EVENT, str(involved.get("name", "")), _time(at)


def _pod(pod: _Object) -> Iterator[_Said]:
    name, status = str(_dict(pod, "metadata").get("name", "")), _dict(pod, "status")
    if status.get("reason") or status.get("message"):
        yield _joined(status.get("reason"), status.get("message")), POD, name, None
    for key in ("initContainerStatuses", "containerStatuses"):
        for container in _dicts(status, key):
            for state in (_dict(container, "lastState"), _dict(container, "state")):
                waiting, ended = _dict(state, "waiting"), _dict(state, "terminated")
                if waiting:
                    said = _joined(waiting.get("reason"), waiting.get("message"))
                    yield said, POD, name, None
                if ended and ended.get("exitCode") != 0:
                    code = f"exit code {ended.get('exitCode')}"
                    said = _joined(ended.get("reason"), code, ended.get("message"))
                    yield said, POD, name, _time(ended.get("finishedAt"))
    for condition in _dicts(status, "conditions"):
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            said = _joined(condition.get("reason"), condition.get("message"))
            yield said, POD, name, _time(condition.get("lastTransitionTime"))
        if condition.get("type") == _DISRUPTED and condition.get("status") == "True":
            said = _joined(_DISRUPTED, condition.get("reason"), condition.get("message"))
            yield said, POD, name, _time(condition.get("lastTransitionTime"))


def _node(node: _Object) -> Iterator[_Said]:
    name = str(_dict(node, "metadata").get("name", ""))
    for condition in _dicts(_dict(node, "status"), "conditions"):
        said = f"condition {condition.get('type')} {condition.get('status')}"
        said = _joined(said, condition.get("reason"), condition.get("message"))
        yield said, _NODE, name, _time(condition.get("lastTransitionTime"))


def _job(job: _Object) -> Iterator[_Said]:
    name = str(_dict(job, "metadata").get("name", ""))
    for condition in _dicts(_dict(job, "status"), "conditions"):
        if condition.get("type") == "Failed" and condition.get("status") == "True":
            said = _joined(condition.get("reason"), condition.get("message"))
            yield said, _EVENT, name, _time(condition.get("lastTransitionTime"))


_READERS: Final = {
    "Event": _event,
    "Pod": _pod,
    "Node": _node,
    "PyTorchJob": _job,
    "TrainJob": _job,
    "MPIJob": _job,
    "Job": _job,
}


class _Lines:
    """Finds the line in which a sentence begins; sentences come in the order of the text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._line = 1

    def find(self, said: str) -> int | None:
        """Find the line, counted from 1; None where the text writes the sentence in another way."""
        for part in reversed(said.split(": ", 2)):
            words = json.dumps(part, ensure_ascii=False)[1:-1][:30]
            if not words:
                continue
            place = self._text.find(words, self._at)
            if place < 0:
                self._at, self._line = 0, 1
                place = self._text.find(words)
            if place >= 0:
                self._line += self._text.count("\n", self._at, place)
                self._at = place
                return self._line
        return None


def _joined(*parts: object) -> str:
    return ": ".join(str(part) for part in parts if part)


def _dict(value: _Object, key: str) -> _Object:
    found = value.get(key)
    return found if isinstance(found, dict) else {}


def _dicts(value: _Object, key: str) -> list[_Object]:
    found = value.get(key)
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _time(value: object) -> datetime | None:
    if isinstance(value, datetime):  # YAML has times of its own
        return value if value.tzinfo else value.replace(tzinfo=UTC)
    try:
        return datetime.fromisoformat(str(value)) if value else None
    except ValueError:
        return None

"""`stationmaster diagnose`: names the root cause in logs, events and descriptions that were saved.

Called by `cli/main.py`. What the text means is decided in `stationmaster.diagnosis`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Final

from stationmaster.cli.input_files import STDIN, opened
from stationmaster.diagnosis.explaining import UNEXPLAINED, Context, Finding, Role, Source, explain
from stationmaster.diagnosis.reading import read_source
from stationmaster.domain.catalogue.instances import get_instance
from stationmaster.domain.errors import BadCommand

_MAX_LISTED: Final = 12  # consequences; --json has all
_MAX_BYTES: Final = 512 * 1024**2  # five million usual lines, which take half a minute
_MAX_UNREADABLE: Final = 0.2  # part of the characters; a log in an old encoding has some
_UTF_16: Final = (b"\xff\xfe", b"\xfe\xff")  # what PowerShell's > begins a file with


def diagnose(arguments: argparse.Namespace) -> int:
    """Print what the files say, the root cause first; the exit code is 0 whatever that is."""
    context = Context()
    if arguments.instance:
        instance = get_instance(arguments.instance)
        context = Context(instance=instance.name, num_efa=instance.num_efa)
    findings = explain([_read(name) for name in arguments.files], context)
    if arguments.json:
        print(json.dumps([each.model_dump(mode="json") for each in findings], indent=2))
    else:
        print("\n".join(shown(findings)))
    return 0


def shown(findings: Sequence[Finding]) -> list[str]:
    """Return the findings as lines for a person."""
    if not findings:
        return [
            "nothing that is known as a failure was found",
            "give also the logs of all pods (kubectl logs POD), kubectl get events and kubectl "
            "describe pod",
        ]
    lines = []
    if findings[0].role is Role.CONSEQUENCE:
        lines = [
            "Root cause",
            "  not in these files: they only say that another process is gone or late",
            "    do: give the logs of all pods (kubectl logs POD), kubectl get events and kubectl "
            "describe pod",
            f"    do: {findings[0].remedy}",
        ]
    for role, title in (
        (Role.CAUSE, "Root cause"),
        (Role.ALSO, "Also failed"),
        (Role.CONSEQUENCE, "Followed from it"),
        (Role.NOTE, "Worth knowing"),
    ):
        group = [each for each in findings if each.role is role]
        if not group:
            continue
        lines += ["", title] if lines else [title]
        for each in group[:_MAX_LISTED]:
            lines += _consequence(each) if role is Role.CONSEQUENCE else _finding(each)
        if len(group) > _MAX_LISTED:
            lines.append(f"  and {len(group) - _MAX_LISTED} more; --json lists them")
    return lines


def _finding(finding: Finding) -> list[str]:
    name = "" if finding.rule == UNEXPLAINED else f"  [{finding.rule}]"
    return [
        f"  {finding.diagnosis}{name}",
        f"    {_place(finding)}: {finding.evidence}",
        f"    do: {finding.remedy}",
    ]


def _consequence(finding: Finding) -> list[str]:
    if finding.rule == UNEXPLAINED:  # the line itself is all that is known
        return [f"  {finding.diagnosis}", f"    {_place(finding)}: {finding.evidence}"]
    return [f"  {finding.diagnosis}  [{finding.rule}]", f"    {_place(finding)}"]


def _place(finding: Finding) -> str:
    line = f":{finding.line}" if finding.line is not None else ""
    subject = f" ({finding.subject})" if finding.subject else ""
    others = f", and {finding.count - 1} more" if finding.count > 1 else ""
    return f"{finding.source}{line}{subject}{others}"


def _read(name: str) -> Source:
    label = "standard input" if name == STDIN else name
    advice = (
        "give a file with a pod's log, events, or what kubectl describe printed, or - for standard "
        "input"
    )
    with opened(name, advice=advice) as file:
        content = file.read(_MAX_BYTES + 1)
    if len(content) > _MAX_BYTES:
        raise BadCommand(
            f"{label} is larger than {_MAX_BYTES // 1024**2} MiB; give its end, where a failure "
            "is: tail -c 200M FILE > end.log"
        )
    encoding = "utf-16" if content.startswith(_UTF_16) else "utf-8-sig"
    text = content.decode(encoding, errors="replace")
    if text.count("\0") + text.count("\ufffd") > len(text) * _MAX_UNREADABLE:
        raise BadCommand(
            f"{label} is no text; give a log as kubectl logs prints it, unpacked where it is packed"
        )
    if not text.strip():
        raise BadCommand(
            f"{label} is empty; save a log with kubectl logs POD > FILE, or events with kubectl "
            "get events > FILE"
        )
    return read_source(label, text)

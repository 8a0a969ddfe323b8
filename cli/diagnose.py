"""`stationmaster diagnose`: names the root cause in logs, events and descriptions that were saved.

Called by `cli/main.py`. What the text means is decided in `stationmaster.diagnosis`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from stationmaster.diagnosis.explaining import UNEXPLAINED, Context, Finding, Role, Source, explain
from stationmaster.diagnosis.reading import read_source
from stationmaster.domain.catalogue.instances import get_instance
from stationmaster.domain.errors import BadCommand

_STDIN: Final = "-"
_MAX_LISTED: Final = 12  # consequences; --json has all


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
    """The findings as lines for a person."""
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
    return [f"  {finding.diagnosis}  [{finding.rule}]", f"    {_place(finding)}"]


def _place(finding: Finding) -> str:
    line = f":{finding.line}" if finding.line is not None else ""
    subject = f" ({finding.subject})" if finding.subject else ""
    others = f", and {finding.count - 1} more" if finding.count > 1 else ""
    return f"{finding.source}{line}{subject}{others}"


def _read(name: str) -> Source:
    if name == _STDIN:
        label, content = "standard input", sys.stdin.buffer.read()
    else:
        label = name
        try:
            content = Path(name).read_bytes()
        except (OSError, ValueError) as exc:
            why = getattr(exc, "strerror", None) or str(exc)
            raise BadCommand(
                f'cannot read "{name}": {why}; give a file with a pod\'s log, events, or what '
                "kubectl describe printed, or - for standard input"
            ) from exc
    text = content.decode("utf-8-sig", errors="replace")
    if not text.strip():
        raise BadCommand(
            f"{label} is empty; save a log with kubectl logs POD > FILE, or events with kubectl "
            "get events > FILE"
        )
    return read_source(label, text)

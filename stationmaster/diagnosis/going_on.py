"""Where a log and a list of events show that trouble passed: what came before is no failure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from stationmaster.domain.progress_lines import ProgressLine, read_line

# "[pod/NAME/CONTAINER] " is what `kubectl logs --prefix` puts before a line.
_POD: Final = re.compile(r"^\[pod/([\w.-]{1,253})/[\w.-]{1,63}\] ?")
_ENOUGH: Final = 2  # steps: when one rank fails, another may still report the one it is in


def pod_of(text: str) -> str:
    """Return the pod that a line names before its text, or ""."""
    match = _POD.match(text)
    return match[1] if match else ""


def without_pod(text: str) -> str:
    """Return the line without the pod that it names."""
    return _POD.sub("", text)


def going_on(lines: Sequence[str]) -> Mapping[str, int]:
    """Say for each pod, "" where lines name none, before which line its training went on.

    Lines count from 1. After that line two steps or more were reported with a loss that is a
    number, so no failure before it ended the run.
    """
    steps: dict[str, set[object]] = {}
    found: dict[str, int] = {}
    for number in range(len(lines), 0, -1):
        step = _reported_step(lines[number - 1])
        if step is None:
            continue
        pod = pod_of(lines[number - 1])
        if pod not in found:
            seen = steps.setdefault(pod, set())
            seen.add(step)
            if len(seen) == _ENOUGH:
                found[pod] = number
                if not pod:
                    break
    return found


def started(events: Iterable[tuple[str, str]]) -> frozenset[str]:
    """List the pods that started, from texts and subjects of events: they had place and volumes."""
    return frozenset(subject for text, subject in events if subject and text.startswith("Started:"))


def _reported_step(text: str) -> object:
    """Return what tells a step with a loss that is a number from others; None for other lines."""
    if '"stationmaster"' in text:
        line = read_line(text)
        if not isinstance(line, ProgressLine) or line.loss_nats is None:
            return None
        return line.step if math.isfinite(line.loss_nats) else None
    # The bot draws cards with findings and reads no log: it need not compile what reads progress.
    from stationmaster.domain.foreign.findings import InEpoch, Logged, Progress
    from stationmaster.domain.foreign.reader import read

    match read(text):
        case Progress(step=step, loss_nats=float()):
            return step
        case InEpoch(epoch, iteration, float()):
            return epoch, iteration
        case Logged(loss_nats=float()):
            return text
        case _:
            return None

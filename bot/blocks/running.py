"""What a training run waits for, or what is wrong with it and what to do, for card and thread.

It is found when they are drawn; see `stationmaster.diagnosis.running`.
"""

from __future__ import annotations

from collections import Counter

from bot.blocks import mrkdwn as md
from stationmaster.diagnosis.running import (
    RunningFinding,
    apart_finding,
    network_finding,
    running_findings,
)
from stationmaster.domain.detected import Detection
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import NetworkObserved, PodsApart


def running_lines(run: Run) -> list[str]:
    """List the findings, one line each; none for a healthy run."""
    return [_line(found) for found in running_findings(run)]


def network_line(event: NetworkObserved, run: Run) -> str:
    """Say that EFA is not used, or less of it than there is."""
    found = network_finding(event, run)
    if found is None:
        return f"\u25b8 {md.code(event.pod, 80)} does not use all of its EFA interfaces"
    return _line(found)


def apart_line(event: PodsApart, run: Run) -> str:
    """Say that the nodes train each for itself."""
    return _line(apart_finding(event, run))


def detection_line(detection: Detection) -> str:
    """Say what was found wrong, by which figures, and what to do."""
    return _line(RunningFinding(detection.evidence, detection.remedy))


def _line(found: RunningFinding) -> str:
    return (
        f"\u26a0\ufe0f *{md.with_code(found.text, 400)}*. To do: {md.with_code(found.remedy, 500)}"
    )


def waiting_lines(run: Run) -> list[str]:
    """List the pods of each phase, and what a run without a step waits for."""
    if run.phase.is_terminal or not run.pods:
        return []
    of_phase = Counter(pod.phase for pod in run.pods.values())
    counts = (f"{of_phase[phase]} {md.escape(phase.lower(), 20)}" for phase in sorted(of_phase))
    return [f"pods: {', '.join(counts)}", awaited(run)]


def awaited(run: Run) -> str:
    """Say what a run with pods waits for before its first step; "" where that is not known."""
    if run.progress is not None or not run.pods:
        return ""
    pending = [pod for pod in run.pods.values() if pod.phase == "Pending"]
    if pending:
        whys = ", ".join(sorted({pod.reason for pod in pending} - {""}))
        return f"waits for pods to start: {md.escape(whys, 120) or 'nodes pull the image'}"
    if any(pod.phase != "Running" for pod in run.pods.values()):
        return ""
    preparing, started_at = run.preparing, run.training_started_at
    if preparing is not None and (started_at is None or preparing.at >= started_at):
        return f"waits for {md.escape(preparing.waits_for, 120)}"
    if started_at is not None:
        return "waits for its first step"
    if run.request.uses_own_trainer:
        return "waits for the trainer, which starts on every node"
    return "waits for the program: no line of its log names a step yet"

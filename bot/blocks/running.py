"""What a run that trains waits for, or what is wrong with it and what to do, for card and thread.

What is wrong is found when they are drawn (`stationmaster.diagnosis.running`), from what the run
keeps.
"""

from __future__ import annotations

from bot.blocks import mrkdwn as md
from stationmaster.diagnosis.running import RunningFinding, network_finding, running_findings
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import NetworkObserved


def running_lines(run: Run) -> list[str]:
    """One line a finding; none for a run that does well."""
    return [_line(found) for found in running_findings(run)]


def network_line(event: NetworkObserved, run: Run) -> str:
    """That EFA is not used, or less of it than there is."""
    found = network_finding(event, run)
    if found is None:
        return f"\u25b8 {md.code(event.pod, 80)} does not use all of its EFA interfaces"
    return _line(found)


def _line(found: RunningFinding) -> str:
    return f"\u26a0\ufe0f *{md.escape(found.text, 400)}*. To do: {md.escape(found.remedy, 500)}"


def pods(run: Run) -> list[str]:
    if run.phase.is_terminal or not run.pods:
        return []
    of_phase: dict[str, int] = {}
    for pod in run.pods.values():
        of_phase[pod.phase] = of_phase.get(pod.phase, 0) + 1
    counts = ", ".join(
        f"{number} {md.escape(phase.lower(), 20)}" for phase, number in sorted(of_phase.items())
    )
    return [f"pods: {counts}"]


def awaited(run: Run) -> str:
    """What a run waits for that has not taken a step; pods and trainer have reported it."""
    phases = {pod.phase for pod in run.pods.values()}
    if run.phase.is_terminal or run.progress is not None or not phases:
        return ""
    if "Pending" in phases:
        whys = sorted({pod.reason for pod in run.pods.values() if pod.phase == "Pending"} - {""})
        why = f" ({md.escape(', '.join(whys), 120)})" if whys else ""
        return f"waits for its pods{why}: nodes pull the image"
    if run.training_started_at is not None:
        return "waits for its first step"
    if run.request.uses_own_trainer:
        return "waits for the trainer: it loads libraries, tokenizer and data, and joins its ranks"
    return "waits for the program: no line of its log names a step yet"

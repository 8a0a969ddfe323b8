"""What is wrong with a run that trains and what to do about it, for its card and its thread.

It is found when they are drawn (`stationmaster.diagnosis.running`), from what the run keeps.
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

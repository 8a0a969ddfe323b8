"""The program that pods of a played run find in place of torchrun: it only says that it trains."""

from __future__ import annotations

from pathlib import Path

from stationmaster.domain.progress_lines import (
    FailedLine,
    FinishedLine,
    ProgressLine,
    StartedLine,
)

# Says what a trainer says. The run's plan decides how it ends: `fails`, `exits` or `waits`.
_TORCHRUN = """\
#!/bin/sh
for word; do :; done
plan="$(cat "{plans}/${{word##*/}}" 2>/dev/null)"
echo '{started}'
echo '{step_1}'
if [ "$plan" = fails ]; then
  echo '{failed}'
  exit 1
fi
if [ "$plan" = exits ]; then
  echo 'Traceback (most recent call last):' >&2
  echo "KeyError: 'model'" >&2
  exit 3
fi
while [ "$plan" = waits ]; do
  sleep 0.2
  plan="$(cat "{plans}/${{word##*/}}")"
done
echo '{step_2}'
echo '{finished}'
"""
_LINES = {
    "started": StartedLine(seq=0, total_steps=2, world_size=1),
    "step_1": ProgressLine(seq=1, step=1, total_steps=2, loss_nats=8.5),
    "failed": FailedLine(seq=2, message="the loss is not a number"),
    "step_2": ProgressLine(seq=2, step=2, total_steps=2, loss_nats=8.25),
    "finished": FinishedLine(seq=3, step=2, loss_nats=8.25),
}


def programs_in(directory: Path) -> Path:
    """A folder of programs with the test's torchrun, which looks for plans in a folder beside."""
    plans, programs = directory / "plans", directory / "bin"
    plans.mkdir(parents=True)
    programs.mkdir()
    torchrun = programs / "torchrun"
    lines = {name: line.text() for name, line in _LINES.items()}
    torchrun.write_text(_TORCHRUN.format(plans=plans, **lines))
    torchrun.chmod(0o755)
    return programs

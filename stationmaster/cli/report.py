"""What `stationmaster report` writes of a run, or of two: one page for a browser, or JSON."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from stationmaster.charts.report import data_of, page
from stationmaster.cli.deployed import bot_settings
from stationmaster.commands.looking import MOST_NAMED
from stationmaster.commands.reporting import read_report
from stationmaster.domain.errors import BadCommand, PermanentError, RunNotFound
from stationmaster.domain.ids import RunId
from stationmaster.domain.keys.resume_from import NEWEST
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.sizes import size_text
from stationmaster.services import Services


def report(arguments: argparse.Namespace) -> int:
    """Write the report into the named files; into RUN.html where none is named."""
    services = Services(bot_settings(arguments))
    named = [arguments.run_id, *([arguments.compare] if arguments.compare else [])]
    runs = [_run(services, label) for label in named]
    if len({run.run_id for run in runs}) < len(runs):
        raise BadCommand(f"{' and '.join(named)} are one run, {runs[0].run_id}; name another one")
    reports = [read_report(services, run) for run in runs]
    html: Path | None = arguments.html
    if html is None and arguments.json is None:
        html = Path(f"{runs[0].run_id}.html")
    if html is not None:
        _write(html, page(reports))
    if arguments.json is not None:
        _write(arguments.json, json.dumps(data_of(reports), indent=1) + "\n")
    return 0


def _run(services: Services, label: str) -> Run:
    """Find a run of any channel by its id, its name, or `last` for the newest."""
    run = services.runs.find(RunId(label))
    if run is not None:
        return run
    for run in services.runs.list_recent(limit=MOST_NAMED):
        if label in (NEWEST, run.request.name):
            return run
    raise RunNotFound(
        f'no run is called "{label[:60]}"; give its id as on its card, its name, or {NEWEST}'
    )


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as exc:
        raise PermanentError(f"cannot write {path}: {exc.strerror}; name another file") from exc
    print(f"wrote {path}, {size_text(path.stat().st_size)}")

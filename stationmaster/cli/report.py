"""What `stationmaster report` writes of a run, or of two: a page, JSON, or a trace each."""

from __future__ import annotations

import argparse
import json
import re
from http.client import HTTPException
from pathlib import Path
from urllib.request import Request, urlopen

from stationmaster.charts.report import data_of, page
from stationmaster.charts.trace import trace_of
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
    if html is None and arguments.json is None and arguments.otlp is None:
        html = Path(f"{runs[0].run_id}.html")
    if html is not None:
        _write(html, page(reports))
    if arguments.json is not None:
        _write(arguments.json, json.dumps(data_of(reports), indent=1) + "\n")
    if arguments.otlp is not None:
        traces = json.dumps({"resourceSpans": [trace_of(each) for each in reports]})
        is_address = arguments.otlp.startswith(("http://", "https://"))
        _send(arguments.otlp, traces) if is_address else _write(Path(arguments.otlp), traces)
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


def _send(url: str, traces: str) -> None:
    address = url if url.endswith("/v1/traces") else f"{url.rstrip('/')}/v1/traces"
    try:
        request = Request(address, traces.encode(), {"Content-Type": "application/json"})
        with urlopen(request, timeout=20) as answer:
            said = answer.read(1000).decode(errors="replace")
    except (OSError, ValueError, HTTPException) as exc:
        raise PermanentError(
            f"{address} took no trace: {exc}; give an OTLP/HTTP receiver, as http://127.0.0.1:4318"
        ) from exc
    if re.search(r'"rejectedSpans"\s*:\s*"?[1-9]', said):
        raise PermanentError(f"{address} rejected spans: {said}")
    print(f"sent to {address}, {size_text(len(traces))}")


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as exc:
        raise PermanentError(f"cannot write {path}: {exc.strerror}; name another file") from exc
    print(f"wrote {path}, {size_text(path.stat().st_size)}")

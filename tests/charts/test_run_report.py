"""The report page of a run: what it shows, and that nothing from outside becomes code."""

from __future__ import annotations

import base64
import json
import re
import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import Parse
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData
from playwright.sync_api import sync_playwright

from stationmaster.charts.report import RunReport, page
from stationmaster.charts.trace import trace_of
from stationmaster.domain.cluster.aggregate import Check
from stationmaster.domain.cluster.resources import Resource
from stationmaster.domain.run import events as ev
from tests.support.factories import RUN_ID, START, make_cluster, make_event, make_request, make_run

_CODE = "document.title='owned'"
HOSTILE = f"</script><script>{_CODE}</script><img src=x onerror={_CODE}>"


def make_report(*, run_id: str = RUN_ID, text: str = "", gpu: bool = True) -> RunReport:
    """A run of four steps that was resumed at the second, with `text` wherever others write."""

    def at(minutes: float):
        return START + timedelta(minutes=minutes)

    points = [
        make_event(
            ev.ProgressReported, at=at(3), seq=step, step=step, total_steps=4, loss_nats=8.0 / step,
            tokens_per_s=1000.0 * step, mfu=0.4 if gpu else None, memory_gib=1.5,
        )
        for step in range(1, 5)
    ]  # fmt: skip
    phases = [
        (ev.RunPhase.REQUESTED, START),
        (ev.RunPhase.RUNNING, at(2)),
        (ev.RunPhase.FAILED, at(9)),
    ]
    request = make_request(command=f"/train tiny-llama {text}")
    run = make_run(
        ev.RunPhase.FAILED, run_id=run_id, phases=phases, ended_at=at(9), request=request,
        reason=f"exit code 1 {text}", progress=points[-1],
    )  # fmt: skip
    return RunReport(
        made_at=at(20),
        title=text or "tiny-llama",
        machines="2 x m5.2xlarge",
        run=run,
        cluster=None,
        points=tuple(points),
        events=(
            make_event(ev.TrainingResumed, at=at(4), step=2, path=text),
            make_event(ev.TrainingEvaluated, at=at(5), step=4, loss_nats=2.5),
            make_event(ev.ProcessFailed, at=at(9), pod=f"worker-0{text}"[:60], line=text),
        ),
        cost_usd=0.25,
        costs=((START, 0.0), (at(9), 0.25)),
        paid={"training": 240.0, "starting": 60.0},
        over_at=at(9),
        diagnosis=(text or "out of memory",),
        no_manifest="it has saved nothing",
    )


def opened_page(html: str, file: Path) -> tuple[dict[str, Any], list[str], list[str]]:
    """What a phone's browser makes of a page, what it asked for, and what it complained of."""
    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("no chromium or google-chrome on this machine")
    file.write_text(html)
    asked: list[str] = []
    said: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        shown = browser.new_page(viewport={"width": 390, "height": 800})
        shown.on("request", lambda request: asked.append(request.url))
        shown.on("console", lambda message: said.append(message.text))
        shown.on("pageerror", lambda error: said.append(str(error)))
        shown.goto(file.as_uri())
        shown.wait_for_selector("h2", state="attached")
        found = shown.evaluate(SEEN)
        browser.close()
    return found, asked, said


SEEN = """() => ({
  title: document.title,
  width: document.documentElement.scrollWidth,
  text: document.body.textContent,
  scripts: document.scripts.length,
  charts: Object.fromEntries([...document.querySelectorAll(".chart")].map((each) => [each.id, {
    axes: [each.layout.xaxis.title.text, each.layout.yaxis.title.text],
    marks: (each.layout.shapes ?? []).map((shape) => shape.x0),
    lines: each.data.map(({ name, x, y, base, line }) => ({ name, x, y, base, dash: line?.dash })),
  }])),
})"""


def test_page_in_a_browser_draws_both_runs_and_keeps_hostile_text_as_text(tmp_path: Path) -> None:
    other = make_report(run_id="tiny-llama-00000002", gpu=False)
    file = tmp_path / "report.html"

    seen, asked, said = opened_page(page([make_report(text=HOSTILE), other]), file)

    assert (asked, said) == ([file.as_uri()], [])
    assert (seen["width"], seen["scripts"]) == (390, 3)
    assert seen["title"] == f"{HOSTILE} and tiny-llama"
    assert seen["text"].count(HOSTILE) > 4
    for shown in ("$0.2500", "80.0 %", "it has saved nothing", "Why it failed"):
        assert shown in seen["text"]
    charts = seen["charts"]
    assert [*charts] == ["loss", "tokens", "mfu", "memory", "cost", "phases"]
    assert charts["loss"]["axes"] == ["step", "loss (nats)"]
    assert charts["cost"]["axes"] == ["minutes since the request", "cost (US dollars)"]
    first, second, held_out, _ = charts["loss"]["lines"]
    assert (first["name"], second["name"]) == (RUN_ID, "tiny-llama-00000002")
    assert (first["dash"], second["dash"]) == ("solid", "dash")
    assert first["y"] == [8.0, 4.0, 8 / 3, 2.0]
    assert (held_out["x"], held_out["y"], charts["loss"]["marks"]) == ([4], [2.5], [2, 2])
    assert [line["name"] for line in charts["mfu"]["lines"]] == [RUN_ID]
    bars = charts["phases"]["lines"][0]
    assert (bars["y"], bars["base"], bars["x"]) == (["requested", "running"], [0, 2], [2, 7])


def test_page_without_a_browser_has_the_data_as_data_and_forbids_other_scripts() -> None:
    shown = page([make_report(text=HOSTILE)])

    found = re.search(r'id="data">(.*?)</script>', shown, re.DOTALL)
    assert found is not None
    assert "<" not in found[1]
    assert json.loads(found[1])["runs"][0]["diagnosis"] == [HOSTILE]
    policy = shown.partition("script-src ")[2].partition(";")[0]
    assert re.fullmatch(r"'sha256-[^']{44}' 'sha256-[^']{44}'", policy)


def test_trace_is_read_by_the_protocols_own_classes_and_has_the_parts_of_the_run() -> None:
    at = [START + timedelta(minutes=minute) for minute in range(3)]
    nodes = Resource(kind="node group", name="training", requested_at=at[1], active_at=at[2])
    check = Check(name="access", passed=False, detail="no way in", at=at[2])
    cluster = make_cluster().model_copy(update={"resources": {"n": nodes}, "checks": [check]})
    saved = make_event(ev.CheckpointSaved, at=at[2], step=2, duration_s=30.0)
    report = make_report().model_copy(update={"cluster": cluster, "events": (saved,)})

    spans, root = parsed(trace_of(report)), parsed(trace_of(make_report()))[0]
    assert {span.trace_id for span in spans} == {root.trace_id}
    assert [span.parent_span_id for span in spans] == [b"", *[root.span_id] * 5]
    assert len({span.span_id for span in spans}) == 6
    status = [(span.status.code, span.status.message) for span in spans]
    zero = root.start_time_unix_nano
    starts = [(span.start_time_unix_nano - zero) / 60e9 for span in spans]
    ends = [(span.end_time_unix_nano - zero) / 60e9 for span in spans]
    assert [*zip([span.name for span in spans], starts, ends, status, strict=True)] == [
        (f"run {RUN_ID}", 0, 9, (2, report.run.reason)),
        ("requested", 0, 2, (0, "")),
        ("running", 2, 9, (0, "")),
        ("checkpoint of step 2", 1.5, 2, (0, "")),
        ("node group training", 1, 2, (0, "")),
        ("check access", 2, 2, (2, "no way in")),
    ]


def parsed(trace: dict[str, Any]) -> list[Any]:
    """Read it strictly; OTLP has ids in hex, where protobuf's own JSON has base64."""
    text = json.dumps({"resourceSpans": [trace]})
    for written in {*re.findall(r'Id": "([0-9a-f]+)', text)}:
        text = text.replace(written, base64.b64encode(bytes.fromhex(written)).decode())
    return [*Parse(text, TracesData()).resource_spans[0].scope_spans[0].spans]

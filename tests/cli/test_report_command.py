"""`stationmaster report`: what it writes of a run of a local mode, and what it refuses."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from stationmaster.aws.table import table_definition
from stationmaster.cli.main import main
from stationmaster.domain.ids import RunId
from stationmaster.domain.run import events as ev
from stationmaster.local.aws import LocalAws
from stationmaster.services import Services
from stationmaster.settings import Settings
from tests.support.answering_server import answering_server
from tests.support.factories import START, make_event, make_request, make_requested

RUN, OTHER = RunId("tiny-llama-000000aa"), RunId("tiny-llama-000000bb")


@pytest.fixture(scope="module")
def state_dir(aws: LocalAws, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A local mode with two runs; the second was named."""
    aws.client("dynamodb").create_table(**table_definition("reported"))
    settings = Settings(region=aws.region, table_name="reported", bus_name="b")
    state_dir = tmp_path_factory.mktemp("state")
    files = {"aws.env": aws.environment(), "settings.env": settings.to_environment()}
    for name, variables in files.items():
        lines = (f"export {key}='{value}'" for key, value in variables.items())
        (state_dir / name).write_text("\n".join(lines))
    with pytest.MonkeyPatch.context() as patched:
        for key, value in aws.environment().items():
            patched.setenv(key, value)
        runs = Services(settings).runs
        for run_id, name in ((RUN, ""), (OTHER, "books")):
            requested = make_requested(run_id, request=make_request(name=name))
            runs.create(requested, dedup_key=run_id, dedup_until=START)
            for seq, step in enumerate((1, 2, 3, 2, 3), 1):
                report = {"seq": seq, "step": step, "total_steps": 3, "loss_nats": 9.0 - seq}
                at = START + timedelta(seconds=seq)
                event = {"event_id": f"p{seq}", "run_id": run_id, "at": at, **report}
                runs.record(run_id, [make_event(ev.ProgressReported, **event)])
    return state_dir


@pytest.fixture(autouse=True)
def _own_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, aws: LocalAws
) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(aws.environment())
    monkeypatch.chdir(tmp_path)
    yield
    os.environ.clear()  # of what the command has read from the state directory as well
    os.environ.update(before)


def test_page_and_data_have_each_step_once(state_dir: Path, tmp_path: Path) -> None:
    files = ("--html", "two.html", "--json", "two.json")
    code = main(["report", RUN, "--compare", "books", *files, "--state-dir", str(state_dir)])

    runs = json.loads((tmp_path / "two.json").read_text())["runs"]
    page = (tmp_path / "two.html").read_text()
    assert code == 0
    assert [run["run"]["run_id"] for run in runs] == [RUN, OTHER]
    assert [(p["step"], p["loss_nats"]) for p in runs[0]["points"]] == [(1, 8), (2, 5), (3, 4)]
    assert [event["type"] for event in runs[0]["events"]] == ["run.requested"]
    assert "artifacts bucket" in runs[0]["no_manifest"]
    assert f'"run_id": "{OTHER}"' in page


@pytest.mark.parametrize(
    ("words", "said", "code"),
    [
        (["nothing"], 'no run is called "nothing"; give its id', 2),
        (["books", "--compare", OTHER], "are one run", 2),
        ([RUN, "--html", "no/such/x.html"], "cannot write no/such/x.html: No such file", 1),
        ([RUN, "--otlp", "http://:x"], "http://:x/v1/traces took no trace: ", 1),
    ],
)
def test_report_that_cannot_be_made_is_one_sentence(
    state_dir: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str, code: int
) -> None:
    assert main(["report", *words, "--state-dir", str(state_dir)]) == code

    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_trace_goes_to_a_file_or_to_a_receiver(state_dir: Path, capsys: Any) -> None:
    at = ["report", RUN, "--state-dir", str(state_dir), "--otlp"]
    with answering_server() as server:
        server.say((200, "{}"), (200, {"partialSuccess": {"rejectedSpans": "2"}}), (404, "no"))
        places = ("trace.json", server.url, f"{server.url}/", f"{server.url}/v1/traces")
        assert [main([*at, place]) for place in places] == [0, 0, 1, 1]

    assert f'"name": "run {RUN}"' in Path("trace.json").read_text()
    assert {request[:2] for request in server.requests} == {("POST", "/v1/traces")}
    said = capsys.readouterr().err
    assert re.search("rejected spans: .*\n.*took no trace: HTTP Error 404", said)

"""`stationmaster results`: what it prints, what it downloads, and its exit codes."""

from __future__ import annotations

import json
import shlex
from itertools import count
from pathlib import Path

import pytest

from stationmaster.aws.table import table_definition
from stationmaster.cli.main import main
from stationmaster.domain.ids import RunId
from stationmaster.domain.run import events as ev
from stationmaster.domain.sizes import size_text
from stationmaster.local.aws import DeploymentSpec, LocalAws
from stationmaster.services import Services
from stationmaster.settings import Settings
from tests.support.artifacts_world import BUCKET, SavedRun, save_run
from tests.support.factories import START, make_event, make_requested

RUN_IDS = (RunId(f"tiny-llama-{number:08x}") for number in count())
FILES = {"model/config.json": b"{}", "metrics.jsonl": b'{"step": 1}\n'}


@pytest.fixture(scope="module", autouse=True)
def bucket(aws: LocalAws) -> None:
    aws.deploy(DeploymentSpec(buckets=[BUCKET]))


@pytest.fixture
def environment(aws: LocalAws, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on the machine of somebody who uses the AWS command line."""
    for name, value in aws.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("STATIONMASTER_ARTIFACTS_BUCKET", raising=False)


@pytest.fixture
def saved(aws: LocalAws, environment: None) -> SavedRun:
    return save_run(aws.client("s3"), next(RUN_IDS), FILES)


def test_results_are_listed_as_json(saved: SavedRun, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["results", saved.run_id, "--bucket", BUCKET, "--json"])

    assert code == 0
    assert json.loads(capsys.readouterr().out) == [
        {"path": file.path, "num_bytes": file.num_bytes, "sha256": file.sha256}
        for file in saved.manifest.files
    ]


def test_results_are_listed_for_people(
    saved: SavedRun, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STATIONMASTER_ARTIFACTS_BUCKET", BUCKET)

    code = main(["results", saved.run_id])

    printed = capsys.readouterr().out
    assert code == 0
    assert saved.manifest.files[1].sha256 in printed
    assert f"runs/{saved.run_id}/: 2 files, 14 B, as S3 has them\nNothing was compared" in printed


def test_result_of_another_manifest_than_the_table_has_is_damaged(
    aws: LocalAws,
    saved: SavedRun,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    aws.client("dynamodb").create_table(**table_definition("recorded"))
    settings = Settings(region=aws.region, table_name="recorded", bus_name="b")
    for name, value in settings.to_environment().items():
        monkeypatch.setenv(name, value)
    runs = Services(settings).runs
    runs.create(make_requested(saved.run_id), dedup_key="k", dedup_until=START)
    event = make_event(ev.ResultsSaved, run_id=saved.run_id, num_files=2, **saved.recorded)
    runs.record(saved.run_id, [event])

    codes = [main(["results", saved.run_id, "--bucket", BUCKET])]
    saved.put("manifest.json", saved.manifest.model_copy(update={"seed": 6}).to_json())
    codes.append(main(["results", saved.run_id, "--bucket", BUCKET]))

    assert codes == [0, 1]
    assert "is not the manifest that was verified" in capsys.readouterr().err


def test_results_are_downloaded_and_kept_the_second_time(
    saved: SavedRun, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    to = tmp_path / "model folder"
    command = ["results", saved.run_id, "--bucket", BUCKET, "--to", str(to)]

    assert main(command) == 0
    first = capsys.readouterr().out
    assert main(command) == 0
    second = capsys.readouterr().out

    assert (to / "metrics.jsonl").read_bytes() == FILES["metrics.jsonl"]
    assert first.count("fetched") == 2
    assert second.count("kept") == 2
    assert "fetched" not in second


def test_backup_is_said_to_be_one(
    aws: LocalAws,
    environment: None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    files = {"checkpoint/step-00000040/complete.json": b"{}"}
    facts = {"outcome": "running", "checkpoint_source": "tiny-llama-01/step-00000040"}
    run_id = save_run(aws.client("s3"), next(RUN_IDS), files, **facts).run_id

    code = main(["results", run_id, "--bucket", BUCKET, "--to", str(tmp_path)])

    said = capsys.readouterr().out.splitlines()[-1]
    assert code == 0
    assert "This is a backup of while the run trained: a checkpoint of step 40" in said
    assert f"/train resume {run_id} continues from it" in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["../etc"], '"../etc" is no run'),
        (["tiny-llama-1"], "no bucket is named and no local mode runs in .stationmaster"),
        (["last", "--bucket", "results"], "names no table of runs; give an id"),
        (["tiny-llama-1", "--state-dir", "nowhere"], "no local mode runs in nowhere"),
    ],
)
def test_bad_input_is_answered_with_2(
    arguments: list[str],
    words: str,
    environment: None,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)

    assert main(["results", *arguments]) == 2

    assert words in capsys.readouterr().err


def test_results_of_a_local_mode_are_found_by_its_state_directory(
    aws: LocalAws,
    saved: SavedRun,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = [f"export {name}={shlex.quote(value)}\n" for name, value in aws.environment().items()]
    (tmp_path / "aws.env").write_text("".join(lines))
    (tmp_path / "settings.env").write_text(f"export STATIONMASTER_ARTIFACTS_BUCKET={BUCKET}\n")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("STATIONMASTER_ARTIFACTS_BUCKET", "another")

    assert main(["results", saved.run_id, "--state-dir", str(tmp_path), "--json"]) == 0

    assert len(json.loads(capsys.readouterr().out)) == 2


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (10 * 2**20, "10.0 MiB"),
        (1000 * 2**20, "0.98 GiB"),
        (13_476_000_000, "12.6 GiB"),
        (5 * 2**50, "5120 TiB"),
    ],
)
def test_sizes_are_words(num_bytes: int, text: str) -> None:
    assert size_text(num_bytes) == text

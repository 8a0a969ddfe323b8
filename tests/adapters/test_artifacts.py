"""Results in the artifacts bucket of the local endpoint: verified from outside, downloaded."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from stationmaster.aws.artifacts import Artifacts
from stationmaster.domain.errors import (
    PermanentError,
    ResultDamaged,
    ResultMissing,
    TransientError,
)
from stationmaster.domain.ids import RunId
from stationmaster.domain.results import MANIFEST_FILE, results_prefix
from stationmaster.local.aws import DeploymentSpec, LocalAws
from tests.support.artifacts_world import BUCKET, LARGE, SavedRun, save_run

RUN_IDS = (RunId(f"tiny-llama-{number:08x}") for number in count())
FILES = {"model/model.safetensors": LARGE, "model/config.json": b"{}", "metrics.jsonl": b""}


@pytest.fixture(scope="module", autouse=True)
def bucket(aws: LocalAws) -> None:
    aws.deploy(DeploymentSpec(buckets=[BUCKET]))


@pytest.fixture
def artifacts(aws: LocalAws, monkeypatch: pytest.MonkeyPatch) -> Iterator[Artifacts]:
    for name, value in aws.environment().items():
        monkeypatch.setenv(name, value)
    yield Artifacts.connect(BUCKET)
    aws.clear_injected()


@pytest.fixture
def saved(aws: LocalAws) -> SavedRun:
    return save_run(aws.client("s3"), next(RUN_IDS), FILES)


def test_result_is_verified_without_reading_its_files(
    aws: LocalAws, artifacts: Artifacts, saved: SavedRun
) -> None:
    aws.forget_calls()

    found = artifacts.verify(saved.run_id)

    assert found.uri == f"s3://{BUCKET}/runs/{saved.run_id}/"
    assert found.manifest == saved.manifest
    assert found.manifest_sha256 == hashlib.sha256(saved.manifest.to_json()).hexdigest()
    operations = [operation for _, operation in aws.calls]
    assert sorted(operations) == ["GetObject", "HeadObject", "HeadObject", "HeadObject"]


def test_result_without_a_manifest_is_missing(artifacts: Artifacts, saved: SavedRun) -> None:
    saved.delete(MANIFEST_FILE)

    with pytest.raises(ResultMissing, match=f"{saved.run_id} has no complete result"):
        artifacts.verify(saved.run_id)


def test_file_that_the_manifest_lists_and_nobody_has_is_missing(
    artifacts: Artifacts, saved: SavedRun
) -> None:
    saved.delete("model/config.json")

    with pytest.raises(ResultMissing, match=r"model/config\.json is in the manifest and not in"):
        artifacts.verify(saved.run_id)


@pytest.mark.parametrize(
    ("path", "data", "words"),
    [
        ("model/config.json", b"[]", "has the checksum"),
        ("model/config.json", b"{} ", "has 3 bytes and the manifest says 2"),
        ("model/model.safetensors", LARGE[:-1] + b"?", "has the checksum .*-2 and the manifest"),
    ],
    ids=["flipped", "longer", "flipped-in-parts"],
)
def test_changed_file_is_named_by_verification(
    path: str, data: bytes, words: str, artifacts: Artifacts, saved: SavedRun
) -> None:
    saved.put(path, data)

    with pytest.raises(ResultDamaged, match=f"{path} {words}"):
        artifacts.verify(saved.run_id)


def test_file_without_a_checksum_of_s3_is_refused(
    aws: LocalAws, artifacts: Artifacts, saved: SavedRun
) -> None:
    key = results_prefix(saved.run_id) + "model/config.json"
    aws.client("s3").put_object(Bucket=BUCKET, Key=key, Body=b"{}", ChecksumAlgorithm="CRC32")

    with pytest.raises(ResultDamaged, match="has no SHA-256 checksum"):
        artifacts.verify(saved.run_id)


def test_manifest_of_another_run_is_refused(
    aws: LocalAws, artifacts: Artifacts, saved: SavedRun
) -> None:
    other = next(RUN_IDS)
    aws.client("s3").put_object(
        Bucket=BUCKET,
        Key=results_prefix(other) + MANIFEST_FILE,
        Body=saved.manifest.to_json(),
    )

    with pytest.raises(PermanentError, match=f"is of run {saved.run_id}, not {other}"):
        artifacts.verify(other)


@pytest.mark.parametrize("operation", ["GetObject", "HeadObject"])
def test_throttle_is_transient_and_denial_is_not(
    operation: str, aws: LocalAws, artifacts: Artifacts, saved: SavedRun
) -> None:
    aws.inject("s3", operation, "SlowDown", times=10)
    with pytest.raises(TransientError):
        artifacts.verify(saved.run_id)
    aws.clear_injected()

    aws.inject("s3", operation, "AccessDenied", times=10)
    with pytest.raises(PermanentError, match=r"AWS answers (AccessDenied|403)"):
        artifacts.verify(saved.run_id)


def test_download_brings_every_file_and_the_manifest(
    artifacts: Artifacts, saved: SavedRun, tmp_path: Path
) -> None:
    artifacts.download(saved.run_id, tmp_path)

    found = {
        str(path.relative_to(tmp_path)): path.read_bytes()
        for path in tmp_path.rglob("*")
        if path.is_file()
    }
    assert found == FILES | {MANIFEST_FILE: saved.manifest.to_json()}


def test_second_download_fetches_only_what_is_not_right(
    artifacts: Artifacts, saved: SavedRun, tmp_path: Path
) -> None:
    artifacts.download(saved.run_id, tmp_path)
    (tmp_path / "model" / "config.json").write_bytes(b"[]")
    fetched = []

    artifacts.download(
        saved.run_id,
        tmp_path,
        on_file=lambda file, was_fetched: fetched.append((file.path, was_fetched)),
    )

    assert dict(fetched) == {path: path == "model/config.json" for path in FILES}
    assert (tmp_path / "model" / "config.json").read_bytes() == b"{}"


def test_broken_off_download_is_continued(
    artifacts: Artifacts, saved: SavedRun, tmp_path: Path
) -> None:
    part = tmp_path / "model" / ".model.safetensors.part"
    part.parent.mkdir()
    part.write_bytes(LARGE[:-10])
    # Whoever read the object from its beginning would find it damaged.
    saved.put("model/model.safetensors", b"?" * (len(LARGE) - 10) + LARGE[-10:])

    artifacts.download(saved.run_id, tmp_path)

    assert (tmp_path / "model" / "model.safetensors").read_bytes() == LARGE
    assert not part.exists()


@pytest.mark.parametrize("begun", [b"of an earlier version", LARGE + b"more"])
def test_download_that_began_with_something_else_starts_again(
    begun: bytes, artifacts: Artifacts, saved: SavedRun, tmp_path: Path
) -> None:
    part = tmp_path / "model" / ".model.safetensors.part"
    part.parent.mkdir()
    part.write_bytes(begun)

    artifacts.download(saved.run_id, tmp_path)

    assert (tmp_path / "model" / "model.safetensors").read_bytes() == LARGE


def test_download_survives_a_closed_connection(
    aws: LocalAws, artifacts: Artifacts, saved: SavedRun, tmp_path: Path
) -> None:
    # One call of the client makes three tries.
    aws.inject("s3", "GetObject", "ConnectionClosed", times=4, after=1)

    artifacts.download(saved.run_id, tmp_path)

    assert (tmp_path / "model" / "model.safetensors").read_bytes() == LARGE


@pytest.mark.parametrize("data", [b"[]", b"{", b"{}{}"], ids=["flipped", "shorter", "longer"])
def test_damaged_file_is_refused_by_name_and_not_left_behind(
    data: bytes, artifacts: Artifacts, saved: SavedRun, tmp_path: Path
) -> None:
    saved.put("model/config.json", data)

    with pytest.raises(ResultDamaged, match=r"model/config\.json is damaged: its SHA-256"):
        artifacts.download(saved.run_id, tmp_path)

    assert not (tmp_path / "model" / "config.json").exists()
    assert not (tmp_path / MANIFEST_FILE).exists()


def test_download_into_a_folder_that_cannot_be_written_says_so(
    artifacts: Artifacts, saved: SavedRun, tmp_path: Path
) -> None:
    (tmp_path / "model").write_text("a file where the folder should be")

    with pytest.raises(PermanentError, match=r"cannot write .*model"):
        artifacts.download(saved.run_id, tmp_path)

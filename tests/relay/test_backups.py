"""A run that trains is saved as it is: while files grow, and without losing the backup before."""

from __future__ import annotations

import pytest
from saving_world import BUCKET, CONFIGURATION, Logs, SavedRun

from stationmaster.aws.artifacts import Artifacts
from stationmaster.domain.restoring import saved_step
from stationmaster.domain.results import MANIFEST_FILE, is_backup, read_manifest
from stationmaster.relay.s3 import NotDone
from stationmaster.relay.saving.bucket import AlreadySaved
from stationmaster.relay.saving.pod_logs import PodLog


@pytest.fixture(name="trains")
def run_that_trains(run: SavedRun) -> SavedRun:
    """The same run before its end: model files are half-written, a line as well."""
    run.facts = run.facts.model_copy(update={"outcome": "running", "step": 65})
    run.write("model/model.safetensors", b"half")
    run.write("metrics.jsonl", b'{"step":1}\n{"step":2}\n{"st')
    return run


def ended(run: SavedRun) -> SavedRun:
    run.facts = run.facts.model_copy(update={"outcome": "succeeded"})
    return run


def test_backup_holds_the_newest_checkpoint_and_whole_lines_and_no_model(trains: SavedRun):
    grows = trains.directory / "metrics.jsonl"

    def write_on() -> None:
        grows.write_bytes(grows.read_bytes() + b'ep":3}\n')

    trains.save(logs=Logs(PodLog("pod-0", b"one\n"), at_once=write_on))

    stored = trains.stored()
    assert sorted(stored) == [
        "checkpoint/huggingface/config.json",
        "checkpoint/step-00000060/complete.json",
        "checkpoint/step-00000060/weights.pt",
        "logs/pod-0.log",
        MANIFEST_FILE,
        "metrics.jsonl",
    ]
    assert stored["metrics.jsonl"] == b'{"step":1}\n{"step":2}\n'
    found = Artifacts.connect(BUCKET).verify(trains.run_id)
    assert is_backup(found.manifest)
    assert saved_step(found.manifest) == 60


@pytest.mark.parametrize("whole", [b"", b"first\n"])
@pytest.mark.parametrize("line", [b"", b"x" * 200_000])
def test_last_line_that_is_not_whole_is_cut_off(trains: SavedRun, whole: bytes, line: bytes):
    trains.write("metrics.jsonl", whole + line)

    trains.save()

    assert trains.stored()["metrics.jsonl"] == whole


def test_backup_that_breaks_off_leaves_the_one_before_as_it_was(trains: SavedRun):
    before = trains.save()
    trains.write_checkpoint(80, b"newest")
    trains.write("metrics.jsonl", b'{"step":80}\n')
    trains.aws.inject("s3", "PutObject", "SlowDown", times=99, after=1)

    with pytest.raises(NotDone):
        trains.save()

    trains.aws.clear_injected()
    found = Artifacts.connect(BUCKET).verify(trains.run_id)
    assert found.manifest_sha256 == before.manifest_sha256


def test_final_result_takes_the_place_of_a_backup_and_sends_its_files_again_never(trains: SavedRun):
    trains.save()
    trains.aws.forget_calls()

    saved = ended(trains).save()

    manifest = read_manifest(trains.stored()[MANIFEST_FILE], uri="")
    assert (manifest, manifest.outcome) == (saved.manifest, "succeeded")
    # Metrics, two files of the model, and the manifest; the checkpoint is there.
    assert trains.calls("PutObject") == 4


def test_backup_never_takes_the_place_of_a_result(trains: SavedRun):
    backup = trains.facts
    final = ended(trains).save()
    trains.facts = backup

    with pytest.raises(AlreadySaved, match="the run has ended"):
        trains.save()

    assert Artifacts.connect(BUCKET).read(trains.run_id).manifest_sha256 == final.manifest_sha256


def test_backup_without_a_whole_checkpoint_is_none(trains: SavedRun):
    for step in (40, 60):
        folder = f"checkpoints/{CONFIGURATION}/step-{step:08}"
        trains.write(f"{folder}/weights.pt", b"wrong")

    with pytest.raises(NotDone, match="every checkpoint is damaged"):
        trains.save()

    assert MANIFEST_FILE not in trains.stored()

"""Saving a result: complete, verified by S3, resumed without sending anything twice."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import pytest
from saving_world import BUCKET, CONFIGURATION, WEIGHTS, Logs, SavedRun

from stationmaster.aws.artifacts import Artifacts
from stationmaster.domain.errors import PermanentError
from stationmaster.domain.restoring import saved_step
from stationmaster.domain.results import (
    MANIFEST_FILE,
    MIB,
    is_backup,
    manifest_sha256,
    read_manifest,
    results_prefix,
)
from stationmaster.local.aws.faults import CONNECTION_CLOSED
from stationmaster.relay.s3 import NotDone, Refused, WrittenMeanwhile
from stationmaster.relay.saving import sources
from stationmaster.relay.saving.bucket import AlreadySaved, ResultsBucket
from stationmaster.relay.saving.pod_logs import PodLog
from stationmaster.relay.saving.sources import RunDirectory
from stationmaster.relay.saving.tree import Tree
from stationmaster.relay.saving.uploads import LocalFile, Uploader

PATHS = [
    "checkpoint/huggingface/config.json",
    "checkpoint/step-00000060/complete.json",
    "checkpoint/step-00000060/weights.pt",
    "metrics.jsonl",
    "model/config.json",
    "model/model.safetensors",
]
SENDING = ("UploadPart", "PutObject")
TWO_LOGS = Logs(PodLog("pod-0", b"one\n"), PodLog("pod-1", b"two\n"))


def test_result_holds_what_the_run_left_and_the_manifest_lists_it(large: SavedRun) -> None:
    others = ["model/empty", "profile/memory.pickle", "profile/trace.json.gz", "samples.jsonl"]
    others += ["tensorboard/events.out.tfevents.1"]
    for name in others:
        large.write(name, b"")

    saved = large.save(logs=TWO_LOGS)

    stored = large.stored()
    data = stored.pop(MANIFEST_FILE)
    verified = Artifacts.connect(BUCKET).verify(large.run_id)
    assert read_manifest(data, uri="") == saved.manifest == verified.manifest
    assert manifest_sha256(data) == saved.manifest_sha256 == verified.manifest_sha256
    assert sorted(stored) == sorted([*PATHS, *others, "logs/pod-0.log", "logs/pod-1.log"])
    assert stored["model/model.safetensors"] == WEIGHTS
    assert stored["checkpoint/step-00000060/weights.pt"] == b"newer"
    for file in saved.manifest.files:
        assert file.num_bytes == len(stored[file.path])
        assert file.sha256 == hashlib.sha256(stored[file.path]).hexdigest()
    assert [file.path for file in saved.manifest.files] == sorted(stored)
    (weights,) = [file for file in saved.manifest.files if file.path.endswith(".safetensors")]
    assert (weights.num_parts, weights.s3_checksum[-2:]) == (3, "-3")
    assert (saved.manifest.outcome, saved.manifest.step) == ("succeeded", 60)
    assert saved.manifest.checkpoint_source == f"{CONFIGURATION}/step-00000060"
    assert sum(large.report.arrived) == large.report.expected == saved.manifest.num_bytes


@pytest.mark.parametrize("model", ["", "megatron-llama3-8b"])
def test_result_of_a_command_is_its_output_and_of_a_framework_its_model_too(
    run: SavedRun, model: str
) -> None:
    program = {"program": ("torchrun", "x.py"), "model": model}
    run.facts = run.facts.model_copy(update=program)
    run.write("output/a/b.pt", b"weights")
    run.write("output/notes.txt", b"")
    # Of a trainer's names nothing else is taken, nor believed.
    run.write("facts.json", b'{"seed": 7}')
    run.write("elsewhere.bin", b"not saved")

    saved = run.save(logs=TWO_LOGS)

    of_model = ["model/config.json", "model/model.safetensors"] if model else []
    assert [file.path for file in saved.manifest.files] == [
        *("logs/pod-0.log", "logs/pod-1.log", *of_model, "output/a/b.pt", "output/notes.txt"),
    ]
    assert run.stored()["output/a/b.pt"] == b"weights"
    assert saved.manifest.program == ("torchrun", "x.py")
    assert (saved.manifest.seed, saved.manifest.left_out) == (None, ())


def test_links_and_odd_names_in_the_output_are_left_out_and_named(
    run: SavedRun, tmp_path: Path
) -> None:
    run.facts = run.facts.model_copy(update={"program": ("true",)})
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "token").write_bytes(b"secret")
    output = run.write("output/whole.bin", b"data").parent
    (output / "link").symlink_to(secret / "token")
    (output / "folder").symlink_to(secret)
    (output / "broken").symlink_to("nowhere")
    (output / "inside").symlink_to("whole.bin")
    os.mkfifo(output / "pipe")
    (output / "line\nbreak").write_bytes(b"x")
    (output / "back\\slash").write_bytes(b"x")
    (output / os.fsdecode(b"not-utf8-\xff")).write_bytes(b"x")
    for part in ("d" * 200 for _ in range(5)):
        output /= part
    output.mkdir(parents=True)
    (output / "deep").write_bytes(b"x")

    saved = run.save()

    assert [file.path for file in saved.manifest.files] == ["output/whole.bin"]
    reasons = dict(note.rsplit(": ", 1) for note in saved.manifest.left_out)
    assert {name: why for name, why in reasons.items() if "dddd" not in name} == {
        "output/link": "a link",
        "output/folder": "a link",
        "output/broken": "a link",
        "output/inside": "a link",
        "output/pipe": "not a file",
        "output/line\\nbreak": "its name has characters that no result has",
        "output/back\\\\slash": "its name has characters that no result has",
        "output/not-utf8-\\udcff": "its name is not UTF-8",
    }
    assert "its path has more than 900 bytes" in reasons.values()
    assert b"secret" not in b"".join(run.stored().values())


@pytest.mark.parametrize(
    ("place", "left_out"),
    [
        ("", ()),
        ("output", ("output: a link",)),
        ("model/token", ("model/token: a link",)),
        ("model/more", ("model/more: a link",)),
        ("metrics.jsonl", ("metrics.jsonl: a link",)),
        ("facts.json", ("facts.json: a link",)),
        (f"checkpoints/{CONFIGURATION}/huggingface/token", None),
        (f"checkpoints/{CONFIGURATION}/step-00000060/weights.pt", None),
    ],
)
def test_links_in_the_place_of_files_and_folders_are_not_followed(
    run: SavedRun, tmp_path: Path, place: str, left_out: tuple[str, ...] | None
) -> None:
    # An image of people's own may bring another trainer.
    if place == "output":
        run.facts = run.facts.model_copy(update={"program": ("true",)})
    secret = tmp_path / "secret"
    for folder in ("", "output", "model"):
        (secret / folder).mkdir(parents=True, exist_ok=True)
        (secret / folder / "token").write_bytes(b'{"seed": 7}')
    path = run.directory / place
    if path.is_dir():
        shutil.rmtree(path)
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(secret / "token" if Path(place).suffix or "token" in place else secret)

    saved = run.save()

    assert b'{"seed": 7}' not in b"".join(run.stored().values())
    assert saved.manifest.seed != 7
    assert left_out is None or saved.manifest.left_out == left_out


@pytest.mark.parametrize(
    ("swapped", "why"), [("model/config.json", "symbolic links"), ("model", "Not a directory")]
)
def test_what_is_swapped_for_a_link_while_it_is_saved_is_not_followed(
    run: SavedRun, tmp_path: Path, swapped: str, why: str
) -> None:
    files = RunDirectory(run.directory).below("model")
    place, secret = run.directory / swapped, tmp_path / "secret"
    secret.mkdir()
    for file in files:
        (secret / Path(file.path).name).write_bytes(b"x" * file.num_bytes)

    place.rename(tmp_path / "away")
    place.symlink_to(secret / place.name if place.suffix else secret)
    with pytest.raises(OSError, match=why):
        Uploader(run.bucket(), on_saved=lambda _: None).upload(files)

    assert b"xx" not in b"".join(run.stored().values())


def local(run: SavedRun, path: str, num_bytes: int) -> LocalFile:
    return LocalFile(Tree(run.directory), path, path, num_bytes)


def test_command_that_wrote_too_many_files_is_one_sentence(
    run: SavedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "MAX_FILES", 2)
    run.facts = run.facts.model_copy(update={"program": ("true",)})
    for name in ("a", "b", "c"):
        run.write(f"output/{name}", b"")

    with pytest.raises(PermanentError, match="there are more than 2 files below"):
        run.save()


def test_result_that_is_saved_again_is_not_sent_again(run: SavedRun) -> None:
    first = run.save()
    run.aws.forget_calls()

    again = run.save()

    assert again == first
    assert run.calls(*SENDING) == 1  # the manifest
    assert run.calls("CreateMultipartUpload") == 0
    assert sum(run.report.arrived) == first.manifest.num_bytes


WHOLE = b"".join(f"2026-01-02T00:00:0{n}.5Z line {n}\n".encode() for n in range(6))
END = b"2026-01-02T00:00:07Z end\n"


@pytest.mark.parametrize(
    ("answer", "kept"),
    [
        pytest.param(WHOLE, WHOLE, id="all"),
        pytest.param(WHOLE[:30] + b"[stationmaster] HTTP 500\n", WHOLE, id="a part"),
        pytest.param(b"[stationmaster] HTTP 404\n", WHOLE, id="none"),
        pytest.param(b"[stationmaster] HTTP 500: %s\n" % (b"x" * 800), WHOLE, id="a long refusal"),
        pytest.param(WHOLE[-60:] + END, WHOLE + END, id="lines after a rotation"),
    ],
)
def test_log_that_is_saved_again_has_no_less_than_before(
    run: SavedRun, answer: bytes, kept: bytes
) -> None:
    for text in (WHOLE, answer):
        run.save(logs=Logs(PodLog("pod-0", text)))

    assert run.stored()["logs/pod-0.log"] == kept


def test_logs_of_pods_that_are_gone_come_from_the_relay_or_are_named(run: SavedRun) -> None:
    run.facts = run.facts.model_copy(update={"pods": ("w-0", "w-1", "node-0-0")})
    words = b"2026-01-02T00:00:00Z last words\n"
    own = run.bucket().relayed(f"{run.run_id}-relay-x-1/")
    # A pod of a TrainJob has five letters behind its place in the job.
    for name in ("w-0", "w-10", "node-0-0-abcde"):
        own.put(f"{name}.log", words, digest=hashlib.sha256(words).digest())
    run.bucket().relayed("other-relay-x-1/").put(
        "w-1.log", words, digest=hashlib.sha256(words).digest()
    )

    saved = run.save().manifest

    assert run.stored()["logs/w-0.log"] == words
    logs = [file.path for file in saved.files if file.path.startswith("logs/")]
    assert logs == ["logs/node-0-0-abcde.log", "logs/w-0.log", "logs/w-10.log"]
    assert saved.left_out == ("logs/w-1.log: the pod was gone before its log was read",)


def test_what_is_lost_since_an_earlier_save_stays_in_the_result(run: SavedRun) -> None:
    first = run.save(logs=TWO_LOGS).manifest
    shutil.rmtree(run.directory / "model")
    shutil.rmtree(run.directory / f"checkpoints/{CONFIGURATION}/step-00000060")

    again = run.save().manifest

    assert {"logs/pod-0.log", "logs/pod-1.log"} <= {file.path for file in again.files}
    assert (again.files, again.checkpoint_source) == (first.files, first.checkpoint_source)
    assert Artifacts.connect(BUCKET).verify(run.run_id).manifest == again


# What S3 is asked in a save that works, in this order but for parts and files side by side.
POINTS = [
    ("ListObjectsV2", 0),
    ("ListMultipartUploads", 0),
    ("PutObject", 1),
    ("CreateMultipartUpload", 0),
    ("UploadPart", 2),
    ("CompleteMultipartUpload", 0),
    ("PutObject", 4),
]


@pytest.mark.parametrize(("operation", "after"), POINTS)
def test_save_that_breaks_off_anywhere_is_continued(
    large: SavedRun, operation: str, after: int
) -> None:
    large.aws.inject("s3", operation, CONNECTION_CLOSED, after=after)
    with pytest.raises(NotDone):
        large.save()
    assert MANIFEST_FILE not in large.stored(), "it is written last"
    held = large.held_parts()
    large.aws.forget_calls()

    saved = large.save()

    stored = large.stored()
    assert stored.pop(MANIFEST_FILE) == saved.manifest.to_json()
    assert sorted(stored) == PATHS
    assert stored["model/model.safetensors"] == WEIGHTS
    assert large.unfinished() == []
    # The weights are three parts, every other file and the manifest one.
    assert large.calls(*SENDING) == 3 + len(PATHS) - held
    assert sum(large.report.arrived) == saved.manifest.num_bytes


def test_part_and_object_with_other_bytes_are_sent_anew(large: SavedRun) -> None:
    large.aws.inject("s3", "CompleteMultipartUpload", CONNECTION_CLOSED)
    with pytest.raises(NotDone):
        large.save()
    other = WEIGHTS[:-1] + b"!"
    large.write("model/model.safetensors", other)
    large.write("model/config.json", b"[]")  # of the same size
    large.aws.forget_calls()

    large.save()

    assert large.calls("UploadPart") == 1  # the last of three
    assert large.stored()["model/model.safetensors"] == other
    assert large.stored()["model/config.json"] == b"[]"


def test_upload_without_checksums_is_given_up_and_begun_anew(large: SavedRun) -> None:
    s3, key = boto3.client("s3"), f"runs/{large.run_id}/model/model.safetensors"
    begun = s3.create_multipart_upload(Bucket=BUCKET, Key=key)
    s3.upload_part(
        Bucket=BUCKET, Key=key, UploadId=begun["UploadId"], PartNumber=1, Body=WEIGHTS[: 8 * MIB]
    )

    large.save()

    assert large.unfinished() == []
    assert Artifacts.connect(BUCKET).verify(large.run_id).manifest.run_id == large.run_id


@pytest.mark.parametrize("operation", ["PutObject", "ListObjectsV2"])
def test_throttled_call_is_repeated(large: SavedRun, operation: str) -> None:
    large.aws.inject("s3", operation, "SlowDown")

    saved = large.save(attempts=2)

    assert Artifacts.connect(BUCKET).verify(large.run_id).manifest == saved.manifest


@pytest.mark.parametrize(
    ("operation", "code", "error", "said"),
    [
        ("ListObjectsV2", "AccessDenied", Refused, "give the saver's role its rights"),
        ("UploadPart", "AccessDenied", Refused, "give the saver's role its rights"),
        ("PutObject", "NoSuchBucket", Refused, f"bucket {BUCKET} does not exist"),
        (
            "UploadPart",
            "SlowDown",
            NotDone,
            r"^uploading part \d of model/model.safe",
        ),
    ],
)
def test_call_that_s3_does_not_take_is_one_sentence(
    large: SavedRun, operation: str, code: str, error: type[Exception], said: str
) -> None:
    large.aws.inject("s3", operation, code, times=99)

    with pytest.raises(error, match=said):
        large.save()


def test_bytes_that_were_changed_on_their_way_are_refused_by_s3(run: SavedRun) -> None:
    bucket = run.bucket()

    with pytest.raises(NotDone, match="BadDigest"):
        bucket.put("model/config.json", b"other", digest=hashlib.sha256(b"{}").digest())


class Forgetful:
    """A store that takes everything and computes no checksums."""

    def __init__(self) -> None:
        self._client = boto3.client("s3")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def put_object(self, **arguments: Any) -> dict[str, Any]:
        answer = self._client.put_object(**arguments)
        return {name: value for name, value in answer.items() if name != "ChecksumSHA256"}


def test_store_that_does_not_compute_the_checksum_is_not_trusted(run: SavedRun) -> None:
    bucket = ResultsBucket(Forgetful(), bucket=BUCKET, prefix=results_prefix(run.run_id))
    uploader = Uploader(bucket, on_saved=lambda _: None)

    with pytest.raises(NotDone, match=r"S3 computed the SHA-256 of nothing of model/config\.json"):
        uploader.upload([local(run, "model/config.json", 2)])


def test_file_that_changes_while_it_is_saved_is_an_error(run: SavedRun) -> None:
    metrics = run.directory / "metrics.jsonl"

    with pytest.raises(NotDone, match=r"metrics.jsonl changed while it was read"):
        run.save(logs=Logs(at_once=lambda: metrics.write_bytes(b"more")))


def test_file_that_is_written_again_at_the_same_size_is_an_error(large: SavedRun) -> None:
    path = large.directory / "model/model.safetensors"
    # Memory for one part: the second is read when the first is saved.
    uploader = Uploader(
        large.bucket(), on_saved=lambda _: os.utime(path, (1, 1)), memory_bytes=8 * MIB
    )

    with pytest.raises(NotDone, match=r"model.safetensors changed while it was read"):
        uploader.upload([local(large, "model/model.safetensors", len(WEIGHTS))])

    assert "model/model.safetensors" not in large.stored()


def test_manifest_that_somebody_else_wrote_meanwhile_is_not_replaced(run: SavedRun) -> None:
    place = {"Bucket": BUCKET, "Key": f"runs/{run.run_id}/{MANIFEST_FILE}"}
    theirs = Logs(at_once=lambda: boto3.client("s3").put_object(**place, Body=b"theirs"))

    with pytest.raises(WrittenMeanwhile):
        run.save(logs=theirs)

    assert run.stored()[MANIFEST_FILE] == b"theirs"


def test_newest_checkpoint_that_is_damaged_is_passed_over(run: SavedRun) -> None:
    run.write(f"checkpoints/{CONFIGURATION}/step-00000060/weights.pt", b"nEwer")

    saved = run.save()

    stored = run.stored()
    assert stored["checkpoint/step-00000040/weights.pt"] == b"older"
    listed = [file.path for file in saved.manifest.files]
    assert "checkpoint/step-00000040/weights.pt" in listed
    assert not [path for path in listed if "step-00000060" in path]


def test_large_checkpoint_that_is_damaged_leaves_nothing_in_the_bucket(run: SavedRun) -> None:
    run.write_checkpoint(80, WEIGHTS)
    path = f"checkpoints/{CONFIGURATION}/step-00000080/weights.pt"
    run.write(path, WEIGHTS[:-1] + b"!")

    run.save()

    assert "checkpoint/step-00000080/weights.pt" not in run.stored()
    assert run.unfinished() == []


def test_whole_checkpoints_count_and_those_of_the_newest_configuration_come_first(
    run: SavedRun,
) -> None:
    run.write(f"checkpoints/{CONFIGURATION}/step-00000070/weights.pt", b"partial")
    run.write_checkpoint(65, b"short")
    run.write(f"checkpoints/{CONFIGURATION}/step-00000065/weights.pt", b"sho")
    run.write_checkpoint(90, b"set aside")
    folder = run.directory / f"checkpoints/{CONFIGURATION}"
    (folder / "step-00000090").rename(folder / "step-00000090.damaged")
    run.write_checkpoint(10, b"other", configuration="tiny-llama-ba9876543210")
    for marker in (run.directory / "checkpoints").glob("*-ba9876543210/*/complete.json"):
        os.utime(marker, (2**31, 2**31))

    assert [found.source for found in RunDirectory(run.directory).checkpoints()] == [
        "tiny-llama-ba9876543210/step-00000010",
        f"{CONFIGURATION}/step-00000060",
        f"{CONFIGURATION}/step-00000040",
    ]


def test_run_whose_checkpoints_are_all_damaged_is_not_saved_without_a_model(run: SavedRun) -> None:
    for step in (40, 60):
        run.write(f"checkpoints/{CONFIGURATION}/step-{step:08d}/weights.pt", b"wrong")
    shutil.rmtree(run.directory / "model")

    with pytest.raises(NotDone, match="every checkpoint is damaged"):
        run.save()

    nothing = SavedRun(run.aws, run.run_id, run.directory / "nothing").save(logs=TWO_LOGS)
    logs = [file.path for file in nothing.manifest.files if file.path.startswith("logs/")]
    assert logs == ["logs/pod-0.log", "logs/pod-1.log"]


def test_facts_of_the_trainer_go_before_those_of_the_step(run: SavedRun) -> None:
    run.facts = run.facts.model_copy(
        update={"versions": {"stationmaster": "1"}, "seed": 7, "data": "c4"}
    )
    run.write("facts.json", b'{"versions": {"torch": "2.13.0"}, "data": "c4 (hash)"}')

    manifest = run.save().manifest

    assert manifest.versions == {"stationmaster": "1", "torch": "2.13.0"}
    assert (manifest.seed, manifest.data) == (7, "c4 (hash)")


def deep(path: Path) -> None:
    path.write_bytes(b"[" * 200_000)


STEP_60 = f"checkpoints/{CONFIGURATION}/step-00000060"


@pytest.mark.parametrize(
    ("place", "put", "why"),
    [
        ("facts.json", deep, "it is not understood: Invalid JSON: recursion limit exceeded"),
        ("metrics.jsonl", os.mkfifo, "not a file"),
        ("model/pipe", os.mkfifo, "not a file"),
        (f"checkpoints/{CONFIGURATION}/huggingface/pipe", os.mkfifo, "not a file"),
        (f"{STEP_60}/weights.pt", os.mkfifo, "not a file"),
        (f"{STEP_60}/complete.json", os.mkdir, "not a file"),
        (f"{STEP_60}/complete.json", deep, "complete.json is torn"),
        ("model/line\nbreak", deep, "its name has characters that no result has"),
        (os.fsdecode(b"checkpoints/not-utf8-\xff"), os.mkdir, "its name is not UTF-8"),
    ],
)
def test_what_cannot_be_saved_is_left_out_named_and_costs_nothing_else(
    run: SavedRun, place: str, put: Callable[[Path], None], why: str
) -> None:
    path = run.directory / place
    path.unlink(missing_ok=True)
    put(path)

    saved = run.save().manifest

    paths = {file.path for file in saved.files}
    step = 40 if place.startswith(STEP_60) else 60
    assert {"model/model.safetensors", f"checkpoint/step-{step:08d}/complete.json"} <= paths
    (note,) = saved.left_out
    assert note.startswith(ascii(place.removesuffix("/complete.json"))[1:-1])
    assert why in note


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

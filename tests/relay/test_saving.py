"""Saving a result: complete, verified by S3, resumed without sending anything twice."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest
from saving_world import BUCKET, CONFIGURATION, WEIGHTS, NoLogs, SavedRun

from stationmaster.aws.artifacts import Artifacts
from stationmaster.domain.errors import PermanentError
from stationmaster.domain.results import (
    MANIFEST_FILE,
    MIB,
    manifest_sha256,
    read_manifest,
    results_prefix,
)
from stationmaster.local.aws.faults import CONNECTION_CLOSED
from stationmaster.relay.s3 import NotDone, Refused, WrittenMeanwhile
from stationmaster.relay.saving import sources
from stationmaster.relay.saving.bucket import ResultsBucket
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


class TwoLogs:
    """Logs of two pods."""

    def read(self) -> list[PodLog]:
        return [PodLog("pod-0", b"one\n"), PodLog("pod-1", b"two\n")]


def test_result_holds_what_the_run_left_and_the_manifest_lists_it(large: SavedRun) -> None:
    saved = large.save(logs=TwoLogs())

    stored = large.stored()
    data = stored.pop(MANIFEST_FILE)
    assert read_manifest(data, uri="") == saved.manifest
    assert manifest_sha256(data) == saved.manifest_sha256
    assert sorted(stored) == sorted([*PATHS, "logs/pod-0.log", "logs/pod-1.log"])
    assert stored["model/model.safetensors"] == WEIGHTS
    assert stored["checkpoint/step-00000060/weights.pt"] == b"newer"
    for file in saved.manifest.files:
        assert file.num_bytes == len(stored[file.path])
        assert file.sha256 == hashlib.sha256(stored[file.path]).hexdigest()
    assert [file.path for file in saved.manifest.files] == sorted(stored)
    assert (saved.manifest.outcome, saved.manifest.step) == ("succeeded", 60)
    assert saved.manifest.checkpoint_source == f"{CONFIGURATION}/step-00000060"
    assert sum(large.report.arrived) == large.report.expected == saved.manifest.num_bytes


@pytest.mark.parametrize(
    "name", ["samples.jsonl", "profile/trace.json.gz", "profile/memory.pickle"]
)
def test_result_holds_what_else_the_trainer_wrote(run: SavedRun, name: str) -> None:
    run.write(name, b"{}")

    run.save()

    assert run.stored()[name] == b"{}"


def test_result_of_a_command_is_what_it_wrote_below_its_output_directory(run: SavedRun) -> None:
    run.facts = run.facts.model_copy(update={"program": ("torchrun", "x.py")})
    run.write("output/a/b.pt", b"weights")
    run.write("output/notes.txt", b"")
    # Of a trainer's names nothing is taken, nor believed.
    run.write("facts.json", b'{"seed": 7}')
    run.write("elsewhere.bin", b"not saved")
    run.write("model/model.safetensors", b"not saved")

    saved = run.save(logs=TwoLogs())

    stored = run.stored()
    assert sorted(stored) == [
        *("logs/pod-0.log", "logs/pod-1.log", MANIFEST_FILE),
        *("output/a/b.pt", "output/notes.txt"),
    ]
    assert stored["output/a/b.pt"] == b"weights"
    assert saved.manifest.program == ("torchrun", "x.py")
    assert (saved.manifest.seed, saved.manifest.left_out) == (None, ())


def test_result_of_a_framework_has_its_model_beside_its_checkpoints(run: SavedRun) -> None:
    framework = {"program": ("torchrun", "pretrain_gpt.py"), "model": "megatron-llama3-8b"}
    run.facts = run.facts.model_copy(update=framework)
    run.write("output/checkpoints/latest_checkpointed_iteration.txt", b"20")
    run.write("model/model.safetensors", b"weights")

    saved = run.save(logs=TwoLogs())

    assert run.stored()["model/model.safetensors"] == b"weights"
    assert {file.path.partition("/")[0] for file in saved.manifest.files} == {
        *("logs", "model", "output"),
    }


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


@pytest.mark.parametrize("place", ["output", ""])
def test_output_directory_that_is_a_link_is_not_followed(
    run: SavedRun, tmp_path: Path, place: str
) -> None:
    run.facts = run.facts.model_copy(update={"program": ("true",)})
    secret = tmp_path / "secret"
    (secret / "output").mkdir(parents=True)
    (secret / "token").write_bytes(b"secret")
    (secret / "output" / "token").write_bytes(b"secret")
    link = run.directory / place
    if link.exists():
        shutil.rmtree(link)
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(secret)

    saved = run.save().manifest

    assert saved.files == ()
    assert saved.left_out == (("output: a link",) if place else ())


@pytest.mark.parametrize(
    "place",
    [
        "model/token",
        "model/more",
        "metrics.jsonl",
        "samples.jsonl",
        "profile/trace.json.gz",
        "facts.json",
        f"checkpoints/{CONFIGURATION}/huggingface/token",
        f"checkpoints/{CONFIGURATION}/step-00000060/weights.pt",
    ],
)
def test_links_in_the_place_of_a_trainers_files_are_not_followed(
    run: SavedRun, tmp_path: Path, place: str
) -> None:
    # An image of people's own may bring another trainer.
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "token").write_bytes(b'{"seed": 7}')
    path = run.directory / place
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(secret if place.endswith("more") else secret / "token")

    saved = run.save()

    assert b'{"seed": 7}' not in b"".join(run.stored().values())
    assert saved.manifest.seed != 7


def test_file_that_is_swapped_for_a_link_while_it_is_saved_is_an_error(
    run: SavedRun, tmp_path: Path
) -> None:
    run.facts = run.facts.model_copy(update={"program": ("true",)})
    place = run.write("output/file", b"four")
    (other,) = RunDirectory(run.directory).output()
    secret = tmp_path / "secret"
    secret.write_bytes(b"key!")
    uploader = Uploader(run.bucket(), on_saved=lambda _: None)

    place.unlink()
    place.symlink_to(secret)
    with pytest.raises(OSError, match="symbolic links"):
        uploader.upload([other])
    assert run.stored() == {}


def test_directory_that_is_swapped_for_a_link_while_it_is_saved_is_not_followed(
    run: SavedRun, tmp_path: Path
) -> None:
    files = RunDirectory(run.directory).model()
    secret = tmp_path / "secret"
    secret.mkdir()
    for file in files:
        (secret / Path(file.path).name).write_bytes(b"x" * file.num_bytes)

    (run.directory / "model").rename(tmp_path / "away")
    (run.directory / "model").symlink_to(secret)
    with pytest.raises(OSError, match="Not a directory"):
        Uploader(run.bucket(), on_saved=lambda _: None).upload(files)

    assert run.stored() == {}


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


def test_result_is_verified_from_outside_by_what_s3_computed(large: SavedRun) -> None:
    saved = large.save()

    verified = Artifacts.connect(BUCKET).verify(large.run_id)

    assert verified.manifest_sha256 == saved.manifest_sha256
    (weights,) = [file for file in saved.manifest.files if file.path.endswith(".safetensors")]
    assert (weights.num_parts, weights.s3_checksum[-2:]) == (3, "-3")


def test_manifest_is_the_last_thing_that_is_written(large: SavedRun) -> None:
    large.aws.inject("s3", "CompleteMultipartUpload", "InternalError")

    with pytest.raises(NotDone, match=r"completing model/model.safetensors .* InternalError"):
        large.save()

    assert MANIFEST_FILE not in large.stored()


def test_result_that_is_saved_again_is_not_sent_again(run: SavedRun) -> None:
    first = run.save()
    run.aws.forget_calls()

    again = run.save()

    assert again == first
    assert run.calls(*SENDING) == 1  # the manifest
    assert run.calls("CreateMultipartUpload") == 0
    assert sum(run.report.arrived) == first.manifest.num_bytes


LINES = [f"2026-01-02T00:00:0{n}.5Z line {n}\n".encode() for n in range(6)]


@dataclass
class OneLog:
    """The log of one pod, as Kubernetes answers now."""

    text: bytes

    def read(self) -> list[PodLog]:
        return [PodLog("pod-0", self.text)]


@pytest.mark.parametrize(
    ("answer", "kept"),
    [
        pytest.param(b"".join(LINES), b"".join(LINES), id="all"),
        pytest.param(LINES[0] + b"[stationmaster] HTTP 500\n", b"".join(LINES), id="a part"),
        pytest.param(b"[stationmaster] HTTP 404\n", b"".join(LINES), id="none"),
        pytest.param(
            b"".join(LINES[4:]) + b"2026-01-02T00:00:07Z end\n",
            b"".join(LINES) + b"2026-01-02T00:00:07Z end\n",
            id="lines after a rotation",
        ),
    ],
)
def test_log_that_is_saved_again_has_no_less_than_before(
    run: SavedRun, answer: bytes, kept: bytes
) -> None:
    run.save(logs=OneLog(b"".join(LINES)))

    run.save(logs=OneLog(answer))

    assert run.stored()["logs/pod-0.log"] == kept


def test_logs_of_pods_that_are_not_listed_any_more_stay_in_the_result(run: SavedRun) -> None:
    run.save(logs=TwoLogs())

    saved = run.save(logs=NoLogs()).manifest

    assert [file.path for file in saved.files if file.path.startswith("logs/")] == [
        "logs/pod-0.log",
        "logs/pod-1.log",
    ]


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

    saved = run.save(logs=NoLogs()).manifest

    assert run.stored()["logs/w-0.log"] == words
    logs = [file.path for file in saved.files if file.path.startswith("logs/")]
    assert logs == ["logs/node-0-0-abcde.log", "logs/w-0.log", "logs/w-10.log"]
    assert saved.left_out == ("logs/w-1.log: the pod was gone before its log was read",)


def test_what_the_file_system_has_lost_since_an_earlier_save_stays_in_the_result(
    run: SavedRun,
) -> None:
    first = run.save().manifest
    shutil.rmtree(run.directory / "model")
    shutil.rmtree(run.directory / f"checkpoints/{CONFIGURATION}/step-00000060")

    again = run.save().manifest

    assert (again.files, again.checkpoint_source) == (first.files, first.checkpoint_source)
    assert Artifacts.connect(BUCKET).verify(run.run_id).manifest == again


# What S3 is asked in a save that works, in this order but for parts and files side by side.
POINTS = [
    ("ListObjectsV2", 0),
    ("ListMultipartUploads", 0),
    ("PutObject", 0),
    ("PutObject", 1),
    ("CreateMultipartUpload", 0),
    ("UploadPart", 0),
    ("UploadPart", 2),
    ("CompleteMultipartUpload", 0),
    ("PutObject", 2),
    ("PutObject", 4),
]


@pytest.mark.parametrize(("operation", "after"), POINTS)
def test_save_that_breaks_off_anywhere_is_continued(
    large: SavedRun, operation: str, after: int
) -> None:
    large.aws.inject("s3", operation, CONNECTION_CLOSED, after=after)
    with pytest.raises(NotDone):
        large.save()
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


def test_part_with_other_bytes_is_sent_anew(large: SavedRun) -> None:
    large.aws.inject("s3", "CompleteMultipartUpload", CONNECTION_CLOSED)
    with pytest.raises(NotDone):
        large.save()
    other = WEIGHTS[:-1] + b"!"
    large.write("model/model.safetensors", other)
    large.aws.forget_calls()

    large.save()

    assert large.calls("UploadPart") == 1  # the last of three
    assert large.stored()["model/model.safetensors"] == other


def test_object_of_the_same_size_with_other_bytes_is_replaced(run: SavedRun) -> None:
    run.save()
    run.write("model/config.json", b"[]")

    saved = run.save()

    assert run.stored()["model/config.json"] == b"[]"
    assert Artifacts.connect(BUCKET).verify(run.run_id).manifest == saved.manifest


def test_upload_without_checksums_is_given_up_and_begun_anew(large: SavedRun) -> None:
    s3, key = boto3.client("s3"), f"runs/{large.run_id}/model/model.safetensors"
    begun = s3.create_multipart_upload(Bucket=BUCKET, Key=key)
    s3.upload_part(
        Bucket=BUCKET, Key=key, UploadId=begun["UploadId"], PartNumber=1, Body=WEIGHTS[: 8 * MIB]
    )

    large.save()

    assert large.unfinished() == []
    assert Artifacts.connect(BUCKET).verify(large.run_id).manifest.run_id == large.run_id


@pytest.mark.parametrize("operation", ["PutObject", "UploadPart", "ListObjectsV2"])
def test_throttled_call_is_repeated(large: SavedRun, operation: str) -> None:
    large.aws.inject("s3", operation, "SlowDown")

    saved = large.save(attempts=2)

    assert Artifacts.connect(BUCKET).verify(large.run_id).manifest == saved.manifest


def test_throttling_without_end_is_one_sentence(large: SavedRun) -> None:
    large.aws.inject("s3", "UploadPart", "SlowDown", times=99)

    with pytest.raises(NotDone, match=r"^uploading part \d of model/model.safetensors in s3://.*"):
        large.save()


@pytest.mark.parametrize(
    "operation", ["ListObjectsV2", "PutObject", "UploadPart", "CreateMultipartUpload"]
)
def test_denied_call_is_a_refusal_that_says_what_to_do(large: SavedRun, operation: str) -> None:
    large.aws.inject("s3", operation, "AccessDenied", times=99)

    with pytest.raises(Refused, match="give the saver's role its rights"):
        large.save()


def test_bucket_that_is_gone_is_a_refusal(run: SavedRun) -> None:
    with pytest.raises(Refused, match="bucket elsewhere-artifacts does not exist"):
        run.save(bucket="elsewhere-artifacts")


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


class Growing:
    """Logs that are read while the trainer still writes, as a pod that is not gone would."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> list[PodLog]:
        with self._path.open("ab") as file:
            file.write(b"more")
        return []


def test_file_that_changes_while_it_is_saved_is_an_error(run: SavedRun) -> None:
    with pytest.raises(NotDone, match=r"metrics.jsonl changed while it was read"):
        run.save(logs=Growing(run.directory / "metrics.jsonl"))


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
    class Meanwhile:
        def read(self) -> list[PodLog]:
            key = f"runs/{run.run_id}/{MANIFEST_FILE}"
            boto3.client("s3").put_object(Bucket=BUCKET, Key=key, Body=b"theirs")
            return []

    with pytest.raises(WrittenMeanwhile):
        run.save(logs=Meanwhile())

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


def test_checkpoint_that_was_never_finished_does_not_count(run: SavedRun) -> None:
    run.write(f"checkpoints/{CONFIGURATION}/step-00000070/weights.pt", b"partial")
    run.write_checkpoint(65, b"short")
    run.write(f"checkpoints/{CONFIGURATION}/step-00000065/weights.pt", b"sho")
    run.write_checkpoint(90, b"set aside")
    folder = run.directory / f"checkpoints/{CONFIGURATION}"
    (folder / "step-00000090").rename(folder / "step-00000090.damaged")

    assert [found.step for found in RunDirectory(run.directory).checkpoints()] == [60, 40]


def test_checkpoint_of_the_configuration_that_was_trained_last_comes_first(run: SavedRun) -> None:
    run.write_checkpoint(10, b"other", configuration="tiny-llama-ba9876543210")
    for marker in (run.directory / "checkpoints").glob("*-ba9876543210/*/complete.json"):
        os.utime(marker, (2**31, 2**31))

    sources = [found.source for found in RunDirectory(run.directory).checkpoints()]

    assert sources == [
        "tiny-llama-ba9876543210/step-00000010",
        f"{CONFIGURATION}/step-00000060",
        f"{CONFIGURATION}/step-00000040",
    ]


def test_run_whose_checkpoints_are_all_damaged_is_not_saved_without_a_model(run: SavedRun) -> None:
    for step in (40, 60):
        run.write(f"checkpoints/{CONFIGURATION}/step-{step:08d}/weights.pt", b"wrong")
    for path in (run.directory / "model").iterdir():
        path.unlink()

    with pytest.raises(NotDone, match="every checkpoint is damaged"):
        run.save()


def test_run_that_left_nothing_gets_a_manifest_with_its_logs(run: SavedRun) -> None:
    empty = SavedRun(run.aws, run.run_id, run.directory / "nothing")

    saved = empty.save(logs=TwoLogs())

    assert [file.path for file in saved.manifest.files] == ["logs/pod-0.log", "logs/pod-1.log"]
    assert sorted(empty.stored()) == ["logs/pod-0.log", "logs/pod-1.log", MANIFEST_FILE]


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
        ("facts.json", os.mkfifo, "not a file"),
        ("facts.json", deep, "it is not understood: Invalid JSON: recursion limit exceeded"),
        ("metrics.jsonl", os.mkfifo, "not a file"),
        ("model/pipe", os.mkfifo, "not a file"),
        (f"checkpoints/{CONFIGURATION}/huggingface/pipe", os.mkfifo, "not a file"),
        (f"{STEP_60}/weights.pt", os.mkfifo, "not a file"),
        (f"{STEP_60}/complete.json", os.mkfifo, "not a file"),
        (f"{STEP_60}/complete.json", os.mkdir, "not a file"),
        (f"{STEP_60}/complete.json", deep, "complete.json is torn"),
        ("model/back\\slash", deep, "its name has characters that no result has"),
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


def test_empty_file_is_saved(run: SavedRun) -> None:
    run.write("model/empty", b"")

    saved = run.save()

    (file,) = [file for file in saved.manifest.files if file.path == "model/empty"]
    assert file.s3_checksum == base64.b64encode(hashlib.sha256(b"").digest()).decode()
    assert run.stored()["model/empty"] == b""

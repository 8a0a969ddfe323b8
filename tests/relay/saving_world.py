"""A run's output directory and the bucket that it is saved to. Shared by tests of the saver."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import boto3

from stationmaster.domain.checkpoints import MARKER, Manifest, StoredFile, step_name
from stationmaster.domain.ids import RunId
from stationmaster.domain.results import (
    MIB,
    RunFacts,
    part_bytes,
    part_sizes,
    results_prefix,
)
from stationmaster.local.aws import LocalAws
from stationmaster.relay.cluster import ClusterUnreachable
from stationmaster.relay.save import Saved, save_result
from stationmaster.relay.saving.bucket import ResultsBucket
from stationmaster.relay.saving.pod_logs import PodLog
from stationmaster.relay.saving.sources import RunDirectory

BUCKET: Final = "stationmaster-artifacts"
# Three parts: the saver sends at most 16 at a time, so all are under way together.
WEIGHTS: Final = bytes(range(256)) * (17 * MIB // 256)
CONFIGURATION: Final = "tiny-llama-0123456789ab"


class Logs:
    """The logs of pods, as Kubernetes answers now; `at_once` happens when they are asked for."""

    def __init__(self, *logs: PodLog, at_once: Callable[[], object] = lambda: None) -> None:
        self._logs = logs
        self._at_once = at_once

    def read(self) -> Sequence[PodLog]:
        self._at_once()
        return self._logs


class NoLogs:
    """A cluster that does not answer."""

    def read(self) -> Iterator[PodLog]:
        raise ClusterUnreachable("nobody is there")


@dataclass
class Report:
    """What the saver or the stager says of its progress."""

    expected: int = 0
    arrived: list[int] = field(default_factory=list)

    def expect(self, num_bytes: int) -> None:
        self.expected += num_bytes

    def add(self, num_bytes: int) -> None:
        self.arrived.append(num_bytes)


@dataclass
class SavedRun:
    """One run: its directory, and its prefix of the bucket."""

    aws: LocalAws
    run_id: RunId
    directory: Path
    report: Report = field(default_factory=Report)

    def __post_init__(self) -> None:
        self.facts = RunFacts(
            run_id=self.run_id,
            recipe="tiny-llama",
            nodes=2,
            instance_type="c5.2xlarge",
            outcome="succeeded",
            step=60,
            loss_nats=2.5,
        )

    def write(self, path: str, data: bytes) -> Path:
        """A file of the trainer's."""
        place = self.directory / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
        return place

    def write_checkpoint(self, step: int, data: bytes, *, configuration: str = CONFIGURATION):
        """A complete checkpoint of one file beside its manifest."""
        folder = f"checkpoints/{configuration}/{step_name(step)}"
        self.write(f"{folder}/weights.pt", data)
        stored = StoredFile(size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest(), rank=0)
        manifest = Manifest(
            step=step, world_size=1, verified=True, configuration={}, files={"weights.pt": stored}
        )
        self.write(f"{folder}/{MARKER}", manifest.model_dump_json().encode())

    def save(self, *, logs: Any = None, attempts: int = 1, bucket: str = BUCKET) -> Saved:
        """Save in this process; a call that fails is tried `attempts` times."""
        self.report = Report()
        return save_result(
            self.facts,
            directory=RunDirectory(self.directory),
            logs=logs or NoLogs(),
            bucket=self.bucket(bucket=bucket, attempts=attempts),
            report=self.report,
        )

    def bucket(self, *, bucket: str = BUCKET, attempts: int = 1) -> ResultsBucket:
        return ResultsBucket.connect(
            bucket=bucket, run_id=self.run_id, region="us-west-2", connections=8, attempts=attempts
        )

    def stored(self) -> dict[str, bytes]:
        """Everything under the run's prefix, by path."""
        s3 = boto3.client("s3")
        prefix = results_prefix(self.run_id)
        listed = s3.list_objects_v2(Bucket=BUCKET, Prefix=prefix).get("Contents", [])
        return {
            item["Key"].removeprefix(prefix): s3.get_object(Bucket=BUCKET, Key=item["Key"])[
                "Body"
            ].read()
            for item in listed
        }

    def unfinished(self) -> list[str]:
        """Keys of uploads that are neither completed nor given up."""
        found = boto3.client("s3").list_multipart_uploads(
            Bucket=BUCKET, Prefix=results_prefix(self.run_id)
        )
        return [upload["Key"] for upload in found.get("Uploads", [])]

    def held_parts(self) -> int:
        """How many parts S3 holds, those of objects and of unfinished uploads."""
        s3 = boto3.client("s3")
        sizes = [len(data) for data in self.stored().values()]
        parts = sum(len(part_sizes(size, part_bytes(size))) for size in sizes)
        found = s3.list_multipart_uploads(Bucket=BUCKET, Prefix=results_prefix(self.run_id))
        for upload in found.get("Uploads", []):
            place = {"Bucket": BUCKET, "Key": upload["Key"], "UploadId": upload["UploadId"]}
            parts += len(s3.list_parts(**place).get("Parts", []))
        return parts

    def calls(self, *operations: str) -> int:
        """How often S3 was asked for any of these."""
        return sum(called in operations for _, called in self.aws.calls)

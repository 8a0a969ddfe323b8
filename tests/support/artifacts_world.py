"""A run's result in a bucket, written as the saver writes it. Shared by tests of its readers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Final

from boto3.s3.transfer import TransferConfig

from stationmaster.domain.ids import RunId
from stationmaster.domain.results import (
    MANIFEST_FILE,
    FileHasher,
    ResultFile,
    ResultManifest,
    manifest_sha256,
    part_bytes,
    results_prefix,
)

BUCKET: Final = "stationmaster-artifacts"
# Two parts: S3's checksum of it is a composite one.
LARGE: Final = bytes(part_bytes(0)) + b"the second part"


@dataclass(frozen=True)
class SavedRun:
    """What lies in the bucket of one run."""

    run_id: RunId
    manifest: ResultManifest
    s3: Any
    bucket: str = BUCKET

    @property
    def recorded(self) -> dict[str, Any]:
        """What an event says of it, once it was verified."""
        return {
            "uri": f"s3://{self.bucket}/{results_prefix(self.run_id)}",
            "num_bytes": self.manifest.num_bytes,
            "manifest_sha256": manifest_sha256(self.manifest.to_json()),
        }

    def put(self, path: str, data: bytes) -> None:
        """Write a file as the saver does: in one request, or in parts."""
        key, each = results_prefix(self.run_id) + path, part_bytes(len(data))
        parts = TransferConfig(
            multipart_threshold=each + 1, multipart_chunksize=each, use_threads=False
        )
        checksum = {"ChecksumAlgorithm": "SHA256"}
        self.s3.upload_fileobj(BytesIO(data), self.bucket, key, ExtraArgs=checksum, Config=parts)

    def delete(self, path: str) -> None:
        """Delete a file or the manifest."""
        self.s3.delete_object(Bucket=self.bucket, Key=results_prefix(self.run_id) + path)


def manifest_of(run_id: RunId, files: Mapping[str, bytes], **facts: Any) -> ResultManifest:
    """The manifest of these files."""
    return ResultManifest(
        **{
            "run_id": run_id,
            "recipe": "tiny-llama",
            "nodes": 2,
            "instance_type": "g5.xlarge",
            "outcome": "succeeded",
            "step": 60,
            "loss_nats": 2.5,
            **facts,
        },
        files=tuple(_described(path, data) for path, data in sorted(files.items())),
    )


def save_run(
    s3: Any, run_id: RunId, files: Mapping[str, bytes], *, bucket: str = BUCKET, **facts: Any
) -> SavedRun:
    """Write the files and then the manifest."""
    saved = SavedRun(run_id, manifest_of(run_id, files, **facts), s3, bucket)
    for path, data in files.items():
        saved.put(path, data)
    saved.put(MANIFEST_FILE, saved.manifest.to_json())
    return saved


def _described(path: str, data: bytes) -> ResultFile:
    hasher = FileHasher(part_bytes=part_bytes(len(data)))
    hasher.update(data)
    return hasher.result(path)

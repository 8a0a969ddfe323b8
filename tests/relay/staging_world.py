"""A data set in a bucket, and a file system to bring it to. Shared by tests of the stager."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import boto3
from saving_world import Report

from stationmaster.domain.datasets import S3Source
from stationmaster.domain.ids import RunId
from stationmaster.domain.staged_data import StagedLine, StagingOrder
from stationmaster.local.aws import LocalAws
from stationmaster.relay.config import StagingConfig
from stationmaster.relay.stage import stage
from stationmaster.relay.staging.source import SourceBucket

BUCKET: Final = "research-data"
MIB: Final = 2**20
# Three parts as it is uploaded: read in parts, by several threads.
LARGE: Final = bytes(range(256)) * (11 * MIB // 256)
PART: Final = 5 * MIB


@dataclass
class Data:
    """A prefix of the bucket, and the directory of all data on the file system."""

    aws: LocalAws
    prefix: str
    directory: Path
    report: Report = field(default_factory=Report)

    @property
    def source(self) -> S3Source:
        return S3Source(BUCKET, f"{self.prefix}/")

    def put(self, path: str, data: bytes, *, part_bytes: int | None = None, **more: Any) -> None:
        """Write an object, in parts where a size is given."""
        s3 = boto3.client("s3")
        place = {"Bucket": BUCKET, "Key": f"{self.prefix}/{path}"}
        if part_bytes is None:
            s3.put_object(**place, Body=data, **more)
            return
        upload = s3.create_multipart_upload(**place, **more)["UploadId"]
        parts = []
        for number, start in enumerate(range(0, len(data), part_bytes), start=1):
            sent = s3.upload_part(
                **place,
                UploadId=upload,
                PartNumber=number,
                Body=data[start : start + part_bytes],
                **{k: v for k, v in more.items() if k == "ChecksumAlgorithm"},
            )
            kept = {k: sent[k] for k in ("ETag", "ChecksumSHA256") if k in sent}
            parts.append({"PartNumber": number, **kept})
        s3.complete_multipart_upload(**place, UploadId=upload, MultipartUpload={"Parts": parts})

    def order(self, *, task: str = "finetuning", **more: Any) -> StagingOrder:
        return StagingOrder(run_id=RunId("run-1"), dataset=self.source.uri, task=task, **more)

    def variables(self, **order: Any) -> dict[str, str]:
        return {
            "STATIONMASTER_STAGING_ORDER": self.order(**order).model_dump_json(),
            "STATIONMASTER_DATA_DIRECTORY": str(self.directory),
            "AWS_REGION": self.aws.region,
        }

    def stage(self, *, free: int | None = None, attempts: int = 1, **order: Any) -> StagedLine:
        """Stage in this process; a call that fails is tried `attempts` times."""
        self.report = Report()
        config = StagingConfig.from_variables(self.variables(**order))
        room = {} if free is None else {"free_bytes": lambda _: free}
        bucket = SourceBucket.connect(
            self.source, region="us-west-2", connections=8, attempts=attempts
        )
        return stage(config, bucket, report=self.report, **room)

    def files(self, staged: StagedLine) -> dict[str, bytes]:
        """What the trainer would read, by path."""
        root = self.directory / staged.root
        return {
            str(path.relative_to(root)): path.read_bytes()
            for path in root.rglob("*")
            if path.is_file()
        }

    def reads(self) -> int:
        """How many bodies were asked of S3 since calls were forgotten."""
        return sum(call == ("s3", "GetObject") for call in self.aws.calls)

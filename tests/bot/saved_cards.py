"""Runs whose results are saved, or cannot be."""

from __future__ import annotations

from run_blocks import NOW, in_phase, progress

from stationmaster.domain.run.events import RunPhase
from stationmaster.domain.run.kept import Results

URI = "s3://a-bucket/runs/tiny-llama-0123abcd/"


RESULTS = Results(
    uri=URI, num_files=7, num_bytes=13_476_000_000, manifest_sha256="0" * 64, saved_at=NOW
)


DENIED = "S3 refuses <the saver>: AccessDenied"


def saved(*phases: RunPhase, **values: object):
    run = {"results": RESULTS, "training_started_at": NOW, "progress": progress(60)}
    return in_phase(RunPhase.RUNNING, RunPhase.SAVING, *phases, **(run | values))


def unsaved(**values: object):
    run = {"unsaved_reason": DENIED, "training_started_at": NOW, "pods": {}}
    return in_phase(RunPhase.RUNNING, RunPhase.SAVING, **(run | values))

"""How fast a result is saved, beside boto3 uploading the same files.

Both are processes of their own that send to the same local S3, which is slower than the real one
and takes one request at a time: so this compares what the two add to it. boto3 uploads with its
own defaults, file after file; the saver also hashes, has S3 compare SHA-256, and writes the
manifest. The local S3 hashes on the same cores.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from bench.figures import Figure
from stationmaster.domain.ids import RunId
from stationmaster.domain.results import MIB, RunFacts, SavedLine
from stationmaster.local.aws import DeploymentSpec, InProcessRuntime, LocalAws

BUCKET: Final = "bench-artifacts"
ROUNDS: Final = 3
# As a small model and its tokenizer are: a few large files and some that take one request each.
_FILES: Final = {
    **{f"model-{number}.safetensors": 40 * MIB for number in range(4)},
    **{f"small-{number}.json": 20_000 for number in range(12)},
}

_PLAIN: Final = """\
import pathlib, sys, time
import boto3

bucket, prefix, directory = sys.argv[1:]
began = time.monotonic()
s3 = boto3.client("s3")
for path in sorted(pathlib.Path(directory).iterdir()):
    s3.upload_file(str(path), bucket, prefix + path.name)
print(time.monotonic() - began)
"""


def measure_saving() -> list[Figure]:
    """Return the saver's throughput over that of plain uploads; medians of several rounds."""
    with tempfile.TemporaryDirectory(prefix="bench-saving-") as scratch:
        directory = Path(scratch, "run")
        (directory / "model").mkdir(parents=True)
        for name, size in _FILES.items():
            (directory / "model" / name).write_bytes(os.urandom(size))
        no_cluster = Path(scratch, "kubeconfig")
        no_cluster.write_text(kubeconfig("http://127.0.0.1:9"))
        ratios, saver_s = [], []
        for number in range(ROUNDS):
            # Anew each round: the local S3 keeps everything, and gets slower with it.
            with LocalAws(
                state_dir=Path(scratch, f"aws-{number}"), invoker=InProcessRuntime(), handlers=[]
            ) as aws:
                aws.deploy(DeploymentSpec(buckets=[BUCKET]))
                words = ["-c", _PLAIN, BUCKET, "plain/", str(directory / "model")]
                plain = float(_last_line(words, aws.environment()))
                saved = _saved(aws, directory, no_cluster)
            ratios.append(plain / saved)
            saver_s.append(saved)
    num_bytes = sum(_FILES.values())
    return [
        Figure(
            name="results saved, of the throughput of plain uploads",
            value=statistics.median(ratios),
            unit="of it",
            at_least=0.8,
            note=f"{num_bytes / MIB / statistics.median(saver_s):.0f} MiB/s to the local S3; "
            f"{num_bytes / MIB:.0f} MiB in {len(_FILES)} files, medians of {ROUNDS}",
        )
    ]


def kubeconfig(address: str) -> str:
    """Write the configuration of whoever talks to a server that asks for no identity."""
    return json.dumps(
        {
            "current-context": "it",
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
            "clusters": [{"name": "it", "cluster": {"server": address}}],
            "users": [{"name": "it", "user": {}}],
        }
    )


def _last_line(words: Sequence[str], environ: Mapping[str, str]) -> str:
    """Return the last line that a Python process prints."""
    done = subprocess.run(
        [sys.executable, *words],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()[-1]


def _saved(aws: LocalAws, directory: Path, no_cluster: Path) -> float:
    """Return the seconds that the saver takes, as it says itself."""
    run_id = RunId("bench-saving")
    facts = RunFacts(
        run_id=run_id, recipe="bench", nodes=1, instance_type="none", outcome="succeeded"
    )
    environ = aws.environment() | {
        "STATIONMASTER_ARTIFACTS_BUCKET": BUCKET,
        "STATIONMASTER_RUN_DIRECTORY": str(directory),
        "STATIONMASTER_RUN_FACTS": facts.model_dump_json(),
        "KUBECONFIG": str(no_cluster),
    }
    line = _last_line(["-m", "stationmaster.relay.save"], environ)
    return SavedLine.model_validate_json(line).seconds

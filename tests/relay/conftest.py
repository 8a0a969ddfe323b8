"""Two buckets for each test file, and what lies in a run's directory or in a bucket."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from saving_world import BUCKET, CONFIGURATION, WEIGHTS, SavedRun
from staging_world import BUCKET as DATA_BUCKET
from staging_world import Data

from stationmaster.domain.ids import RunId
from stationmaster.local.aws import DeploymentSpec, InProcessRuntime, LocalAws


@pytest.fixture(scope="module")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalAws]:
    """An account with the bucket for results and one with data."""
    endpoint = LocalAws(
        state_dir=tmp_path_factory.mktemp("aws"), invoker=InProcessRuntime(), handlers=[]
    )
    with endpoint:
        endpoint.deploy(DeploymentSpec(buckets=[BUCKET, DATA_BUCKET]))
        yield endpoint


@pytest.fixture
def large(run: SavedRun) -> SavedRun:
    """The run with weights of three parts."""
    run.write("model/model.safetensors", WEIGHTS)
    return run


@pytest.fixture
def run(
    aws: LocalAws,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Iterator[SavedRun]:
    """A run that has trained a small model, with two checkpoints."""
    for name, value in aws.environment().items():
        monkeypatch.setenv(name, value)
    digest = hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:8]
    made = SavedRun(aws, RunId(f"tiny-llama-{digest}"), tmp_path / "run")
    made.write("model/model.safetensors", b"few weights")
    made.write("model/config.json", b"{}")
    made.write("metrics.jsonl", b'{"step":1}\n')
    made.write(f"checkpoints/{CONFIGURATION}/huggingface/config.json", b"{}")
    made.write_checkpoint(40, b"older")
    made.write_checkpoint(60, b"newer")
    aws.forget_calls()
    yield made
    aws.clear_injected()


@pytest.fixture
def data(
    aws: LocalAws,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Data]:
    """An empty prefix of this test's own."""
    for name, value in aws.environment().items():
        monkeypatch.setenv(name, value)
    yield Data(aws, request.node.name.partition("[")[0].replace("_", "-"), tmp_path / "data")
    aws.clear_injected()
    aws.forget_calls()

"""Somebody else's trainer through the whole product: its steps, its files, and where it is off."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e_world import World, world

from stationmaster.aws.artifacts import Artifacts
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import RunPhase

TRAINER = Path(__file__).parent / "foreign_ddp.py"
IMAGE = "localhost/stationmaster/training:local"
WORDS = ("torchrun", str(TRAINER), "5", "$(HOSTNAME)", "$HOME", "`id`", ";", "a b")
START = f"/train ddp-cpu preset=smoke nodes=2 command={shlex.quote(shlex.join(WORDS))}"


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("own-code"), forks=True, allow_commands=True) as started:
        yield started


@pytest.fixture(scope="module")
def ended(local: World) -> dict[str, Run]:
    """A run of the trainer with either rendezvous, at once."""
    started = {
        "elastic": local.start(f"{START} image={IMAGE} dataset=some-words"),
        "static": local.start(f"{START} rendezvous=static"),
    }
    return {name: local.wait_for_receipt(run_id) for name, run_id in started.items()}


@pytest.fixture(autouse=True)
def _account(local: World, monkeypatch: pytest.MonkeyPatch) -> None:
    assert local.mode.aws is not None
    for name, value in local.mode.aws.environment().items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(("name", "first"), [("elastic", "worker-1"), ("static", "master-0")])
def test_trainer_of_others_has_its_loss_in_the_channel_and_its_files_in_the_bucket(
    local: World, ended: dict[str, Run], tmp_path: Path, name: str, first: str
) -> None:
    run = ended[name]
    artifacts = Artifacts.connect(local.services.settings.artifacts_bucket)
    manifest = artifacts.download(run.run_id, tmp_path).manifest
    logs = [f"logs/{run.run_id}-{pod}.log" for pod in sorted((first, "worker-0"))]

    assert run.phase is RunPhase.SUCCEEDED, run.reason
    assert [step for step, _ in run.loss_points] == [1, 2, 3, 4, 5]
    assert run.loss_points[-1][1] < run.loss_points[0][1]
    text = str(local.card(run.run_id).blocks)
    assert "step 5" in text
    assert "ls -R my-results/output" in text
    assert "from_pretrained" not in text
    assert local.left(run.run_id) == []
    paths = [*logs, "output/dataset", "output/snapshot.pt"]
    assert [file.path for file in manifest.files] == paths
    assert manifest.left_out == ("output/secret: a link",)
    assert manifest.program == WORDS
    # Nobody expanded what was typed, neither a shell nor a kubelet.
    assert f"arguments: {list(WORDS[3:])}" in (tmp_path / logs[0]).read_text()
    if name == "elastic":
        assert manifest.image == IMAGE
        assert (tmp_path / "output" / "dataset").read_text() == "some-words"

"""The tokenizer that the torchtitan image fetches before it becomes torchrun."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.training.hub_stand_in import HubStandIn, Repository, hub_stand_in

SCRIPT = Path(__file__).parents[2] / "container" / "torchtitan" / "with_tokenizer.py"
MODEL = "org/model"
LIST = "import os, sys; print(sorted(n for n in os.listdir(sys.argv[1]) if n[0] != '.'))"


def run(hub: HubStandIn, tmp_path: Path, *, repository: str = MODEL, revision: str, program: str):
    directory = tmp_path / "tokenizer"
    command = [sys.executable, str(SCRIPT), repository, "--revision", revision]
    words = [program, "-c", LIST, str(directory)]
    return subprocess.run(
        [*command, "--directory", str(directory), "--", *words],
        env=os.environ | {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )


def publish(hub: HubStandIn, tmp_path: Path, *names: str) -> Repository:
    published = tmp_path / "published"
    published.mkdir()
    for name in names:
        (published / name).write_bytes(b"{}")
    hub.models[MODEL] = Repository(published)
    return hub.models[MODEL]


def test_program_finds_the_tokenizer_and_no_weights(tmp_path: Path) -> None:
    with hub_stand_in() as hub:
        commit = publish(hub, tmp_path, "tokenizer.json", "config.json", "model.safetensors").commit

        ended = run(hub, tmp_path, revision=commit, program=sys.executable)

    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.strip() == "['config.json', 'tokenizer.json']"


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"revision": "main"}, '--revision "main" is not accepted: expected a commit of 40'),
        ({"repository": "org/other"}, "the hub has no repository org/other"),
        ({}, "org/model has no tokenizer.json, the form that torchtitan reads"),
    ],
)
def test_program_is_not_run_without_a_tokenizer(
    tmp_path: Path, asked: dict[str, str], said: str
) -> None:
    with hub_stand_in() as hub:
        commit = publish(hub, tmp_path, "config.json").commit

        ended = run(hub, tmp_path, **({"revision": commit} | asked), program=sys.executable)

    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.strip().splitlines()[-1].startswith(f"with_tokenizer.py: {said}")
    assert "Traceback" not in ended.stderr

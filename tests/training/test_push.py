"""A trained model is pushed to a hub that speaks the client's own upload protocol."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stationmaster.domain.exit_codes import EXIT_MISUNDERSTOOD, EXIT_NOT_DONE, EXIT_REFUSED
from stationmaster.domain.results import PushedLine
from tests.support.hub_uploads import LFS_BYTES, TOKEN, Repository, UploadHub, upload_hub

REPOSITORY = "lab/tiny"
FILES = {
    "README.md": b"# tiny\n",
    "config.json": b'{"a":1}',
    "model-00001-of-00002.safetensors": bytes(range(200)) * 3,
    "model-00002-of-00002.safetensors": b"x" * LFS_BYTES,
    "tokenizer/vocab.txt": b"a\nb\n",
}
LFS = {name for name in FILES if name.endswith(".safetensors")}


@pytest.fixture
def hub() -> Iterator[UploadHub]:
    with upload_hub() as hub:
        yield hub


@pytest.fixture
def model(tmp_path: Path) -> Path:
    for name, data in FILES.items():
        path = tmp_path / "model" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return tmp_path / "model"


def push(hub: UploadHub, model: Path, *, token: str = TOKEN) -> tuple[int, str]:
    """Push as the Job does; the exit code, and the last line."""
    variables = {"HF_TOKEN": token, "HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1"}
    places = {"PATH": os.environ["PATH"], "HF_HOME": str(model.parent / "home")}
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "training.push", "--model", str(model)),
            *("--repository", REPOSITORY, "--run-id", "tiny-llama-0a1b2c3d"),
        ],
        env=variables | places,
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    return ended.returncode, (ended.stdout.splitlines() or [""])[-1]


def test_model_is_pushed_in_one_commit_to_a_private_repository_and_verified_again(
    hub: UploadHub, model: Path
):
    code, line = push(hub, model)

    made, said = hub.repositories[REPOSITORY], PushedLine.model_validate_json(line)
    assert code == 0
    assert made.private
    assert {name: data for name, data in made.files.items() if name != ".gitattributes"} == FILES
    assert made.lfs == LFS
    assert made.messages == ["Add the model of run tiny-llama-0a1b2c3d"]
    assert (said.repository, said.revision) == (REPOSITORY, made.commits[-1])
    assert (said.num_files, said.num_bytes) == (len(FILES), sum(map(len, FILES.values())))
    # Its end was not seen: it is verified again.
    assert PushedLine.model_validate_json(push(hub, model)[1]).num_files == len(FILES)


def test_push_that_failed_at_its_commit_sends_no_file_again(hub: UploadHub, model: Path):
    hub.failing["commit"] = [503]
    assert push(hub, model)[0] == EXIT_NOT_DONE
    assert len(hub.objects) == len(LFS)
    hub.requests.clear()

    code, _ = push(hub, model)

    assert code == 0
    assert "put" not in hub.requests
    assert hub.repositories[REPOSITORY].files[min(LFS)] == FILES[min(LFS)]


def test_other_bytes_on_the_hub_are_noticed(hub: UploadHub, model: Path):
    hub.corrupts = True

    code, line = push(hub, model)

    assert code == EXIT_NOT_DONE
    assert f"{REPOSITORY} has other bytes of {max(LFS)} than were sent: 63 bytes" in line


@pytest.mark.parametrize(
    ("there", "words"),
    [
        (None, "refuses to push to lab/tiny: HTTP 403"),
        (Repository(private=False), "lab/tiny is a public repository; make it private"),
        (
            Repository(files={"theirs.bin": b"x"}),
            "lab/tiny has other files already, such as theirs.bin",
        ),
    ],
    ids=["foreign owner", "public", "other files"],
)
def test_repository_that_may_not_be_written_is_refused(hub: UploadHub, model, there, words):
    if there is None:
        hub.organisations.clear()
    else:
        hub.repositories[REPOSITORY] = there

    code, line = push(hub, model)

    assert (code, words in line) == (EXIT_REFUSED, True), line
    assert "commit" not in hub.requests


@pytest.mark.parametrize(
    ("folder", "token", "code", "words"),
    [
        ("model", "hf_other", EXIT_REFUSED, "HTTP 401"),
        ("model", "", EXIT_MISUNDERSTOOD, "HF_TOKEN is not set"),
        ("nothing", TOKEN, EXIT_MISUNDERSTOOD, "there is no trained model"),
    ],
)
def test_wrong_or_missing_setting_is_one_sentence_without_the_token(
    hub: UploadHub, model: Path, folder: str, token: str, code: int, words: str
):
    ended, line = push(hub, model.with_name(folder), token=token)

    assert (ended, words in line) == (code, True), line
    assert "hf_other" not in line

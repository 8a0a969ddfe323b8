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


class Push:
    """A push as its Job starts it."""

    def __init__(self, hub: UploadHub, model: Path, *, token: str = TOKEN) -> None:
        variables = {"HF_TOKEN": token, "HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1"}
        places = {"PATH": os.environ["PATH"], "HF_HOME": str(model.parent / "home")}
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "training.push", "--model", str(model)),
                *("--repository", REPOSITORY, "--run-id", "tiny-llama-0a1b2c3d"),
            ],
            env=variables | places,
            cwd=Path(__file__).parents[2],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def end(self) -> tuple[int, str]:
        said, _ = self.process.communicate()
        return self.process.returncode, (said.splitlines() or [""])[-1]


def test_model_is_pushed_in_one_commit_to_a_private_repository_and_verified_again(
    hub: UploadHub, model: Path
):
    code, line = Push(hub, model).end()

    made, said = hub.repositories[REPOSITORY], PushedLine.model_validate_json(line)
    assert code == 0
    assert made.private
    assert {name: data for name, data in made.files.items() if name != ".gitattributes"} == FILES
    assert made.lfs == LFS
    assert made.messages == ["Add the model of run tiny-llama-0a1b2c3d"]
    assert (said.repository, said.revision) == (REPOSITORY, made.commits[-1])
    assert (said.num_files, said.num_bytes) == (len(FILES), sum(map(len, FILES.values())))
    # Its end was not seen: it is verified again.
    assert PushedLine.model_validate_json(Push(hub, model).end()[1]).num_files == len(FILES)


def test_push_that_failed_at_its_commit_sends_no_file_again(hub: UploadHub, model: Path):
    hub.failing["commit"] = [503]
    assert Push(hub, model).end()[0] == EXIT_NOT_DONE
    assert len(hub.objects) == len(LFS)
    hub.requests.clear()

    code, _ = Push(hub, model).end()

    assert code == 0
    assert "put" not in hub.requests
    assert hub.repositories[REPOSITORY].files[min(LFS)] == FILES[min(LFS)]


def test_other_bytes_on_the_hub_are_noticed(hub: UploadHub, model: Path):
    hub.corrupts = True

    code, line = Push(hub, model).end()

    assert code == EXIT_NOT_DONE
    assert f"{REPOSITORY} has other bytes of {max(LFS)} than were sent: 63 bytes" in line


def foreign_owner(hub: UploadHub) -> None:
    hub.organisations.clear()


def public(hub: UploadHub) -> None:
    hub.repositories[REPOSITORY] = Repository(private=False)


def other_files(hub: UploadHub) -> None:
    hub.repositories[REPOSITORY] = Repository(files={"theirs.bin": b"x"})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (foreign_owner, "refuses to push to lab/tiny: HTTP 403"),
        (public, "lab/tiny is a public repository; make it private"),
        (other_files, "lab/tiny has other files already, such as theirs.bin"),
    ],
)
def test_repository_that_may_not_be_written_is_refused(hub: UploadHub, model, given, words):
    given(hub)

    code, line = Push(hub, model).end()

    assert (code, words in line) == (EXIT_REFUSED, True), line
    assert "commit" not in hub.requests


def test_wrong_token_is_refused_and_not_shown(hub: UploadHub, model: Path):
    code, line = Push(hub, model, token="hf_other").end()

    assert code == EXIT_REFUSED
    assert "HTTP 401" in line
    assert "hf_other" not in line


@pytest.mark.parametrize("missing", ["model", "token"])
def test_missing_setting_is_one_sentence(hub: UploadHub, model: Path, missing: str):
    folder = model.parent / "nothing" if missing == "model" else model

    code, line = Push(hub, folder, token="" if missing == "token" else TOKEN).end()

    assert code == EXIT_MISUNDERSTOOD
    assert ("there is no trained model" if missing == "model" else "HF_TOKEN is not set") in line

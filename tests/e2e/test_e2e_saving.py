"""Results that are denied at first, and pushed to a hub in the end: all with real bytes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from e2e_world import world

from stationmaster import commands
from stationmaster.domain.run.events import RunPhase
from stationmaster.local.slack import OPERATOR_ID, TRAINING_CHANNEL_ID
from tests.support.hub_uploads import TOKEN, UploadHub, upload_hub

RUN = "/train tiny-llama nodes=1 steps=4 checkpoint_every=2 log_every=1 push_to=lab/tiny"


def test_run_whose_saver_is_denied_keeps_its_file_system_until_a_person_saves_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with upload_hub() as hub:
        hub.part_bytes = 2**20
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        _save_and_push(tmp_path, hub)


def _save_and_push(tmp_path: Path, hub: UploadHub) -> None:
    with world(tmp_path / "state", forks=True) as made:
        aws = made.mode.aws
        aws.inject("s3", "PutObject", "AccessDenied", times=1000)
        aws.inject("s3", "CreateMultipartUpload", "AccessDenied", times=1000)
        run_id = made.start(RUN)
        made.wait_for("teardown.failed")
        aws.settle()

        run = made.services.runs.load(run_id)
        left = made.left(run_id)
        card = json.dumps(made.card(run_id).blocks, ensure_ascii=False)
        assert run.phase is RunPhase.SAVING
        assert "AccessDenied" in run.unsaved_reason
        assert any(each.startswith("file system") for each in left), left
        assert "node group training" not in left
        assert "The results are not saved" in card
        assert "an hour*" in card
        assert "the results are not saved" in made.thread_text(run_id)

        aws.clear_injected()
        commands.save_again(
            made.services, run_id, channel_id=TRAINING_CHANNEL_ID, user_id=OPERATOR_ID
        )
        made.wait(lambda: made.of_type("teardown.completed"), "all is torn down in the end")

        run = made.services.runs.load(run_id)
        assert run.phase is RunPhase.SUCCEEDED
        assert run.results is not None
        assert made.left(run_id) == []
        found = made.services.artifacts.download(run_id, tmp_path / "result")
        assert found.manifest.step == 4
        model = tmp_path / "result" / "model"
        saved = {
            path.relative_to(model).as_posix(): path.read_bytes()
            for path in model.rglob("*")
            if path.is_file()
        }
        # Saved late, on system nodes alone, and pushed from there.
        assert run.pushed is not None, run.not_pushed
        pushed = hub.repositories["lab/tiny"]
        assert pushed.private
        assert pushed.commits[-1] == run.pushed.revision
        assert {name: pushed.files[name] for name in saved} == saved

"""What a person in a channel does with the results and backups of runs."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path
from typing import Any

import boto3
import pytest
from bot_world import REGION, Person, Story, seen, started_workflows
from recording_slack import RecordingSlack
from run_blocks import DENIED, URI

from bot.blocks.mrkdwn import link
from stationmaster.domain.errors import TransientError
from stationmaster.domain.ids import RunId
from stationmaster.domain.restoring import ResumePoint
from stationmaster.domain.run import events as ev
from stationmaster.domain.run.events import RunPhase
from stationmaster.services import Services
from tests.support.artifacts_world import BUCKET, SavedRun, save_run

FILES = {
    "checkpoint/step-00000060/__0_0.distcp": b"weights",
    "checkpoint/step-00000060/complete.json": b"{}",
    "model/model.safetensors": b"weights",
}


@pytest.fixture
def saved(bucket: Any, ended: RunId, story: Story) -> SavedRun:
    """Its result: a checkpoint of step 60, of the 60 steps that it had."""
    source = "tiny-llama-0123456789ab/step-00000060"
    made = save_run(bucket, ended, FILES, checkpoint_source=source)
    story.happen(ev.ResultsSaved, num_files=len(FILES), **made.recorded)
    return made


def only_new(services: Services, old: RunId) -> Any:
    (run,) = [run for run in services.runs.list_recent() if run.run_id != old]
    return run


def test_resume_starts_a_run_that_knows_where_it_goes_on(
    person: Person, services: Services, slack: RecordingSlack, saved: SavedRun
) -> None:
    answer = person.type("resume last steps=+40")

    run = only_new(services, saved.run_id)
    assert run.request.resume_from == ResumePoint(run_id=saved.run_id, step=60)
    assert run.request.overrides["steps"] == str(60 + 40)
    assert run.request.command == "/train resume last steps=+40"
    assert f"resumes from {saved.run_id} at step 60" in seen(answer)
    assert f"resumes from `{saved.run_id}` at step 60" in slack.cards[0].seen


def test_resume_above_the_limits_asks_for_an_approval(
    person: Person,
    services: Services,
    saved: SavedRun,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "rules.json"
    path.write_text('{"channels": {"*": {"approval": {"usd_per_hour": 0.01}}}}')
    monkeypatch.setenv("STATIONMASTER_RULES_FILE", str(path))

    assert "waits for an approval" in seen(person.type("resume last steps=+40"))
    assert only_new(services, saved.run_id).awaits_approval
    assert started_workflows(services.settings) == []


def test_weights_of_a_run_start_another_one(
    person: Person, services: Services, slack: RecordingSlack, saved: SavedRun
) -> None:
    person.type(f"tiny-llama weights={saved.run_id}")

    run = only_new(services, saved.run_id)
    assert (run.request.weights_from, run.request.resume_from) == (saved.run_id, None)
    assert f"weights of `{saved.run_id}`" in slack.cards[0].seen


def test_run_that_has_saved_nothing_is_named(
    person: Person, services: Services, bucket: Any, ended: RunId
) -> None:
    answer = person.type("resume last")

    assert f"run {ended} has saved nothing" in seen(answer)
    assert len(services.runs.list_recent()) == 1


def test_manifest_that_was_changed_since_it_was_verified_is_not_used(
    person: Person, saved: SavedRun
) -> None:
    saved.put("manifest.json", saved.manifest.model_copy(update={"seed": 6}).to_json())

    answer = person.type("resume last steps=+40")

    assert f"the result of run {saved.run_id} cannot be used: " in seen(answer)
    assert "is not the manifest that was verified" in seen(answer)


def test_run_that_has_not_ended_is_refused(person: Person, story: Story, bucket: Any) -> None:
    story.begin()

    by_id = person.type(f"resume {story.run_id}")
    newest = person.type("resume last")

    assert "its result can be used when it has ended" in seen(by_id)
    assert "no run of this channel has ended yet" in seen(newest)


def test_bucket_that_does_not_answer_is_given_up_in_time_for_slack(
    services: Services, ended: RunId, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("STATIONMASTER_ARTIFACTS_BUCKET", BUCKET)
    asked = Services(services.settings.model_copy(update={"artifacts_bucket": BUCKET}))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://127.0.0.1:{silent.getsockname()[1]}")
        began = time.monotonic()
        with pytest.raises(TransientError, match=str(ended)):
            asked.quick_artifacts.read(ended)
    # A client of a step waits for a minute in all.
    assert time.monotonic() - began < 30


BACKUP = {"checkpoint/step-00000060/complete.json": b"{}"}


def test_backup_is_resumed_as_one_and_gives_no_model(person, story: Story, bucket, ended):
    source = "tiny-llama-0123456789ab/step-00000060"
    backup = save_run(bucket, ended, BACKUP, checkpoint_source=source, outcome="running")
    story.happen(ev.BackupStarted, number=1, step=60)
    story.happen(ev.BackupSaved, number=1, step=60, **backup.recorded)

    refused = seen(person.type(f"tiny-llama weights={ended}"))
    resumed = seen(person.type("resume last steps=+40"))

    assert "it is a backup of while the run trained; its checkpoint is of step 60" in refused
    assert f"resumes from a backup of {ended} at step 60" in resumed
    assert "what that run trained after its newest backup is not saved" in resumed


def train(story: Story) -> str:
    """It has trained, and its results are being saved; what its buttons say."""
    story.begin()
    story.phases(RunPhase.PROVISIONING, RunPhase.VALIDATING, RunPhase.SUBMITTING, RunPhase.RUNNING)
    story.happen(ev.TrainingStarted, total_steps=9)
    story.phases(RunPhase.SAVING)
    return json.dumps({"run_id": story.run_id})


def leave_unsaved(story: Story) -> str:
    value = train(story)
    story.happen(ev.ResultsUnsaved, reason=DENIED)
    return value


def test_save_again_button_starts_another_try(person, story, services, slack):
    value = leave_unsaved(story)

    person.press("save_again", value, user="U0OTHER")
    person.press("save_again", value, user="U0OTHER")

    run = services.runs.load(story.run_id)
    assert (run.passes, run.unsaved_reason) == (2, "")
    assert services.workflows.train_status(story.run_id, 2) is not None
    assert "are being saved again" in slack.responses[0].seen
    assert "are being saved" in slack.responses[1].seen


def test_delete_without_saving_button_gives_the_results_up(person, story, services, slack):
    value = leave_unsaved(story)

    person.press("give_up_results", value, user="U0OTHER")

    assert services.runs.load(story.run_id).results_given_up_by == "U0OTHER"
    assert "ends without its results" in slack.responses[0].seen


def test_results_cannot_be_deleted_while_they_are_saved_again_or_once_they_are(
    person, story, services, slack
):
    value = leave_unsaved(story)
    person.press("save_again", value, user="U0OTHER")

    person.press("give_up_results", value, user="U0THIRD")
    story.happen(ev.ResultsSaved, uri=URI, num_files=7, num_bytes=1024, manifest_sha256="0" * 64)
    person.press("give_up_results", value, user="U0THIRD")
    person.press("save_again", value, user="U0THIRD")

    run = services.runs.load(story.run_id)
    assert (run.results_given_up_by, run.passes) == ("", 2)
    answers = [answer.seen for answer in slack.responses[1:]]
    assert "are being saved" in answers[0]
    assert all("are not waiting to be saved" in answer for answer in answers[1:])


LINKED = {
    "checkpoint/step-00000060/weights.pt": b"checkpoint",
    "metrics.jsonl": b"{}\n",
    "model/model.safetensors": b"weights",
}


@pytest.fixture
def value(story: Story, bucket) -> str:
    """What the button of a saved run says."""
    value = train(story)
    made = save_run(bucket, story.run_id, LINKED)
    story.happen(ev.ResultsSaved, num_files=3, **made.recorded)
    return value


def test_answer_is_for_one_person_and_says_how_long_links_are_valid(
    person: Person, slack: RecordingSlack, value: str
):
    person.press("link_results", value, user="U0OTHER")

    (answer,) = slack.responses
    assert answer.arguments["response_type"] == "ephemeral"
    assert answer.arguments["replace_original"] is False
    assert "The links are valid until" in answer.seen
    assert "1 more file; the command on the card brings all of them" in answer.seen
    for path in ("manifest.json", "metrics.jsonl", "model/model.safetensors"):
        assert f"|{path}>" in answer.seen
    assert answer.seen.count("X-Amz-Signature=") == 3
    assert slack.of("chat.postMessage") == []


def test_other_channel_is_answered_as_if_there_were_no_such_run(
    person: Person, slack: RecordingSlack, value: str, story: Story
):
    person.press("link_results", value, channel="C0OTHER")
    resumed = person.type(f"resume {story.run_id} steps=+40", channel_id="C0OTHER")

    (answer,) = slack.responses
    assert "no run is called" in seen(resumed)
    assert "no run is called" in answer.seen
    assert "X-Amz-Signature" not in answer.seen


def test_link_keeps_its_address_whole():
    address = "http://127.0.0.1:1/b/k?a=1&b=%20"

    assert link(address, "a|b<c") == "<http://127.0.0.1:1/b/k?a=1&amp;b=%20|a/b&lt;c>"


REPOSITORY = "lab/tiny"


def test_allowed_push_is_part_of_the_request(
    person: Person, services: Services, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("STATIONMASTER_PUSH_ORGANISATIONS", "lab,team")
    monkeypatch.setenv("STATIONMASTER_HUGGING_FACE_SECRET_ID", "hub")
    secrets = boto3.client("secretsmanager", REGION)
    secrets.create_secret(Name="hub", SecretString=json.dumps({"token": ""}))
    refused = person.type(f"tiny-llama push_to={REPOSITORY}")
    secrets.put_secret_value(SecretId="hub", SecretString=json.dumps({"token": "hf_x"}))

    person.type(f"tiny-llama push_to={REPOSITORY}")

    assert "has no token for the Hugging Face hub" in json.dumps(refused["answer"]["blocks"])
    (run,) = services.runs.list_recent()
    assert run.request.push_to == REPOSITORY


def test_tracker_without_its_account_in_the_secret_is_refused_before_it_costs(
    person: Person, services: Services, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("STATIONMASTER_HUGGING_FACE_SECRET_ID", "hub")
    secrets = boto3.client("secretsmanager", REGION)
    secrets.create_secret(Name="hub", SecretString=json.dumps({"token": ""}))
    refused = person.type("tiny-llama track=wandb:lab")
    secrets.put_secret_value(SecretId="hub", SecretString='{"token": "", "WANDB_API_KEY": "k"}')

    person.type("tiny-llama track=wandb:lab")

    assert "has no WANDB_API_KEY in its secret" in json.dumps(refused["answer"]["blocks"])
    assert [run.request.track for run in services.runs.list_recent()] == ["wandb:lab"]

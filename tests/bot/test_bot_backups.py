"""What a channel sees of backups: on the card, in the thread, and where there is no result."""

from __future__ import annotations

import pytest
from bot_world import Story
from run_blocks import NOW, in_phase, progress, seen

from bot.blocks.card import card_milestone, run_card
from bot.blocks.receipt import run_receipt
from bot.blocks.results import backup_line, results_line
from bot.blocks.thread import is_noteworthy
from stationmaster.domain.run import events as ev
from stationmaster.domain.run.events import RunPhase
from stationmaster.domain.run.kept import Backup, Backups, Results
from tests.support.artifacts_world import save_run

URI = "s3://a-bucket/runs/tiny-llama-0123abcd/"
NEWEST = Backup(step=4200, uri=URI, num_bytes=2**30, manifest_sha256="0" * 64, saved_at=NOW)
DENIED = "S3 refuses <the saver>: AccessDenied"
WHOLE, FAILED = Backups(number=1, newest=NEWEST), Backups(number=2, newest=NEWEST, failed=DENIED)
FILES = {"checkpoint/step-00000060/complete.json": b"{}"}


def trains(backups: Backups, *phases: RunPhase, **values: object):
    run = {"backups": backups, "training_started_at": NOW, "progress": progress(60)}
    return in_phase(RunPhase.RUNNING, *phases, **(run | values))


def card(backups: Backups, *phases: RunPhase, **values: object) -> str:
    return seen(run_card(trains(backups, *phases, **values), now=NOW))


def event(kind: type, **values: object):
    return kind(event_id="e", run_id="r", at=NOW, number=1, **values)


SAVED = event(ev.BackupSaved, step=4200, num_bytes=2**30, uri=URI, manifest_sha256="0")


def test_card_of_a_run_that_trains_has_its_newest_backup():
    assert "backup of step 4,200 (1.00 GiB)" in card(WHOLE)
    assert "a backup is being made" in card(Backups(number=1, is_running=True))
    assert "backup" not in card(Backups())


def test_card_says_why_the_last_backup_failed():
    text = card(FAILED)

    assert "S3 refuses &lt;the saver&gt;: AccessDenied. It is tried again" in text
    assert "backup of step 4,200" in text


def test_news_of_backups_changes_the_card_at_once():
    views = [trains(Backups()), trains(WHOLE), trains(FAILED)]

    assert len({card_milestone(view) for view in views}) == len(views)


def test_thread_says_what_was_saved_and_a_failure_once():
    failed = event(ev.BackupFailed, reason=DENIED)

    assert f"backup of step 4,200 saved and verified: 1.00 GiB in `{URI}`" in backup_line(SAVED)
    assert "*a backup failed:* S3 refuses &lt;the saver&gt;" in backup_line(failed)
    assert [is_noteworthy(each) for each in (SAVED, failed)] == [True, True]
    again = failed.model_copy(update={"again": True})
    begun = event(ev.BackupStarted, step=1)
    assert not any(map(is_noteworthy, (again, begun, event(ev.BackupLookedAt))))


@pytest.mark.parametrize(
    "values", [{"results_lost": "the file system is gone"}, {"results_given_up_by": "U7"}, {}]
)
def test_run_without_a_result_ends_with_its_newest_backup(values):
    view = trains(WHOLE, RunPhase.SAVING, RunPhase.FAILED, **values)

    for shown in (run_card(view, now=NOW), run_receipt(view, now=NOW)):
        text = seen(shown)
        assert f"*Newest backup:* step 4,200 (1.00 GiB) in `{URI}`" in text
        assert f"/train resume {view.run.run_id}" in text


def test_results_that_are_not_saved_are_shown_with_the_newest_backup():
    text = card(WHOLE, RunPhase.SAVING, unsaved_reason="cluster r is gone")

    assert "*The results are not saved:* cluster r is gone" in text
    assert "*Newest backup:* step 4,200" in text


def test_thread_says_what_is_left_of_lost_results():
    run = trains(WHOLE, RunPhase.SAVING).run
    lost = ev.ResultsLost(event_id="e", run_id=run.run_id, at=NOW, reason="gone")

    assert f"```/train resume {run.run_id}```" in results_line(lost, run)


def test_saved_run_shows_its_result_and_no_backup():
    results = Results(uri=URI, num_files=7, num_bytes=9, manifest_sha256="0" * 64, saved_at=NOW)

    text = card(FAILED, RunPhase.SAVING, RunPhase.SUCCEEDED, results=results)

    assert "backup" not in text.lower()


def test_resume_of_a_backup_says_that_it_is_one(person, story: Story, bucket, ended):
    source = "tiny-llama-0123456789ab/step-00000060"
    backup = save_run(bucket, ended, FILES, checkpoint_source=source, outcome="running")
    story.happen(ev.BackupStarted, number=1, step=60)
    story.happen(ev.BackupSaved, number=1, step=60, **backup.recorded)

    answer = person.type("resume last steps=+40")

    text = str(answer["answer"]["blocks"])
    assert f"resumes from a backup of {ended} at step 60" in text
    assert "what that run trained after its newest backup is not saved" in text


def test_model_of_a_backup_is_refused_with_what_it_is(person, story: Story, bucket, ended):
    source = "tiny-llama-0123456789ab/step-00000060"
    backup = save_run(bucket, ended, FILES, checkpoint_source=source, outcome="running")
    story.happen(ev.BackupStarted, number=1, step=60)
    story.happen(ev.BackupSaved, number=1, step=60, **backup.recorded)

    answer = person.type(f"tiny-llama weights={ended}")

    text = str(answer["answer"]["blocks"])
    assert "it is a backup of while the run trained; its checkpoint is of step 60" in text

"""What the channel sees of a run's results: saved, not saved, lost, given up, and the buttons."""

from __future__ import annotations

import json

import pytest
from run_blocks import NOW, buttons, in_phase, progress, seen
from saved_cards import DENIED, URI, saved, unsaved

from bot.blocks.card import card_milestone, run_card
from bot.blocks.receipt import run_receipt
from bot.blocks.results import results_line
from bot.blocks.thread import thread_message
from stationmaster.domain.run import events as ev
from stationmaster.domain.run.events import RunPhase
from stationmaster.local.slack.blocks import check_blocks
from tests.support.factories import make_request


def test_card_ends_with_the_result_and_how_to_use_it():
    text = seen(run_card(saved(RunPhase.SUCCEEDED), now=NOW))

    assert f"`{URI}`  7 files, 12.6 GiB, loss 4.250" in text
    assert r"--to my-model --bucket a-bucket\nAutoModelForCausalLM" in text  # a line each
    assert r"AutoModelForCausalLM.from_pretrained(\"my-model/model\")" in text  # in JSON
    assert "Save the results" in text


def test_list_of_a_failed_run_marks_the_phase_that_failed_and_what_was_saved():
    text = seen(run_card(saved(RunPhase.FAILED, reason="KeyError"), now=NOW))
    going = seen(run_card(unsaved(unsaved_reason="", reason="KeyError"), now=NOW))

    assert "\u2717\u2002*Train*" in text
    assert "\u2713\u2002Save the results" in text
    assert "\u2717\u2002*Train*" in going
    assert "*Saving the results*" in going


@pytest.mark.parametrize(
    ("values", "present", "absent"),
    [
        ({"emulated_speed": 720.0}, "--to my-model", "--bucket"),
        (
            {"request": make_request(recipe="resnet50")},
            "AutoModelForImageClassification",
            "AutoModelForCausalLM",
        ),
    ],
)
def test_usage_fits_the_run(values, present, absent):
    text = seen(run_card(saved(RunPhase.SUCCEEDED, **values), now=NOW))

    assert present in text
    assert absent not in text


def test_result_of_a_command_has_no_line_for_a_model():
    request = make_request(program=("torchrun", "a b.py"), image="registry.example.com/x:1")
    run = saved(RunPhase.SUCCEEDED, request=request)
    text = seen(run_card(run, now=NOW))

    assert "--to my-results --bucket a-bucket" in text
    assert "ls my-results/output" in text
    assert "from_pretrained" not in text
    assert "image `registry.example.com/x:1`" in text
    assert "command `torchrun 'a b.py'`" in text
    check_blocks(run_receipt(run, now=NOW).blocks)
    assert "up to its command" in seen(run_receipt(run, now=NOW))


def test_card_does_not_make_up_how_many_steps_a_command_takes():
    request = make_request(program=("true",))
    told = progress(60).model_copy(update={"total_steps": 0})
    running = in_phase(RunPhase.RUNNING, request=request, progress=told, training_started_at=NOW)
    text = seen(run_card(running, now=NOW))

    assert "step 60" in text
    assert "of 0" not in text
    assert "%" not in text
    assert "saving and finishing" not in text


def test_result_of_a_failed_run_has_no_line_for_a_model():
    text = seen(run_card(saved(RunPhase.FAILED, reason="the loss is nan"), now=NOW))

    assert URI in text
    assert "from_pretrained" not in text


def test_receipt_says_where_the_result_is():
    assert URI in seen(run_receipt(saved(RunPhase.SUCCEEDED), now=NOW))


def test_unsaved_results_are_explained_with_their_price_and_two_buttons():
    card = run_card(unsaved(), now=NOW)

    text = seen(card)
    assert "*The results are not saved:* S3 refuses &lt;the saver&gt;: AccessDenied" in text
    assert "an hour*" in text
    assert buttons(card) == ["save_again", "give_up_results"]
    (delete,) = [each for each in card.blocks[-1]["elements"] if "confirm" in each]
    assert delete["confirm"]["deny"]["text"] == "Keep them"
    assert not check_blocks(card.blocks)


def test_card_while_results_are_saved_offers_nothing_to_stop():
    card = run_card(unsaved(unsaved_reason=""), now=NOW)

    assert "*Saving the results*" in seen(card)
    assert buttons(card) == []


def test_card_while_results_are_saved_says_how_training_ended():
    failed = unsaved(unsaved_reason="", reason="the loss is <nan>")
    stopped = unsaved(unsaved_reason="", reason="stopped by U0X", stop_requested_by="U0X")

    assert "*Training failed:* the loss is &lt;nan&gt;" in seen(run_card(failed, now=NOW))
    assert "Stop requested by <@U0X>" in seen(run_card(stopped, now=NOW))
    assert "tiny-llama: stopped, saving results" in seen(run_card(stopped, now=NOW))
    assert "Training failed" not in seen(run_card(stopped, now=NOW))


def test_thread_names_who_stopped_only_once():
    view = unsaved(unsaved_reason="", stop_requested_by="U0X")
    change = {"event_id": "e", "run_id": view.run.run_id, "at": NOW, "phase": RunPhase.SAVING}

    stopped = thread_message([ev.PhaseChanged(**change, reason="stopped by U0X")], view)
    failed = thread_message([ev.PhaseChanged(**change, reason="the loss is nan")], view)

    assert "U0X" not in seen(stopped)
    assert "*training failed*: the loss is nan" in seen(failed)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"results_lost": "its file system is gone"}, "*No result:* its file system is gone"),
        ({"results_given_up_by": "U0X"}, "*No result:* given up by &lt;@U0X&gt;"),
    ],
)
def test_results_that_nobody_has_are_said(values, words):
    text = seen(run_card(unsaved(unsaved_reason="", **values), now=NOW))

    assert words.replace("&lt;", "<").replace("&gt;", ">") in text


def test_run_that_never_trained_shows_no_saving():
    text = seen(run_card(in_phase(RunPhase.PROVISIONING, RunPhase.FAILED, reason="r"), now=NOW))

    assert "Save the results" not in text


def test_news_of_results_changes_the_card_at_once():
    views = [unsaved(unsaved_reason=""), unsaved(), unsaved(unsaved_reason="", passes=2), saved()]

    assert len({card_milestone(view) for view in views}) == len(views)


@pytest.mark.parametrize(
    ("kind", "values", "words"),
    [
        (
            ev.ResultsSaved,
            {"uri": URI, "num_files": 7, "num_bytes": 1024, "manifest_sha256": "0"},
            "results saved and verified: 7 files, 1.00 KiB",
        ),
        (ev.ResultsUnsaved, {"reason": DENIED}, "AccessDenied"),
        (ev.SavingRequested, {"user_id": "U0X"}, "again, asked for by <@U0X>"),
        (ev.SavingRequested, {}, "saving the results again"),
        (ev.ResultsLost, {"reason": "gone"}, "nothing can be saved: gone"),
        (ev.ResultsGivenUp, {"user_id": "U0X"}, "<@U0X> gave up"),
    ],
)
def test_thread_says_what_happened_to_the_results(kind, values, words):
    event = kind(event_id="e", run_id="r", at=NOW, **values)

    assert words in results_line(event, saved().run)


def leave_unsaved(story) -> str:
    story.begin()
    story.phases(RunPhase.PROVISIONING, RunPhase.VALIDATING, RunPhase.SUBMITTING, RunPhase.RUNNING)
    story.happen(ev.TrainingStarted, total_steps=9)
    story.phases(RunPhase.SAVING)
    story.happen(ev.ResultsUnsaved, reason=DENIED)
    return json.dumps({"run_id": story.run_id})


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

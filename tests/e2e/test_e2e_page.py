"""The page in headless Chromium: the main job by typing it, and what else people do there.

With STATIONMASTER_SCREENSHOTS=FOLDER they leave pictures there, the README's among them.
"""

import json
import os
import re
from pathlib import Path

import pytest
from e2e_world import LAUNCH_FLAGS, torchruns, world
from playwright.sync_api import expect, sync_playwright

from stationmaster.local.slack.records import APPROVER_ID, OPERATOR_ID, TRAINING_CHANNEL_ID
from tests.support.patience import PATIENCE_MS

RULE = {"approvers": ["S000APPROVERS"], "approval": {"usd_per_hour": 1.7}}


@pytest.fixture(scope="module")
def stage(tmp_path_factory, chromium):
    rules = tmp_path_factory.mktemp("rules") / "rules.json"
    rules.write_text(json.dumps({"channels": {TRAINING_CHANNEL_ID: RULE}}))
    settings = {"rules_file": str(rules)}
    with (
        world(tmp_path_factory.mktemp("page"), forks=True, settings=settings) as running,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(
            executable_path=chromium, args=LAUNCH_FLAGS, timeout=PATIENCE_MS
        )
        expect.set_options(timeout=PATIENCE_MS)
        page = browser.new_page(viewport={"width": 1440, "height": 1100})
        page.set_default_timeout(PATIENCE_MS)
        page.goto(running.mode.slack.page_url)
        expect(page.locator("[data-testid=app][data-connection=connected]")).to_be_visible()
        yield running, page
        browser.close()


def type_command(page, text):
    page.get_by_test_id("composer").click()
    page.keyboard.type(text)
    page.keyboard.press("Escape")  # closes the suggestions
    page.keyboard.press("Enter")


def card_of(page, ts):
    return page.locator(f"[data-testid=messages] [data-testid=message][data-ts='{ts}']")


def typed_run(stage, text):
    """Type a command that starts a run; its id."""
    running, page = stage
    known = len(running.of_type("run.requested"))
    type_command(page, text)
    running.wait(lambda: len(running.of_type("run.requested")) > known, "another run")
    return running.of_type("run.requested")[-1].run_id


def picture(page, name):
    """Leave pictures of what the page shows, where they are asked for."""
    folder = os.environ.get("STATIONMASTER_SCREENSHOTS")
    if folder is None:
        return
    for scheme, width in (("light", 1280), ("dark", 390)):
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme)
        page.screenshot(path=str(Path(folder) / f"{name}-{width}-{scheme}.png"))
    page.set_viewport_size({"width": 1280, "height": 900})
    page.emulate_media(color_scheme="light")


def become(page, user):
    page.locator(f"[data-user-id={user}]").click()
    expect(page.locator("[data-testid=app][data-connection=connected]")).to_be_visible()


def test_page_when_the_main_job_is_typed_ends_with_card_curve_and_receipt(stage, tmp_path):
    running, page = stage

    type_command(page, "/train tiny-llama nodes=2 steps=20")
    run_id = running.wait_for("run.requested").run_id
    expect(page.get_by_test_id("ephemeral-note").first).to_be_visible()
    running.wait(lambda: _steps(running) >= 10, "step 10")
    card = card_of(page, running.card(run_id).ts)
    expect(card).to_contain_text("tokens/s")
    expect(card.get_by_role("button", name="Stop")).to_be_visible()
    picture = Path(os.environ.get("STATIONMASTER_SCREENSHOTS", tmp_path)) / "channel.png"
    page.screenshot(path=str(picture))
    card.get_by_test_id("reply-bar").click()
    page.get_by_test_id("tab-run").click()
    pane = page.get_by_test_id("run-pane")
    expect(pane).to_contain_text(re.compile(r"\d of 20"))
    expect(pane.get_by_test_id("pod").first).to_contain_text(run_id)
    page.screenshot(path=str(picture.with_name("run.png")))
    page.get_by_test_id("thread-close").click()
    run = running.wait_for_receipt(run_id)

    assert run.phase.value == "succeeded"
    assert running.left(run_id) == []
    assert run.progress.step == 20
    assert run.progress.loss_nats < run.first_loss_nats - 0.5
    expect(card).to_contain_text("100%")
    expect(card).to_contain_text("nothing billable is left")
    expect(card.get_by_role("button", name="Stop")).to_have_count(0)
    receipt = page.get_by_test_id("messages").get_by_text("Nothing billable is left")
    expect(receipt.first).to_be_visible()
    card.get_by_test_id("reply-bar").click()
    image = page.locator("[data-testid=thread] [data-testid=file] img")
    expect(image).to_be_visible()
    expect(image).to_have_js_property("naturalWidth", 1200)
    image.scroll_into_view_if_needed()
    page.screenshot(path=str(picture.with_name("receipt.png")))
    page.get_by_test_id("thread-close").click()


def test_page_when_stop_is_clicked_asks_for_the_right_to_it_then_tears_down(stage):
    running, page = stage

    become(page, APPROVER_ID)
    run_id = typed_run(stage, "/train tiny-llama nodes=1 steps=2000 seed=7 name=theirs")
    running.wait(
        lambda: any(e.run_id == run_id for e in running.of_type("progress.reported")), "progress"
    )
    card = card_of(page, running.card(run_id).ts)
    card.get_by_role("button", name="Logs").click()
    expect(page.get_by_test_id("messages")).to_contain_text(
        "Newest log lines of", timeout=PATIENCE_MS
    )
    become(page, OPERATOR_ID)
    card.get_by_role("button", name="Stop").click()
    page.get_by_test_id("confirm-yes").click()
    note = page.locator("[data-testid=message][data-ephemeral=true]").last
    expect(note).to_contain_text("that takes the role approver")
    picture(page, "refused")
    become(page, APPROVER_ID)
    card.get_by_role("button", name="Stop").click()
    page.get_by_test_id("confirm-yes").click()
    run = running.wait_for_receipt(run_id)

    assert run.phase.value == "stopped"
    assert running.left(run_id) == []
    assert run.progress.step < 2000
    expect(card).to_contain_text("stopped", ignore_case=True)
    pods = running.mode.slack.thread(TRAINING_CHANNEL_ID, running.card(run_id).ts)
    assert any("stop" in reply.text.lower() for reply in pods)


def test_page_shows_a_kept_cluster_its_queue_and_its_end(stage):
    running, page = stage
    become(page, OPERATOR_ID)

    type_command(page, "/train cluster create team-a nodes=2 ttl=2h")
    cluster = page.locator(
        "[data-testid=messages] [data-testid=message]", has_text="Cluster team-a:"
    ).first
    expect(cluster).to_contain_text("ready, 0 of 2 nodes in use")
    first = running.start("/train tiny-llama nodes=2 steps=12 on=team-a")
    second = running.start("/train tiny-llama nodes=1 steps=5 on=team-a")
    waiting = card_of(page, running.card(second).ts)
    expect(waiting).to_contain_text("place 1 of 1: 0 of 2 nodes free, 1 wanted")
    expect(cluster).to_contain_text("2 of 2 nodes in use")
    expect(card_of(page, running.card(first).ts)).to_contain_text("tokens/s")
    running.wait(lambda: _left(running, second), "the second run leaves the cluster")
    expect(waiting).to_contain_text("cluster team-a was kept after it")

    cluster.get_by_role("button", name="Extend by 2h").click()
    expect(page.get_by_test_id("messages")).to_contain_text("cluster team-a stays: it goes")
    cluster.get_by_role("button", name="Delete").click()
    expect(page.get_by_test_id("confirm-yes")).to_be_visible()
    page.get_by_test_id("confirm-yes").click()
    expect(cluster).to_contain_text("Cluster team-a: gone")
    cluster.get_by_test_id("reply-bar").click()
    thread = page.get_by_test_id("thread")
    expect(thread).to_contain_text("Who caused the cost")
    for run_id in (first, second):
        expect(thread).to_contain_text(run_id)
        run = running.services.runs.load(run_id)
        assert run.phase.value == "succeeded"
        assert not {"provisioning", "validating"} & set(run.phase_names)
    page.get_by_test_id("thread-close").click()
    (made,) = [each for each in running.of_type("cluster.requested") if each.name == "team-a"]
    assert running.left(made.cluster_id) == []


def test_run_of_the_form_starts_once_a_second_person_approves(stage):
    running, page = stage
    become(page, OPERATOR_ID)
    type_command(page, "/train")
    form = page.get_by_test_id("view")
    form.locator("select").first.select_option("tiny-llama")
    for name, value in (("name", "asked"), ("nodes", "4"), ("steps", "8")):
        field = form.locator(f"[data-block-id={name}] input")
        field.fill(value)
        field.press("Enter")
    expect(form).to_contain_text("4 \N{MULTIPLICATION SIGN} m5.2xlarge")
    picture(page, "form")
    known = len(running.of_type("run.requested"))
    form.get_by_role("button", name="Start").click()
    form.get_by_role("button", name="Close").click()
    running.wait(lambda: len(running.of_type("run.requested")) > known, "another run")
    run_id = running.of_type("run.requested")[-1].run_id
    card = card_of(page, running.card(run_id).ts)
    expect(card.get_by_role("button", name="Approve")).to_be_visible()
    picture(page, "approval")
    become(page, APPROVER_ID)
    card.get_by_role("button", name="Approve").click()
    page.get_by_test_id("confirm-yes").click()

    assert running.wait_for_receipt(run_id).phase.value == "succeeded"
    expect(card).to_contain_text("nothing billable is left")


def test_page_when_training_fails_says_its_cause_and_what_to_do(stage):
    running, page = stage
    words = "nodes=1 eval_every=9 eval_samples=900000 seed=2"
    run_id = typed_run(stage, f"/train tiny-llama {words}")
    run = running.wait_for_receipt(run_id)

    assert run.phase.value == "failed"
    assert "900000 held out by eval_samples" in run.reason
    card = card_of(page, running.card(run_id).ts)
    expect(card).to_contain_text("900000 held out by eval_samples")
    expect(card).to_contain_text("the data set is too small for what eval_samples= holds out of it")
    expect(card).to_contain_text("start it again with a smaller eval_samples=")
    expect(card).to_contain_text(f"/train tiny-llama {words}")
    picture(page, "failed")
    assert running.left(run_id) == []
    assert torchruns(run_id) == set()


def test_home_and_a_comparison_show_both_runs(stage):
    running, page = stage
    become(page, OPERATOR_ID)
    runs = [event.run_id for event in running.of_type("run.requested")]
    type_command(page, f"/train compare {runs[0]} {runs[1]}")
    answer = page.get_by_test_id("messages").get_by_text("Compared: 2 runs")
    expect(answer.first).to_be_visible()
    picture(page, "compare")
    page.locator("[data-testid=channel][data-channel=home]").click()
    expect(page.get_by_test_id("messages")).to_contain_text("asked")
    picture(page, "home")


def _left(running, run_id):
    return any(event.run_id == run_id for event in running.of_type("lease.released"))


def _steps(running):
    reported = running.of_type("progress.reported")
    return reported[-1].step if reported else 0

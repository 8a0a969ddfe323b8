"""The page in headless Chromium: what a person sees and does reaches the app, and back."""

from __future__ import annotations

import re
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from slack_fixtures import (
    HERE,
    PNG_1X1,
    Json,
    actions,
    button,
    mrkdwn,
    plain,
    refused,
    say,
    section,
    web_client,
    workspace_with_app,
)
from slack_sdk import WebClient

from stationmaster.local.slack.records import OPERATOR_ID
from stationmaster.local.slack.server import LocalSlack
from tests.support.patience import PATIENCE_MS, PATIENCE_S

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium, chromium-browser or google-chrome on this machine"
)
expect = sync_api.expect

STOP = button(
    "stop",
    "Stop",
    value="run-1",
    style="danger",
    confirm={
        "title": plain("Stop this run?"),
        "text": mrkdwn("It can be resumed."),
        "confirm": plain("Stop run"),
        "deny": plain("Keep training"),
    },
)


def card(step: int, logs: str = "logs") -> list[Json]:
    header = {"type": "header", "text": plain("tiny-llama on 2 nodes")}
    return [header, section(f"*step {step}* of 60"), actions(STOP, button(logs, "Logs"))]


@dataclass
class Demo:
    """A workspace with an app that records what it was asked."""

    slack: LocalSlack
    client: WebClient
    app: Any
    commands: list[str] = field(default_factory=list)
    clicks: list[tuple[str, str, str]] = field(default_factory=list)
    may_ack: threading.Event = field(default_factory=threading.Event)


@pytest.fixture
def demo() -> Iterator[Demo]:
    with workspace_with_app() as (slack, app):
        state = Demo(slack, web_client(slack), app)
        state.may_ack.set()

        @app.command("/train")
        def train(ack: Any, command: Json) -> None:
            state.commands.append(command["text"])
            ack(f"You asked for `{command['text']}`")

        @app.action({"action_id": "logs"})
        def click(ack: Any, body: Json, action: Json) -> None:
            state.may_ack.wait(PATIENCE_S)
            state.clicks.append((action["action_id"], action.get("value", ""), body["user"]["id"]))
            ack()

        yield state
        state.may_ack.set()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api.expect.set_options(timeout=PATIENCE_MS)
    with sync_api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"], timeout=PATIENCE_MS
        )
        yield launched
        launched.close()


def is_problem(line: Any) -> bool:
    """Whether a console line is one; the browser itself reports a network that a test cut."""
    return line.type in {"error", "warning"} and "ERR_INTERNET_DISCONNECTED" not in line.text


@pytest.fixture
def page(browser: Any, demo: Demo) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1280, "height": 860})
    context.set_default_timeout(PATIENCE_MS)
    opened = context.new_page()
    problems: list[str] = []
    elsewhere: list[str] = []
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on(
        "console",
        lambda line: problems.append(line.text) if is_problem(line) else None,
    )
    opened.on(
        "request",
        lambda request: (
            None if request.url.startswith(demo.slack.url) else elsewhere.append(request.url)
        ),
    )
    opened.goto(demo.slack.page_url)
    opened.wait_for_selector('[data-testid="app"][data-connection="connected"]')
    yield opened
    context.close()
    assert problems == []
    assert elsewhere == []


def by_id(page: Any, testid: str) -> Any:
    return page.locator(f'[data-testid="{testid}"]')


def shown(page: Any, ts: str) -> Any:
    return page.locator(f'[data-testid="messages"] [data-ts="{ts}"]')


def post_card(demo: Demo, step: int = 1, logs: str = "logs") -> str:
    return say(demo.slack, blocks=card(step, logs))


def test_page_draws_a_line_for_each_series_of_a_chart(page: Any, demo: Demo) -> None:
    lines = [
        {"name": name, "data": [{"label": "1", "value": first}, {"label": "2", "value": 1e-9}]}
        for name, first in (("mine", 8.5), ("theirs", 1e9))
    ]
    drawn = {"type": "line", "series": lines, "axis_config": {"categories": ["1", "2"]}}
    ts = say(demo.slack, blocks=[{"type": "data_visualization", "title": "Loss", "chart": drawn}])

    figure = shown(page, ts).get_by_role("img", name="Loss, mine from 8.5 to 1.0e-9, theirs from")
    expect(figure.locator("polyline")).to_have_count(2)
    expect(figure).to_contain_text("theirs")


def test_page_draws_the_rows_of_a_table(page: Any, demo: Demo) -> None:
    rows = [[{"type": "raw_text", "text": text}] for text in ("Node", "<b>ip-1</b>")]
    ts = say(demo.slack, blocks=[{"type": "table", "rows": rows}])

    table = shown(page, ts).get_by_test_id("table")
    expect(table.get_by_role("columnheader")).to_have_text("Node")
    expect(table.get_by_role("cell")).to_have_text("<b>ip-1</b>")


def test_page_collapses_the_tasks_that_are_complete(page: Any, demo: Demo) -> None:
    words = {"type": "rich_text_section", "elements": [{"type": "text", "text": "2 of 2 nodes"}]}
    tasks = [
        {"type": "task_card", "task_id": status, "title": status, "status": status}
        | {"details": {"type": "rich_text", "elements": [words]}}
        for status in ("complete", "in_progress")
    ]
    ts = say(demo.slack, blocks=[{"type": "plan", "title": "Phases", "tasks": tasks}])

    details = shown(page, ts).get_by_test_id("plan").get_by_text("2 of 2 nodes")
    expect(details.first).to_be_hidden()
    expect(details.last).to_be_visible()


def test_page_command_typed_with_autocomplete_gets_an_ephemeral_answer(
    page: Any, demo: Demo
) -> None:
    composer = by_id(page, "composer")
    composer.press_sequentially("/tr")
    expect(by_id(page, "suggestion")).to_contain_text("/train")
    composer.press("Enter")
    composer.press_sequentially("tiny")
    composer.press("Tab")
    expect(composer).to_have_value("/train tiny-llama ")
    composer.press_sequentially("no")
    composer.press("Tab")
    composer.press("ArrowDown")
    composer.press("Enter")
    expect(composer).to_have_value("/train tiny-llama nodes=2 ")
    composer.press("Escape")
    composer.press("Enter")

    note = by_id(page, "ephemeral-note")
    expect(note).to_contain_text("Only visible to you")
    assert demo.commands == ["tiny-llama nodes=2"]
    expect(by_id(page, "messages").locator("code")).to_have_text("tiny-llama nodes=2")
    by_id(page, "dismiss").click()
    expect(note).to_have_count(0)
    composer.press("ArrowUp")
    expect(composer).to_have_value("/train tiny-llama nodes=2")


def test_page_folds_all_ephemerals_but_the_newest_and_draws_signs(page: Any, demo: Demo) -> None:
    for text in ("\U0001f6d1 older of <@U000OPERATOR>", "newer"):
        demo.client.chat_postEphemeral(channel=HERE, user=OPERATOR_ID, text=text)
    older, newer = by_id(page, "message").nth(0), by_id(page, "message").nth(1)
    expect(newer.get_by_test_id("text")).to_be_visible()
    expect(older.get_by_test_id("text")).to_be_hidden()
    expect(older.locator("svg.sign").first).to_be_visible()
    expect(by_id(page, "ephemeral-note").first).to_contain_text("older of @Operator")
    older.get_by_role("button", name="Show").click()
    expect(older.get_by_test_id("text")).to_be_visible()


def test_page_shows_what_is_sent_by_who_has_scrolled_up(page: Any, demo: Demo) -> None:
    for step in range(9):
        post_card(demo, step)
    expect(by_id(page, "messages")).to_contain_text("step 8 of 60")
    by_id(page, "scroller").evaluate(
        "box => new Promise(done => {box.onscroll = done; box.scrollTop = 0})"
    )
    by_id(page, "composer").fill("/train audit")
    by_id(page, "composer").press("Enter")

    expect(by_id(page, "ephemeral-note")).to_be_in_viewport()


def test_page_card_is_edited_in_place_and_keeps_focus(page: Any, demo: Demo) -> None:
    ts = post_card(demo)
    expect(shown(page, ts)).to_contain_text("step 1 of 60")
    shown(page, ts).locator('[data-action-id="logs"]').focus()
    page.evaluate("window.nodeBefore = document.querySelector('[data-action-id=logs]')")

    demo.client.chat_update(channel=HERE, ts=ts, text="card", blocks=card(2))

    expect(shown(page, ts)).to_contain_text("step 2 of 60")
    expect(shown(page, ts).locator('[data-testid="edited"]')).to_have_text("(edited)")
    expect(by_id(page, "message")).to_have_count(1)
    assert page.evaluate("document.activeElement === window.nodeBefore")


def test_page_button_is_disabled_while_its_click_is_delivered(page: Any, demo: Demo) -> None:
    ts = post_card(demo)
    demo.may_ack.clear()
    button = shown(page, ts).locator('[data-action-id="logs"]')

    button.click()

    expect(button).to_be_disabled()
    demo.may_ack.set()
    expect(button).to_be_enabled()
    assert demo.clicks == [("logs", "", OPERATOR_ID)]


def test_page_click_that_the_app_refuses_says_why(page: Any, demo: Demo) -> None:
    ts = post_card(demo, logs="unhandled")

    shown(page, ts).locator('[data-action-id="unhandled"]').click()

    expect(shown(page, ts).get_by_role("alert")).to_contain_text("dispatch_failed")


def test_page_person_is_chosen_with_the_arrow_keys(page: Any) -> None:
    radios = by_id(page, "act-as").get_by_role("radio")
    radios.first.focus()

    for key, chosen in (("ArrowLeft", radios.last), ("ArrowDown", radios.first)):
        page.keyboard.press(key)
        expect(chosen).to_be_checked()
        expect(chosen).to_be_focused()
        expect(by_id(page, "act-as").locator('[tabindex="0"]')).to_have_count(1)


def test_page_thread_shows_replies_and_takes_one(page: Any, demo: Demo) -> None:
    ts = post_card(demo)
    say(demo.slack, "pod started", thread_ts=ts)
    expect(by_id(page, "reply-bar")).to_contain_text("1 reply")

    by_id(page, "reply-bar").click()
    by_id(page, "thread-composer").fill("thanks <all> & *you*")
    by_id(page, "thread-composer").press("Enter")

    thread = by_id(page, "thread-messages")
    expect(thread).to_contain_text("pod started")
    expect(thread).to_contain_text("thanks <all> & you")
    expect(by_id(page, "reply-bar")).to_contain_text("2 replies")
    expect(by_id(page, "messages")).not_to_contain_text("pod started")
    page.keyboard.press("Escape")
    expect(by_id(page, "thread")).to_be_hidden()


def test_page_uploaded_image_is_inline_and_enlarges(page: Any, demo: Demo) -> None:
    demo.client.files_upload_v2(channel=HERE, content=PNG_1X1, filename="loss.png", title="Loss")

    image = by_id(page, "file").locator("img")
    expect(image).to_be_visible()
    expect(image).to_have_js_property("naturalWidth", 1)
    image.click()
    expect(by_id(page, "lightbox").locator("img")).to_be_visible()
    page.keyboard.press("Escape")
    expect(by_id(page, "lightbox")).to_have_count(0)


def test_page_user_text_never_becomes_markup(page: Any, demo: Demo) -> None:
    text = "<img src=x onerror=window.hit=1> <javascript:window.hit=1|click> `<b>`"
    say(demo.slack, text)

    expect(by_id(page, "text")).to_contain_text("click")
    assert page.evaluate("window.hit") is None
    expect(by_id(page, "text").locator("img, a, b")).to_have_count(0)


def test_page_mrkdwn_becomes_elements(page: Any, demo: Demo) -> None:
    text = (
        "*bold* _it_ ~gone~ `code` :rocket: <https://example.com|site> <@U000OPERATOR> "
        "a*b*c &lt;kept&gt;\n&gt; quoted\n\N{BULLET} one\n\N{BULLET} two\n```x = 1```"
    )
    say(demo.slack, text)

    body = by_id(page, "text")
    expect(body.locator("strong")).to_have_text("bold")
    expect(body.locator("em")).to_have_text("it")
    expect(body.locator("s")).to_have_text("gone")
    expect(body.locator("code").first).to_have_text("code")
    expect(body.locator(".emoji")).to_have_text("\N{ROCKET}")
    expect(body.locator("a")).to_have_attribute("href", "https://example.com")
    expect(body.locator(".mention")).to_have_text("@Operator")
    expect(body).to_contain_text("a*b*c <kept>")
    expect(body.locator("blockquote")).to_have_text("quoted")
    expect(body.locator("li")).to_have_text(["one", "two"])
    expect(body.locator("pre")).to_have_text("x = 1")


def test_page_unread_messages_of_another_channel_are_counted(page: Any, demo: Demo) -> None:
    page.locator('[data-testid="channel"][data-channel="C000GENERAL"]').click()
    post_card(demo)

    entry = page.locator(f'[data-testid="channel"][data-channel="{HERE}"]')
    expect(entry).to_contain_text("1")
    expect(page).to_have_title("(1) #general - Local workspace")
    entry.click()
    expect(page).to_have_title("#training - Local workspace")


def test_page_comes_back_after_the_connection_was_lost(page: Any, demo: Demo) -> None:
    page.evaluate("window.stillTheSamePage = true")
    page.context.set_offline(True)
    page.locator('[data-user-id="U000APPROVER"]').click()
    expect(by_id(page, "connection")).to_have_text("Reconnecting")
    ts = post_card(demo, step=7)
    page.context.set_offline(False)

    expect(by_id(page, "connection")).to_have_text("Connected")
    expect(shown(page, ts)).to_contain_text("step 7 of 60")
    assert page.evaluate("window.stillTheSamePage")


def test_page_counts_how_long_ago_without_an_edit(page: Any, demo: Demo) -> None:
    began = int(time.time()) - 125
    say(demo.slack, f"_began <!date^{began}^{{ago}}|at 09:00 UTC>_")
    counted = by_id(page, "text").locator("em time")

    expect(counted).to_have_text("2 minutes ago")
    # The page's own clock moves it on: nothing else changes the message.
    counted.evaluate(
        "node => node.setAttribute('datetime', new Date(Date.now() - 3.7e6).toISOString())"
    )
    expect(counted).to_have_text("1 hour ago", timeout=PATIENCE_MS)


def test_page_archived_channel_takes_no_text(page: Any, demo: Demo) -> None:
    by_id(page, "composer").fill("/archive")
    by_id(page, "composer").press("Enter")

    expect(by_id(page, "composer")).to_be_disabled()
    expect(by_id(page, "composer")).to_have_attribute("placeholder", re.compile("is archived"))
    entry = page.locator(f'[data-testid="channel"][data-channel="{HERE}"]')
    expect(entry.locator(".icon-archive")).to_have_count(1)


def new_run(said: str) -> Json:
    """A form whose fields the app follows, and what it says of them."""
    choice = {"type": "static_select", "options": [{"text": plain("One"), "value": "one"}]}
    fields = [
        {"type": "input", "block_id": name, "label": plain(name), "dispatch_action": True}
        | {"element": element | {"action_id": "field"}}
        for name, element in (("recipe", choice), ("steps", {"type": "plain_text_input"}))
    ]
    texts = {"title": plain("New"), "submit": plain("Start"), "callback_id": "new"}
    return {"type": "modal", "blocks": [*fields, section(said)], **texts}


def test_page_form_is_followed_and_keeps_what_is_typed_and_the_focus(page: Any, demo: Demo) -> None:
    @demo.app.action("open")
    def open_form(ack: Any, client: Any, body: Json) -> None:
        client.views_open(trigger_id=body["trigger_id"], view=new_run("choose"))
        ack()

    @demo.app.action("field")
    def follow(ack: Any, client: Any, body: Json) -> None:
        view = body["view"]
        recipe, steps = (each["field"] for each in view["state"]["values"].values())
        said = f"{recipe['selected_option']['value']} {steps['value']}"
        client.views_update(view_id=view["id"], hash=view["hash"], view=new_run(said))
        ack()

    post_card(demo, logs="open")
    page.locator('[data-action-id="open"]').click()
    form = by_id(page, "view")
    form.locator("select").select_option("one")
    expect(form).to_contain_text("one None")
    steps = form.locator("input")
    steps.fill("60")
    steps.press("Enter")

    expect(form).to_contain_text("one 60")
    expect(steps).to_have_value("60")
    expect(steps).to_be_focused()
    expect(form.locator("select")).to_have_value("one")
    view_id = by_id(page, "view").get_attribute("data-view-id")
    stale = {"view_id": view_id, "hash": "1.old", "view": new_run("old")}
    assert refused(demo.client.views_update, **stale) == "hash_conflict"


def test_page_choice_in_home_reaches_the_app(page: Any, demo: Demo) -> None:
    chosen: list[str] = []

    @demo.app.action("choose")
    def choose(ack: Any, action: Json) -> None:
        chosen.append(action["selected_option"]["value"])
        ack()

    choices = [{"text": plain(word), "value": word} for word in ("one", "two")]
    select = {"type": "static_select", "action_id": "choose", "options": choices}
    view = {"type": "home", "blocks": [section("Which?") | {"accessory": select}]}
    demo.client.views_publish(user_id=OPERATOR_ID, view=view)
    page.locator('[data-testid="channel"][data-channel="home"]').click()
    with page.expect_response("**/local/enter"):
        by_id(page, "messages").locator("select").select_option("two")
    assert chosen == ["two"]

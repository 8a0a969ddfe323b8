"""What a channel sees of a push to the hub, and who is refused one."""

from __future__ import annotations

import json

import boto3
import pytest
from bot_world import REGION, Person
from run_blocks import NOW, seen
from saved_cards import saved

from bot.blocks.card import card_milestone, run_card
from bot.blocks.receipt import run_receipt
from bot.blocks.results import push_line
from stationmaster.domain.run import events as ev
from stationmaster.domain.run.events import RunPhase
from stationmaster.domain.run.kept import Pushed
from stationmaster.services import Services
from tests.support.factories import make_request

REPOSITORY = "lab/tiny"
REVISION = "0123456789abcdef" * 2
ASKED = {"request": make_request(push_to=REPOSITORY)}
PUSHED = ASKED | {"pushed": Pushed(repository=REPOSITORY, revision=REVISION, pushed_at=NOW)}
NOT_PUSHED = ASKED | {"not_pushed": "the hub <refuses>"}


def test_card_and_receipt_say_what_became_of_the_push():
    for values, words in (
        (PUSHED, f"*Pushed* to `{REPOSITORY}`, revision `{REVISION[:12]}`"),
        (NOT_PUSHED, f"*Not pushed* to `{REPOSITORY}`: the hub &lt;refuses&gt;"),
    ):
        view = saved(RunPhase.SUCCEEDED, **values)
        assert words in seen(run_card(view, now=NOW))
        assert words in seen(run_receipt(view, now=NOW))


def test_card_says_that_the_model_is_being_pushed():
    assert f"the model is being pushed to `{REPOSITORY}`" in seen(run_card(saved(**ASKED), now=NOW))
    assert "pushed" not in seen(run_card(saved(), now=NOW))


def test_news_of_a_push_changes_the_card_at_once():
    views = [saved(**values) for values in (ASKED, PUSHED, NOT_PUSHED)]

    assert len({card_milestone(view) for view in views}) == len(views)


@pytest.mark.parametrize(
    ("kind", "values", "words"),
    [
        (ev.ResultsPushed, {"revision": REVISION}, "and verified there"),
        (
            ev.ResultsNotPushed,
            {"reason": "a < b"},
            "*the model was not pushed* to `lab/tiny`: a &lt;",
        ),
    ],
)
def test_thread_says_what_became_of_the_push(kind, values, words):
    event = kind(event_id="e", run_id="r", at=NOW, repository=REPOSITORY, **values)

    assert words in push_line(event)


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

"""Recipes of other frameworks as they are typed in a channel, through the Lambda handler."""

from __future__ import annotations

import pytest
from bot_world import seen
from run_blocks import NOW
from run_blocks import seen as seen_in
from saved_cards import saved

from bot.blocks.card import card_milestone, run_card
from bot.blocks.results import export_line
from stationmaster.domain.run.events import ExportEnded, RunPhase
from stationmaster.domain.run.kept import Export
from tests.support.factories import make_request

REASON = "meta-llama/Llama-3.1-8B is gated: <accept> its licence"
WORDS = "megatron-llama3-8b nodes=2"
IMAGE = "123456789012.dkr.ecr.us-west-2.amazonaws.com/stationmaster/megatron:1"


def of_framework(export: Export | None):
    request = make_request(recipe="megatron-llama3-8b", instance_type="p5.48xlarge")
    return saved(RunPhase.SUCCEEDED, request=request, export=export)


def test_card_shows_how_to_load_the_model_that_was_made_of_a_checkpoint():
    text = seen_in(run_card(of_framework(Export(ended_at=NOW)), now=NOW))

    assert r"AutoModelForCausalLM.from_pretrained(\"my-model/model\")" in text
    assert "No model" not in text


def test_card_says_why_there_is_no_model_and_where_the_checkpoint_is():
    text = seen_in(run_card(of_framework(Export(ended_at=NOW, reason=REASON)), now=NOW))

    assert "*No model:* meta-llama/Llama-3.1-8B is gated: &lt;accept&gt; its licence" in text
    assert "ls my-results/output" in text
    assert "from_pretrained" not in text
    assert "from_pretrained" not in seen_in(run_card(of_framework(None), now=NOW))


def test_thread_says_what_became_of_the_model():
    made, failed = (
        export_line(ExportEnded(event_id="e", run_id="r", at=NOW, reason=reason))
        for reason in ("", REASON)
    )

    assert "a model that transformers loads was made" in made
    assert "*no model was made of the newest checkpoint*, which is saved all the same" in failed
    assert "&lt;accept&gt;" in failed


def test_end_of_an_export_that_failed_changes_the_card_at_once():
    views = [of_framework(None), of_framework(Export(ended_at=NOW, reason=REASON))]

    assert len({card_milestone(view) for view in views}) == 2


@pytest.fixture
def with_image(settings, monkeypatch):
    """A deployment that has built Megatron-LM's image."""
    monkeypatch.setenv("STATIONMASTER_MEGATRON_IMAGE", IMAGE)


def test_deployment_without_the_image_starts_nothing_and_says_what_to_set(person, services):
    answer = person.type(WORDS)

    assert 'this deployment has no image of it: add \\"megatron\\" to more_images' in seen(answer)
    assert services.runs.list_recent() == []


def test_plan_shows_what_it_would_take_and_that_the_image_is_missing(person):
    text = seen(person.type(f"plan {WORDS}"))

    assert "this deployment has no image of it" in text
    assert "tokens/s" in text


@pytest.mark.parametrize(
    ("recipe", "variable"),
    [
        ("megatron-llama3-8b", "STATIONMASTER_MEGATRON_IMAGE"),
        ("torchtitan-llama3.1-8b", "STATIONMASTER_TORCHTITAN_IMAGE"),
    ],
)
def test_deployment_with_the_image_starts_it(
    person, services, settings, monkeypatch, recipe, variable
):
    monkeypatch.setenv(variable, IMAGE)

    answer = person.type(f"{recipe} nodes=2")

    (run,) = services.runs.list_recent()
    assert run.phase is RunPhase.REQUESTED
    assert run.estimated_cost_usd > 0
    assert "no image" not in seen(answer)


def test_where_machines_are_emulated_nothing_is_started(person, services, with_image, monkeypatch):
    monkeypatch.setenv("STATIONMASTER_MEGATRON_IMAGE", "")
    monkeypatch.setenv("STATIONMASTER_EMULATED_SPEED", "720")

    answer = person.type(WORDS)

    assert "runs Megatron-LM in an image on GPUs, and local mode has neither" in seen(answer)
    assert services.runs.list_recent() == []


def test_weights_are_refused_where_no_image_converts_them(
    person, services, with_image, monkeypatch
):
    weights = "weights=meta-llama/Llama-3.1-8B"

    answer = person.type(f"{WORDS} {weights}")

    assert (
        'converted by Megatron-Bridge, and this deployment has no image of it: add \\"nemo\\"'
        in (seen(answer))
    )
    assert services.runs.list_recent() == []
    monkeypatch.setenv("STATIONMASTER_NEMO_IMAGE", IMAGE)
    person.type(f"{WORDS} {weights}")
    assert len(services.runs.list_recent()) == 1
